"""The input features of a weight, by which changes are measured.

The paper compares tensors of different shapes by "the magnitude of change at the row level using
mean absolute value (MAV)" (arXiv 2410.01335, section 3.2). Its published fractions are whole
multiples of 1/in_features, so its row is one INPUT feature, a COLUMN of a torch weight: with
``[out, in]`` storage the MAV is ``delta.abs().mean(dim=0)``. Such a row is called a feature here.

What a feature is where the paper has no example:

- a 1-D parameter is one feature, the mean over the vector (the paper's own words);
- Conv1D (GPT-2) is stored ``[in, out]``, so the axes change places;
- fused projections (Phi-3's qkv, gate_up) are one tensor: a feature spans all its outputs;
- stacked experts ``[experts, out, in]`` are one matrix per expert, and their 2-D biases one vector;
- an embedding ``[vocabulary, hidden]`` is read like an output embedding: one hidden feature;
- a convolution's feature is one input channel at one place; a 3-D one is taken for depthwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerswap_method.errors import InputError

if TYPE_CHECKING:
    import torch

_CONV1D_TYPES = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp")
_CONV1D = re.compile(r"\.(?:c_attn|q_attn|c_proj|c_fc)\.weight$")
"""GPT-2's Conv1D modules, stored inputs x outputs."""

_TRANSPOSED_EXPERTS = ("gpt_oss", "llama4", "llama4_text", "aria", "aria_text")
"""Model types that store stacked experts ``[experts, in, out]``."""

_EXPERT_BIAS = re.compile(r"experts\..*bias$")
_DBRX_DOWN = re.compile(r"\.ffn\.experts\.mlp\.w2$")


def input_axis(name: str, ndim: int, model_type: str) -> int | None:
    """Return the axis of the input features; None where the last axis is one feature.

    `name` is the tensor's in its file, `model_type` that of the config or of its text config.
    """
    if ndim < 2 or (ndim == 2 and _EXPERT_BIAS.search(name)):
        return None
    if ndim == 2:
        conv1d = model_type in _CONV1D_TYPES and _CONV1D.search(name)
        return 0 if conv1d or _DBRX_DOWN.search(name) else 1
    if ndim == 3:
        transposed = model_type in _TRANSPOSED_EXPERTS and "experts" in name
        return 1 if transposed else 2
    if ndim <= 5:
        return 1  # a convolution [out, in, height, width]
    raise InputError(f"{name} has {ndim} axes; which of them are inputs is not known")


def spread_features(features: torch.Tensor, shape: Sequence[int], axis: int | None) -> torch.Tensor:
    """Return one value per feature (`FeatureLayout`'s order), shaped to broadcast to `shape`."""
    if not shape:
        return features.reshape(())
    place = len(shape) - 1 if axis is None else _output_axis(len(shape), axis)
    return features.reshape([1 if i == place else length for i, length in enumerate(shape)])


def _output_axis(ndim: int, axis: int) -> int:
    return {2: 1 - axis, 3: 3 - axis}.get(ndim, 0)


@dataclass(frozen=True)
class FeatureLayout:
    """A stored tensor as matrices of torch rows x columns below each other, in the file's order.

    `across`: a feature is a column of one matrix, its MAV the mean over the rows; else it is a row.
    """

    matrices: int
    rows: int
    columns: int
    across: bool

    @property
    def features(self) -> int:
        """Number of features of all matrices."""
        return self.matrices * (self.columns if self.across else self.rows)

    @property
    def width(self) -> int:
        """Number of values of a feature."""
        return self.rows if self.across else self.columns


def feature_layout(shape: Sequence[int], axis: int | None) -> FeatureLayout:
    """Return the layout of a tensor of `shape` whose `input_axis` is `axis`."""
    size = math.prod(shape)
    if axis is None:
        columns = shape[-1] if shape else 1
        return FeatureLayout(1, size // columns if columns else 0, columns, across=False)
    output = _output_axis(len(shape), axis)
    if output == len(shape) - 1:  # [in, out] and [experts, in, out]
        return FeatureLayout(1, math.prod(shape[:-1]), shape[-1], across=False)
    if output == 0:
        return FeatureLayout(1, shape[0], math.prod(shape[1:]), across=True)
    return FeatureLayout(shape[0], shape[1], shape[2], across=True)
