# Copyright (C) 2026 Arcee AI
# SPDX-License-Identifier: LGPL-3.0-only

import math
import re
from typing import Any, Literal, Mapping, Optional

import torch
from pydantic import Field, NonNegativeInt
from typing_extensions import Annotated

from mergekit.merge_methods.base import (
    GroupMergeMethod,
    MergeMethodSpec,
    ParameterScope,
    ParameterSpec,
    TensorGroup,
)

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?|layer)\.(\d+)\.")
_NOT_DECODER = re.compile(
    r"vision|visual|image|video|audio|speech|codec|projector|resampler|perceiver|talker"
    r"|(?:^|\.)mtp\."
)

# The layerswap package, from which recipes may come, has these parameters too.
# A recipe's parameter that a method lacks is ignored; that of another merge is refused.
_REFUSED = (
    "placement",
    "weighting",
    "task_weight",
    "language_weight",
    "layer_norms",
    "swap_modules",
)


class LayerSwapMerge(GroupMergeMethod):
    spec = MergeMethodSpec(
        name="layer_swap",
        pretty_name="Layer Swapping",
        reference_url="https://arxiv.org/abs/2410.01335",
        parameters=(
            ParameterSpec(
                "role",
                Optional[Literal["task", "language"]],
                ParameterScope.INPUT,
                default=None,
            ),
            ParameterSpec(
                "weight",
                Annotated[float, Field(ge=0, allow_inf_nan=False)],
                ParameterScope.INPUT,
                default=1.0,
            ),
            *(
                ParameterSpec(name, NonNegativeInt, ParameterScope.SHARED, default)
                for name, default in (
                    ("bottom_layers", 5),
                    ("top_layers", 2),
                    ("bottom_transition", 0),
                    ("top_transition", 0),
                )
            ),
            ParameterSpec(
                "non_layer",
                Literal["average", "task", "language", "base"],
                ParameterScope.SHARED,
                default="average",
            ),
            ParameterSpec(
                "num_layers",
                Optional[NonNegativeInt],
                ParameterScope.SHARED,
                default=None,
            ),
            *(
                ParameterSpec(name, Any, ParameterScope.SHARED, default=None)
                for name in _REFUSED
            ),
        ),
    )

    def merge_group(
        self,
        group: TensorGroup,
        /,
        *,
        role: Mapping[Any, Optional[str]],
        weight: Mapping[Any, float],
        bottom_layers: int,
        top_layers: int,
        bottom_transition: int,
        top_transition: int,
        non_layer: str,
        num_layers: Optional[int],
        **refused: Any,
    ) -> torch.Tensor:
        name = group.metadata.name
        unknown = [key for key, value in refused.items() if value is not None]
        if unknown:
            raise ValueError(f"layer_swap does not take {', '.join(unknown)}")
        if any(role[e.id] is None and not e.is_base for e in group.entries):
            raise ValueError("Every model but the base needs a role: task or language")

        source = non_layer
        match = None if _NOT_DECODER.search(name) else _LAYER.search(name)
        if match:
            layer = int(match[1])
            if num_layers is None:
                model = group.entries[0].id
                if not hasattr(model, "config"):
                    raise ValueError(f"{model} has no config: give num_layers")
                num_layers = model.config().get_text_config().num_hidden_layers
            used = bottom_layers + top_layers + bottom_transition + top_transition
            if layer >= num_layers or used > num_layers:
                raise ValueError(
                    f"{used} layers and layer {layer} do not fit {num_layers} layers"
                )
            # The paper's Algorithm 1 says "or" in line 5: no layer would be averaged.
            top = num_layers - top_layers
            source = "average"
            if layer < bottom_layers or layer >= top:
                source = "language"
            elif bottom_layers + bottom_transition <= layer < top - top_transition:
                source = "task"
        if source == "base":
            if group.base is None:
                raise ValueError(f"The base model does not have {name}")
            return group.base.tensor

        inputs = []
        for side in ("task", "language") if source == "average" else (source,):
            entries = [e for e in group.entries if role[e.id] == side and weight[e.id]]
            if not entries:
                raise ValueError(f"{name} needs a {side} expert of weight > 0")
            total = math.fsum(weight[e.id] for e in entries)
            inputs += [(e.tensor, weight[e.id] / total) for e in entries]
        if len(inputs) == 1:
            return inputs[0][0]
        dtype = inputs[0][0].dtype
        wide = torch.promote_types(dtype, torch.float32)
        first, *rest = [tensor.to(wide) * share for tensor, share in inputs]
        return (sum(rest, first) / math.fsum(share for _, share in inputs)).to(dtype)


layer_swap = LayerSwapMerge()
