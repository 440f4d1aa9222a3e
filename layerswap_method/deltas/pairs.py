"""An expert and its base, tensor by tensor: delta = expert - base. Knows files and adapters.

Not what is made of the deltas (profiles, weights, reverts). Only headers are read when a pair is
opened, and a small sample of the weights that tells whether the base is the base. Everything is
computed in float32 (float64 where a file holds that, then rounded). An adapter's change is added
in float32 and not rounded to the checkpoint's dtype: a merged bf16 copy would have lost much of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from layerswap_method.adapters import read_changes
from layerswap_method.checkpoints import Checkpoint, is_buffer
from layerswap_method.deltas.pairing import pairing_problems, read_sides
from layerswap_method.deltas.passes import Block, Segment, read_blocks, run_pass, segments_of
from layerswap_method.deltas.rows import RowLayout, input_axis, row_layout
from layerswap_method.errors import InputError
from layerswap_method.mixes import LowRankChange
from layerswap_method.stored import StoredTensor, open_stored, read_span, stored_tensors

if TYPE_CHECKING:
    from layerswap_method.streams import StreamInput

UNRELATED = 0.7
"""||delta|| / ||base|| from which the base is not the base: of two unrelated models it is about
1.4, of fine-tunes far below 0.5."""

_SAMPLED_TENSORS, _SAMPLED_VALUES = 16, 1 << 16


@dataclass(frozen=True)
class DeltaPair:
    """An expert and its base that hold the same tensors."""

    expert: str
    """For messages."""

    base: str
    """For messages."""

    model_type: str
    """Of the base's config, the text model's where there are several."""

    architecture: str
    """Class name in the base's config."""

    folder: Path
    """The base's checkpoint."""

    num_layers: int | None
    """Decoder layers; None where the config does not say."""

    names: tuple[str, ...]
    """Every weight that both hold, in the order of the base's files; buffers are left out."""

    expert_tensors: Mapping[str, StoredTensor]
    """Name -> place in the expert's checkpoint."""

    base_tensors: Mapping[str, StoredTensor]
    """Name -> place in the base."""

    changes: Mapping[str, LowRankChange]
    """Name -> what the expert's adapter adds; empty without one."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.base_tensors[name].shape

    def expert_dtype(self, name: str) -> torch.dtype | None:
        """Return the dtype that the expert was rounded to; None where an adapter is added."""
        return None if name in self.changes else self.expert_tensors[name].dtype

    def grid_dtype(self, name: str) -> torch.dtype | None:
        """Return the 16-bit dtype that the expert was rounded to; None for a wider one."""
        dtype = self.expert_dtype(name)
        return dtype if dtype in (torch.bfloat16, torch.float16) else None

    def axis(self, name: str) -> int | None:
        """Return the tensor's `input_axis`."""
        return input_axis(name, len(self.shape(name)), self.model_type)

    def layout(self, name: str) -> RowLayout:
        """Return how the tensor's rows run."""
        return row_layout(self.shape(name), self.axis(name))

    def read(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (delta, base) of one whole tensor, both float32, in its shape.

        Raises:
            InputError: if a file is gone, cut short, or was written anew since the pair was
                opened.
        """
        shape = self.shape(name)
        deltas, bases = [], []
        for segment in self.segments(name):
            for block in self.blocks(segment):
                deltas.append(block.delta.clone())
                bases.append(block.wide_base.clone())
        if not deltas:
            return torch.zeros(shape), torch.zeros(shape)
        return torch.cat(deltas).reshape(shape), torch.cat(bases).reshape(shape)

    def segments(self, name: str) -> list[Segment]:
        """Return the tensor's lines in runs that are worth a task of their own."""
        return segments_of(self, name)

    def blocks(self, segment: Segment) -> Iterator[Block]:
        """Yield the blocks of a segment in order; each one's memory is that of the one before.

        Raises:
            InputError: as `read`.
        """
        for (block,) in read_blocks((self,), segment):
            yield block

    def change_factors(self, name: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return an adapter's change of a tensor as (left, right), float32; None for no change.

        ``left @ right`` is the change in the order of the file.
        """
        change = self.changes.get(name)
        if change is None:
            return None
        stored = self._adapter_tensors[change.file]
        down, up = (_read_whole(stored[key]).float() for key in (change.down, change.up))
        up = up * change.scaling
        return (down.T, up.T.contiguous()) if change.transposed else (up, down)

    @cached_property
    def identity(self) -> object:
        """Return what tells the pair from every other: files with their dates, and their rows."""
        sides = (self.expert_tensors.values(), self.base_tensors.values())
        stored = (frozenset((each.file, each.stamp) for each in side) for side in sides)
        # Names and rows follow from the configs as well, and files may be links of several models.
        return (self.model_type, self.names, *stored, frozenset(self.changes.items()))

    @cached_property
    def _adapter_tensors(self) -> Mapping[Path, Mapping[str, StoredTensor]]:
        files = dict.fromkeys(change.file for change in self.changes.values())
        return {file: stored_tensors(file) for file in files}


def open_pair(
    expert: StreamInput | Path,
    base: StreamInput | Path,
    *,
    allow_unrelated: bool = False,
) -> DeltaPair:
    """Return an expert and its base, checked against each other.

    Args:
        expert: a checkpoint's folder, or a `StreamInput` (name, folder, adapter).
        base: likewise; without an adapter.
        allow_unrelated: let deltas as large as the weights pass.

    Raises:
        InputError: with every problem of the first kind found: files that do not read, quantised
            weights, tensors that one side lacks, other shapes or vocabularies, an adapter of
            another model; or a base that is not the expert's.
    """
    mine, own = _side(expert), _side(base)
    if own.adapter is not None:
        raise InputError(f"{own.name}: the base has an adapter; merge it into a folder first")
    other, checkpoint, config = read_sides((mine.name, mine.folder), (own.name, own.folder))
    if problems := list(pairing_problems(other, checkpoint)):
        raise InputError.from_problems("delta", problems)
    changes = (
        {} if mine.adapter is None else read_changes(mine.adapter, other.shapes, config.model_type)
    )
    theirs, ours = _places(checkpoint), _places(other)
    pair = DeltaPair(
        expert=mine.name,
        base=own.name,
        folder=own.folder,
        model_type=config.text_type,
        architecture=checkpoint.architecture,
        num_layers=checkpoint.num_layers,
        names=tuple(n for n in theirs if n in ours and theirs[n].dtype.is_floating_point),
        expert_tensors=ours,
        base_tensors=theirs,
        changes=changes,
    )
    if not allow_unrelated:
        _check_related(pair)
    return pair


def mean_row_mav(
    pair: DeltaPair, progress: Callable[[Sequence[str]], Iterable[str]] = iter
) -> float:
    """Return the average MAV for all rows in all deltas of an expert (section 5.1).

    "The resulting weight of each expert is the inverse of the average MAV for all rows in all
    W_delta for that expert." Pooled are all rows (`layerswap_method.deltas.rows`) of all
    parameters, one- and two-dimensional, inside and outside the decoder layers, each row once
    whatever its length; buffers are left out, a tied embedding counts once. The sum runs in
    float64.

    Args:
        pair: the expert and its base.
        progress: yields the names it is given, and may count them for a bar.

    Raises:
        InputError: as `DeltaPair.read`, or for weights that are not finite.
    """
    total, count = 0.0, 0

    def absolute(segment: Segment) -> float:
        # A tensor's rows are equally long, so the sum of their means is the sum of all its values
        # over the length of a row.
        return math.fsum(float(block.delta.abs_().sum()) for block in pair.blocks(segment))

    with closing(run_pass((pair,), progress(pair.names), absolute)) as parts:
        for segment, values in parts:
            if not math.isfinite(values):
                raise not_finite(pair, segment.name)
            layout = pair.layout(segment.name)
            length = layout.lines if layout.across else layout.columns
            total += values / length
            if segment.start == 0:
                count += layout.features
    if not count:
        raise InputError(f"{pair.expert} and {pair.base} hold no weights in common")
    return total / count


def not_finite(pair: DeltaPair, name: str) -> InputError:
    """Return the error for a tensor whose delta is not finite: whose fault it is and how much."""
    for side, tensor in ((pair.expert, pair.expert_tensors), (pair.base, pair.base_tensors)):
        values = _read_whole(tensor[name])
        if bad := int((~torch.isfinite(values)).sum()):
            return InputError(
                f"{side}: {bad} of {values.numel()} values of {name} are NaN or infinite; the "
                "checkpoint is damaged or its training diverged"
            )
    if name in pair.changes:
        return InputError(f"{pair.expert}: the change of {name} is not finite; check its adapter")
    return InputError(
        f"{pair.expert}: {name} holds values whose squares leave float32's range; the checkpoint "
        "is damaged or its training diverged"
    )


@dataclass(frozen=True)
class _Side:
    name: str
    folder: Path
    adapter: Path | None


def _side(given: StreamInput | Path) -> _Side:
    if isinstance(given, Path):
        return _Side(str(given), given, None)
    return _Side(given.name, given.folder, given.adapter)


def _places(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    by_file = {
        file: stored_tensors(file.resolve()) for file in dict.fromkeys(checkpoint.files.values())
    }
    return {
        name: by_file[file][name]
        for name, file in checkpoint.files.items()
        if not is_buffer(name) and name in by_file[file]
    }


def _check_related(pair: DeltaPair) -> None:
    """Raise where a sample of the matrices has a delta as large as the weights."""
    matrices = [name for name in pair.names if len(pair.shape(name)) >= 2]
    step = max(1, len(matrices) // _SAMPLED_TENSORS)
    change = weight = 0.0
    for name in matrices[::step]:
        segments = pair.segments(name)
        if not segments:
            continue
        lines = max(1, _SAMPLED_VALUES // pair.layout(name).columns)
        first = segments[0]
        sample = Segment(name, first.start, min(first.stop, first.start + lines))
        for block in pair.blocks(sample):
            # numpy: torch's threads cost more to wake than so few values take
            change += _sum_of_squares(block.delta)
            weight += _sum_of_squares(block.wide_base)
    if weight > 0 and change >= UNRELATED**2 * weight:
        ratio = (change / weight) ** 0.5
        raise InputError(
            f"{pair.base} is not the base of {pair.expert}: the deltas are as large as the weights "
            f"(||delta|| / ||weights|| = {ratio:.2f} in a sample; a fine-tuned model is far below "
            f"{UNRELATED}); give the checkpoint that the expert was trained from"
        )


def _sum_of_squares(values: torch.Tensor) -> float:
    return float(np.square(values.numpy(), dtype=np.float64).sum())


def _read_whole(tensor: StoredTensor) -> torch.Tensor:
    values = torch.empty(tensor.shape, dtype=tensor.dtype)
    with open_stored(tensor) as opened:
        read_span(opened, tensor, 0, values.view(-1))
    return values
