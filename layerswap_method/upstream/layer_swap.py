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
Runs = List[Tuple[int, int]]

_STACK = r"(?:^|\.)(?:layers|h|blocks?|layer)"
_LAYER = re.compile(_STACK + r"\.(\d+)\.(?:norm_attn_norm\.)?([^.]+)")
_NOT_DECODER = re.compile(
    r"vision|visual|image|audio|speech|projector|resampler|perceiver|(?:^|\.)mtp\."
)
_PARTS = {
    "norm": re.compile(r"norm|^ln_?\w*$"),
    "attention": re.compile(r"attn|attention"),
    "mlp": re.compile(r"mlp|feed_forward|ffn|moe|experts|^fc\d"),
}


def _parse_layers(text: str) -> Runs:
    """Return "0-4,30" as half-open runs of layers."""
    ends = [part.partition("-")[::2] for part in text.split(",")]
    return [(int(first), int(last or first) + 1) for first, last in ends]


def _layer_source(layer: int, num_layers: int, runs: Runs, zones: Tuple[int, int]):
    """Swap the layers of each run; average as many as `zones` say after and before."""
    after, before = zones
    if layer >= num_layers:
        raise ValueError(f"Layer {layer} is not in the model's {num_layers} layers")
    used = sum(end - start for start, end in runs) + after + before
    if used > num_layers or not all(0 <= a <= b <= num_layers for a, b in runs):
        raise ValueError(f"Layers {runs} do not fit a model of {num_layers} layers")
    if any(start <= layer < end for start, end in runs):
        return "language"
    if any(start - before <= layer < end + after for start, end in runs):
        return "average"
    return "task"


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
        runs = [(0, bottom_layers), (num_layers - top_layers, num_layers)]
        if language_layers is not None:
            runs = _parse_layers(language_layers)
        zones = (bottom_transition, top_transition)
        source = _layer_source(int(match[1]), num_layers, runs, zones)
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

    shares = {"task": task_weight, "language": language_weight}
    if source != "average":
        shares = {source: 1.0}
    totals = {
        side: sum(weight[e.id] for e in group.entries if role[e.id] == side)
        for side in shares
        if shares[side]
    }
    if not totals or not all(totals.values()):
        needed = " and a ".join(shares)
        raise ValueError(f"{name} needs a {needed} expert of weight > 0")
    # The mean of two weighted means as one: whole weights give whole numbers, by which
    # 16-bit values are multiplied exactly.
    scale = 1
    if len(totals) == 2 and all(total == int(total) for total in totals.values()):
        scale = math.gcd(*map(int, totals.values()))
    tensors, weights = [], []
    for side in totals:
        others = math.prod(totals[other] for other in totals if other != side)
        for entry in group.entries:
            if role[entry.id] == side and weight[entry.id]:
                tensors.append(entry.tensor)
                weights.append(shares[side] * others / scale * weight[entry.id])
    if len(tensors) == 1:
        return tensors[0]
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    first, *rest = [t.to(dtype) * w for t, w in zip(tensors, weights)]
    return (sum(rest, first) / sum(weights)).to(tensors[0].dtype)
