"""An expert and its base, tensor by tensor: delta = expert - base.

Only headers are read when a pair is opened, and a small sample of the weights that tells whether
the base is the base. Everything is computed in float32 (float64 where a file holds that, then
rounded). An adapter's change is added in float32 and not rounded to the checkpoint's dtype: a
merged bf16 copy would have lost much of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from layerswap_method.checkpoint.checkpoint import is_buffer, is_head, read_checkpoint
from layerswap_method.checkpoint.compatible import own_problems, pair_problems, ties
from layerswap_method.checkpoint.lora import LowRankChange, read_changes
from layerswap_method.checkpoint.stored import (
    FLOATS,
    StoredTensor,
    read_rows,
    row_blocks,
    torch_dtype,
)
from layerswap_method.deltas.features import FeatureLayout, feature_layout, input_axis
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import Model

_SAMPLED_TENSORS, _SAMPLED_VALUES = 16, 1 << 16

UNRELATED = 0.7
"""||delta|| / ||base|| from which the base is not the base: of two unrelated models it is about
1.4, of fine-tunes far below 0.5."""


class DeltaBlock(NamedTuple):
    """Consecutive rows of a tensor, as [rows, columns] of its `FeatureLayout`.

    `first` is the number of the first row, counted through all matrices of the tensor. `expert`
    (without an adapter's change) and `base` are in the dtypes of the files. `delta` is expert minus
    base, float32, an adapter's change included; the caller may change it.
    """

    first: int
    expert: torch.Tensor
    base: torch.Tensor
    delta: torch.Tensor


@dataclass(frozen=True)
class DeltaPair:
    """An expert and its base that hold the same tensors.

    `expert` and `base` are their names; (text) `model_type`, `architecture`, `folder` and
    `num_layers` are the base's. `names` are the weights that both hold, in the order of the base's
    files, without buffers; `changes` are what the expert's adapter adds, by name.
    """

    expert: str
    base: str
    model_type: str
    architecture: str
    folder: Path
    num_layers: int | None
    names: tuple[str, ...]
    expert_tensors: Mapping[str, StoredTensor]
    base_tensors: Mapping[str, StoredTensor]
    changes: Mapping[str, LowRankChange]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in the base."""
        return self.base_tensors[name].shape

    def expert_dtype(self, name: str) -> torch.dtype | None:
        """Return the dtype that the expert was rounded to; None where an adapter is added."""
        if name in self.changes:
            return None
        return torch_dtype(self.expert_tensors[name].torch_name)

    def axis(self, name: str) -> int | None:
        """Return the tensor's `input_axis`."""
        return input_axis(name, len(self.shape(name)), self.model_type)

    def layout(self, name: str) -> FeatureLayout:
        """Return how the tensor's features run."""
        return feature_layout(self.shape(name), self.axis(name))

    @cached_property
    def identity(self) -> object:
        """What tells the pair from every other: files with their states, and their rows."""
        sides = (self.expert_tensors.values(), self.base_tensors.values())
        stored = (frozenset((each.file, each.stamp) for each in side) for side in sides)
        # Names and rows follow from the configs as well, and files may be links of several models.
        return (self.model_type, self.names, *stored, frozenset(self.changes.items()))


def open_pair(expert: Model, base: Model) -> DeltaPair:
    """Return an expert (a checkpoint, or an adapter on one) and its base, a checkpoint.

    Raises `InputError` with every problem of the first kind: files that do not read, quantised
    weights, tensors that one side lacks, other shapes or vocabularies, an adapter of another model;
    or a base that is not the expert's.
    """
    if base.adapter is not None:
        raise InputError(f"{base.name}: the base has an adapter; merge it into a folder first")
    ours, theirs = (read_checkpoint(each.name, each.folder) for each in (expert, base))
    problems = [*own_problems(theirs), *own_problems(ours)]
    problems += pair_problems(theirs, ours, by_feature=True)
    InputError.raise_any("delta", problems)
    changes = {} if expert.adapter is None else read_changes(expert.adapter, ours)
    # The copy that an adapter is merged into is saved without a tied output embedding.
    without_head = expert.adapter is not None and ties(ours, theirs)
    pair = DeltaPair(
        expert=expert.name,
        base=base.name,
        folder=base.folder,
        model_type=theirs.config.text_type,
        architecture=theirs.config.architecture,
        num_layers=theirs.num_layers,
        names=tuple(
            name
            for name, tensor in theirs.tensors.items()
            if name in ours.tensors
            and not is_buffer(name)
            and not (without_head and is_head(name))
            and tensor.dtype in FLOATS
        ),
        expert_tensors=ours.tensors,
        base_tensors=theirs.tensors,
        changes=changes,
    )
    _check_related(pair)
    return pair


def read_deltas(pair: DeltaPair, name: str, values: int | None = None) -> Iterator[DeltaBlock]:
    """Yield the blocks of one tensor, never of two of its matrices at once.

    It ends after about so many `values`; None reads the whole tensor.
    """
    layout = pair.layout(name)
    shape = (layout.matrices * layout.rows, layout.columns)
    ours = replace(pair.expert_tensors[name], shape=shape)
    theirs = replace(pair.base_tensors[name], shape=shape)
    change = pair.changes.get(name)
    factors = None if change is None else change.factors()
    last = shape[0] if values is None else min(shape[0], values // max(1, layout.columns) + 1)
    for start in range(0, last, max(1, layout.rows)):
        for block in row_blocks(shape, slice(start, min(start + layout.rows, last))):
            expert, base = read_rows(ours, block), read_rows(theirs, block)
            if torch.float64 in (expert.dtype, base.dtype):
                delta = (expert.double() - base.double()).float()
            else:
                delta = expert.to(torch.float32, copy=True).sub_(base)
            if factors is not None:
                delta.addmm_(factors[0][block], factors[1])
            yield DeltaBlock(block.start, expert, base, delta)


def not_finite(pair: DeltaPair, name: str) -> InputError:
    """Return the error for a tensor whose delta is not finite: whose fault it is and how much."""
    for side, tensors in ((pair.expert, pair.expert_tensors), (pair.base, pair.base_tensors)):
        stored = tensors[name]
        bad = sum(
            int((~read_rows(stored, block).isfinite()).sum()) for block in row_blocks(stored.shape)
        )
        if bad:
            return InputError(
                f"{side}: {bad} of {math.prod(stored.shape)} values of {name} are NaN or infinite; "
                "the checkpoint is damaged or its training diverged"
            )
    if name in pair.changes:
        return InputError(f"{pair.expert}: the change of {name} is not finite; check its adapter")
    return InputError(
        f"{pair.expert}: {name} holds values whose squares leave float32's range; the checkpoint "
        "is damaged or its training diverged"
    )


def _check_related(pair: DeltaPair) -> None:
    """Raise where a sample of the matrices has a delta as large as the weights."""
    matrices = [name for name in pair.names if len(pair.shape(name)) >= 2]
    change = weight = 0.0
    for name in matrices[:: max(1, len(matrices) // _SAMPLED_TENSORS)]:
        for block in read_deltas(pair, name, _SAMPLED_VALUES):
            change += float(block.delta.double().square().sum())
            weight += float(block.base.double().square().sum())
    # What is not finite is another fault, which whoever reads all of it names.
    if math.isfinite(change) and weight > 0 and change >= UNRELATED**2 * weight:
        ratio = (change / weight) ** 0.5
        raise InputError(
            f"{pair.base} is not the base of {pair.expert}: the deltas are as large as the weights "
            f"(||delta|| / ||weights|| = {ratio:.2f} in a sample; a fine-tuned model is far below "
            f"{UNRELATED}); give the checkpoint that the expert was trained from"
        )
