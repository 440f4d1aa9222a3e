# Copyright (C) 2026 Arcee AI
# SPDX-License-Identifier: LGPL-3.0-only

import math
import re
from typing import Literal, Optional

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
    if any(role[e.id] is None and not e.is_base for e in group.entries):
        raise ValueError("Every model but the base needs a role: task or language")
    if (placement == "layers") != (language_layers is not None):
        raise ValueError("placement: layers and language_layers need each other")

    source = non_layer
    match = None if _NOT_DECODER.search(name) else _LAYER.search(name)
    if match:
        layer, module = int(match[1]), match[2].lower()
        if num_layers is None:
            model = group.entries[0].id
            if not hasattr(model, "config"):
                raise ValueError(f"{model} has no config: give num_layers")
            num_layers = model.config().get_text_config().num_hidden_layers
        runs = [(0, bottom_layers), (num_layers - top_layers, num_layers)]
        if language_layers is not None:
            ends = [part.partition("-") for part in language_layers.split(",")]
            runs = [(int(first), int(last or first) + 1) for first, _, last in ends]
        used = sum(b - a for a, b in runs) + bottom_transition + top_transition
        fits = all(0 <= a <= b <= num_layers for a, b in runs)
        if layer >= num_layers or used > num_layers or not fits:
            raise ValueError(f"Layers {runs} do not fit a model of {num_layers} layers")
        # The paper's Algorithm 1 says "or" in line 5, so no layer would be averaged.
        source = "task"
        if any(a <= layer < b for a, b in runs):
            source = "language"
        elif any(a - top_transition <= layer < b + bottom_transition for a, b in runs):
            source = "average"
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
        side: math.fsum(weight[e.id] for e in group.entries if role[e.id] == side)
        for side in shares
        if shares[side]
    }
    if not totals or not all(totals.values()):
        needed = " and a ".join(shares)
        raise ValueError(f"{name} needs a {needed} expert of weight > 0")
    # The mean of two weighted means as one sum; whole weights stay whole, and exact.
    whole = len(totals) == 2 and all(total == int(total) for total in totals.values())
    scale = math.gcd(*map(int, totals.values())) if whole else 1
    if len(totals) == 1:
        factors = dict.fromkeys(totals, 1.0)
    else:
        task, language = totals.values()
        factors = {
            "task": shares["task"] * language / scale,
            "language": shares["language"] * task / scale,
        }
    inputs = [
        (e.tensor, factor * weight[e.id])
        for s, factor in factors.items()
        for e in group.entries
        if role[e.id] == s and weight[e.id]
    ]
    if len(inputs) == 1:
        return inputs[0][0]
    dtype = inputs[0][0].dtype
    wide = torch.promote_types(dtype, torch.float32)
    first, *rest = [tensor.to(wide) * factor for tensor, factor in inputs]
    return (sum(rest, first) / math.fsum(factor for _, factor in inputs)).to(dtype)
