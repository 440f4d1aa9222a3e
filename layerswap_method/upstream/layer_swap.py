# Copyright (C) 2026 Arcee AI
# SPDX-License-Identifier: LGPL-3.0-only

"""Layer Swapping: outer layers from one expert, the others from another.

Line 5 of the paper's Algorithm 1 as printed says "or"; read literally no layer would
ever be averaged. It must be "and", which is what is implemented here. Read literally,
line 2 averages the norms of every layer; by default they go with their layer instead.
"""

import math
import re
from typing import List, Literal, Optional, Tuple

import torch
from pydantic import Field, NonNegativeInt
from typing_extensions import Annotated

from mergekit.merge_methods.base import PerInput, TensorGroup
from mergekit.merge_methods.easy_define import merge_method

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_LAYER = re.compile(
    r"(?:^|\.)(?:layers|h|blocks?|layer)\.(\d+)\.(?:norm_attn_norm\.)?([^.]+)"
)
_NOT_DECODER = re.compile(
    r"vision|visual|image|audio|speech|projector|resampler|perceiver|(?:^|\.)mtp\."
)
_PARTS = {
    "norm": re.compile(r"norm|^ln_?\w*$"),
    "attention": re.compile(r"attn|attention"),
    "mlp": re.compile(r"mlp|feed_forward|ffn|moe|experts|^fc\d"),
}


def _parse_layers(text: str) -> List[Tuple[int, int]]:
    """Return "0-4,30" as half-open runs of layers."""
    ends = [part.partition("-")[::2] for part in text.split(",")]
    return [(int(first), int(last or first) + 1) for first, last in ends]


def _layer_sources(
    num_layers: int, runs: List[Tuple[int, int]], after: int, before: int
) -> List[str]:
    """Return the source of every layer: `after` and `before` each run are averaged."""
    if not all(0 <= start <= end <= num_layers for start, end in runs):
        raise ValueError(f"Layers {runs} do not fit a model of {num_layers} layers")
    sources = ["task"] * num_layers
    for start, end in runs:
        for layer in (*range(end, end + after), *range(start - before, start)):
            if 0 <= layer < num_layers:
                sources[layer] = "average"
    for start, end in runs:
        sources[start:end] = ["language"] * (end - start)
    return sources


def _weighted_mean(tensors: List[torch.Tensor], weights: List[float]) -> torch.Tensor:
    """Round once, at the end; a tensor alone is returned as it is."""
    if len(tensors) == 1:
        return tensors[0]
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    total = tensors[0].to(dtype) * weights[0]
    for tensor, weight in zip(tensors[1:], weights[1:]):
        total = total + tensor.to(dtype) * weight
    return (total / sum(weights)).to(tensors[0].dtype)


@merge_method(
    name="layer_swap",
    pretty_name="Layer Swapping",
    reference_url="https://arxiv.org/abs/2410.01335",
)
def layer_swap(
    group: TensorGroup,
    role: PerInput[Optional[Literal["task", "language"]]] = None,
    weight: PerInput[Weight] = 1.0,
    bottom_layers: NonNegativeInt = 5,
    top_layers: NonNegativeInt = 2,
    bottom_transition: NonNegativeInt = 0,
    top_transition: NonNegativeInt = 0,
    task_weight: Weight = 1.0,
    language_weight: Weight = 1.0,
    placement: Literal["outer", "layers"] = "outer",
    language_layers: Optional[str] = None,
    non_layer: Literal["average", "task", "language", "base"] = "average",
    layer_norms: Literal["block", "average"] = "block",
    swap_modules: Literal["all", "attention", "mlp"] = "all",
    num_layers: Optional[NonNegativeInt] = None,
) -> torch.Tensor:
    name = group.metadata.name
    if name is None:
        raise ValueError("layer_swap needs tensor names, which say the layer")
    if any(role[e.id] is None and not e.is_base for e in group.entries):
        raise ValueError("Every model but the base needs a role: task or language")
    if (placement == "layers") != (language_layers is not None):
        raise ValueError("placement: layers and language_layers need each other")

    source = non_layer
    match = None if _NOT_DECODER.search(name) else _LAYER.search(name)
    if match:
        if num_layers is None:
            model = group.entries[0].id
            if not hasattr(model, "config"):
                raise ValueError(f"{model} has no config: give num_layers")
            num_layers = model.config().get_text_config().num_hidden_layers
        if language_layers is not None:
            runs = _parse_layers(language_layers)
        else:
            counts = (bottom_layers, top_layers, bottom_transition, top_transition)
            if sum(counts) > num_layers:
                raise ValueError(
                    f"{counts} are more than the model's {num_layers} layers"
                )
            runs = [(0, bottom_layers), (num_layers - top_layers, num_layers)]
        sources = _layer_sources(num_layers, runs, bottom_transition, top_transition)
        layer = int(match[1])
        if layer >= num_layers:
            raise ValueError(f"{name} is not in the model's {num_layers} layers")
        source = sources[layer]
        module = match[2].lower()
        part = next((key for key in _PARTS if _PARTS[key].search(module)), "other")
        if part == "norm" and layer_norms == "average":
            source = "average"
        elif swap_modules not in ("all", part):
            source = "task"
    if source == "base":
        if group.base is None:
            raise ValueError(f"The base model does not have {name}")
        return group.base.tensor

    sides = {"task": task_weight, "language": language_weight}
    if source != "average":
        sides = {source: 1.0}
    experts = {
        side: [e for e in group.entries if role[e.id] == side and weight[e.id]]
        for side, share in sides.items()
        if share
    }
    if not experts or not all(experts.values()):
        raise ValueError(f"{name} needs a {' and a '.join(sides)} expert of weight > 0")
    entries = [(side, e) for side in experts for e in experts[side]]
    weights = [weight[e.id] for _, e in entries]
    if len(experts) == 2:
        # The mean of two weighted means as one: whole weights give whole numbers, by
        # which 16-bit values are multiplied exactly.
        a, b = (sum(weight[e.id] for e in experts[side]) for side in sides)
        scale = math.gcd(int(a), int(b)) if a == int(a) and b == int(b) else 1
        other = {"task": b, "language": a}
        weights = [sides[s] * weight[e.id] * other[s] / scale for s, e in entries]
    return _weighted_mean([e.tensor for _, e in entries], weights)
