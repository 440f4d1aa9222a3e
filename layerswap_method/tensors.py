"""One output tensor as coefficients over stored tensors: its identity, and its content.

A `TensorMix` is hashable and goes through JSON. No tensor is held whole (except an adapter's
change): content is read and computed a block of rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from layerswap_method.average import weighted_average
from layerswap_method.checkpoint.checkpoint import (
    Checkpoint,
    is_buffer,
    is_head,
    is_table,
    read_checkpoint,
)
from layerswap_method.checkpoint.compatible import extra_tensors, merge_warnings, ties
from layerswap_method.checkpoint.config import FURTHER_LAYERS
from layerswap_method.checkpoint.lora import LowRankChange, other_base, read_changes
from layerswap_method.checkpoint.settings import generation_notes
from layerswap_method.checkpoint.stored import (
    FLOATS,
    StoredTensor,
    read_rows,
    row_blocks,
    torch_dtype,
)
from layerswap_method.deltas.features import feature_layout, spread_features
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.document import Merge
from layerswap_method.recipe.references import Model

if TYPE_CHECKING:
    import torch


class Term(Frozen):
    """One stored tensor as it enters a mix: `cast` to a torch dtype, then an adapter's `change`."""

    stored: StoredTensor
    coefficient: float = 1.0
    cast: str | None = None
    change: LowRankChange | None = None

    @property
    def all_stored(self) -> tuple[StoredTensor, ...]:
        """Return every stored tensor that is read for the term."""
        change = self.change
        return (self.stored, change.down, change.up) if change else (self.stored,)

    @property
    def dtype(self) -> str:
        """Return the torch dtype of the tensor as it enters the mix."""
        return self.cast or self.stored.torch_name


class FeatureMask(Frozen):
    """Which features of a tensor are the first term's; the others are the second's.

    `first` is one bit a feature (in the order of `deltas.features.FeatureLayout`), packed, in
    hexadecimal; `axis` is that of the input features (`deltas.features.input_axis`).
    """

    first: str
    axis: int | None


class TensorMix(Frozen):
    """One output tensor, ``sum_k(coefficient_k * term_k) / sum_k(coefficient_k)``, times `factor`.

    Every term is rounded to `load_dtype` before the sum (None keeps theirs), the result to `dtype`
    (None: the promoted terms'). Another factor than 1 serves to test an engine. With a `mask`
    every feature is one of two terms', and there is no sum. Equal mixes are equal bytes.
    """

    terms: tuple[Term, ...]
    load_dtype: str | None = None
    dtype: str | None = None
    factor: float = 1.0
    mask: FeatureMask | None = None

    @property
    def copy_of(self) -> StoredTensor | None:
        """Return the stored tensor whose bytes these are; None where something is computed."""
        term = self.terms[0]
        changes = (term.cast, term.change, self.load_dtype, self.dtype)
        is_plain = len(self.terms) == 1 and self.factor == 1 and changes == (None,) * 4
        return term.stored if is_plain else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        return self.terms[0].stored.shape

    @property
    def sum_dtype(self) -> str:
        """Return the torch dtype of the terms; torch promotes theirs where they differ."""
        names = {self.load_dtype or term.dtype for term in self.terms}
        if len(names) == 1:
            return names.pop()
        import torch

        promoted = reduce(torch.promote_types, map(torch_dtype, names))
        return str(promoted).removeprefix("torch.")


MIXES = TypeAdapter(dict[str, TensorMix])
"""Tensor name -> mix, to and from JSON."""


class MixReader:
    """The content of one `TensorMix`, in blocks of rows (ranges of the first dimension).

    `shape`, `dtype` (torch's) and `nbytes` are those of the result.
    """

    def __init__(self, mix: TensorMix, device: str = "cpu") -> None:
        self._mix, self._device = mix, device
        self._deltas: dict[int, torch.Tensor] = {}
        self._first = None if mix.mask is None else _spread_mask(mix.mask, mix.shape)
        self._sum_dtype = torch_dtype(mix.sum_dtype)
        self.shape = mix.shape
        self.dtype = torch_dtype(mix.dtype or mix.sum_dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> torch.Tensor:
        """Return the tensor on CPU; it is the caller's. Raises as `stored.read_rows`."""
        return self._rows(0, self._mix.terms[0].stored.rows).view(self.shape)

    def blocks(self, rows: slice = slice(None)) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield first row and content of each block of `rows` (in steps of 1); see `read`."""
        for block in row_blocks(self.shape, rows):
            yield block.start, self._rows(block.start, block.stop)

    def copy_to(self, target: torch.Tensor, window: Sequence[slice] = ()) -> None:
        """Write the tensor, or a window of the target's shape, over `target`, cast to its dtype.

        The window is a range in steps of 1 for each of the first dimensions. See `read`.
        """
        rows, *others = window or (slice(None),)
        place = target if self.shape else target.view(1)
        begin = rows.indices(self._mix.terms[0].stored.rows)[0]
        for first, block in self.blocks(rows):
            start = first - begin
            place[start : start + len(block)].copy_(block[(slice(None), *others)])

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        import torch

        mix = self._mix
        tensors = [self._term_rows(position, start, stop) for position in range(len(mix.terms))]
        if self._first is not None:
            first = self._first if len(self._first) == 1 else self._first[start:stop]
            given, base = tensors
            return torch.where(first.to(self._device), given, base).to(self.dtype).cpu()
        coefficients = [term.coefficient for term in mix.terms]
        average = weighted_average(tensors, coefficients, self.dtype)
        return (average if mix.factor == 1 else average * mix.factor).cpu()

    def _term_rows(self, position: int, start: int, stop: int) -> torch.Tensor:
        """Return rows of one term as they enter the sum, on the device."""
        import torch

        term = self._mix.terms[position]
        dtype = torch_dtype(term.dtype)
        tensor = read_rows(term.stored, slice(start, stop)).to(dtype)
        if term.change is not None:
            # Whole and on the CPU: a GPU, or a part of the rows, would round its product otherwise.
            if position not in self._deltas:
                compute = torch.promote_types(dtype, torch.float32)
                self._deltas[position] = term.change.read(compute)
            tensor.add_(self._deltas[position][start:stop])
        loaded = torch_dtype(self._mix.load_dtype or term.dtype)
        return tensor.to(self._device).to(loaded).to(self._sum_dtype)


def _spread_mask(mask: FeatureMask, shape: Sequence[int]) -> torch.Tensor:
    """Return whether the values are the first term's, in a shape that broadcasts to `shape`."""
    import numpy as np
    import torch

    packed = np.frombuffer(bytes.fromhex(mask.first), dtype=np.uint8)
    count = feature_layout(shape, mask.axis).features
    first = torch.from_numpy(np.unpackbits(packed, count=count).astype(bool))
    return spread_features(first, shape or (1,), mask.axis)


class LazyModel(Frozen):
    """A checkpoint with its adapter, whose `changes` are added to tensors when they are read."""

    checkpoint: Checkpoint
    adapter: Path | None = None
    changes: Mapping[str, LowRankChange] = {}

    @classmethod
    def read(cls, model: Model) -> LazyModel:
        """Return the headers of a model on this machine."""
        checkpoint = read_checkpoint(model.name, model.folder)
        if model.adapter is None:
            return cls(checkpoint=checkpoint)
        changes = read_changes(model.adapter, checkpoint)
        if ties(checkpoint) and checkpoint.head is not None:
            # peft saves the copy that an adapter is merged into without a tied head.
            left = {name: at for name, at in checkpoint.tensors.items() if not is_head(name)}
            checkpoint = Checkpoint(checkpoint.name, checkpoint.path, checkpoint.config, left)
        return cls(checkpoint=checkpoint, adapter=model.adapter, changes=changes)

    def stored(self, name: str) -> StoredTensor:
        """Return the place of a tensor; of a tied output embedding, that of what it is tied to."""
        tensors = self.checkpoint.tensors
        if is_head(name) and name not in tensors:
            name = self.checkpoint.embedding or name
        return tensors[name]

    def term(self, name: str, coefficient: float = 1.0) -> Term:
        """Return the tensor `name` as a term of a mix.

        peft adds an adapter to a model that transformers loaded in one dtype: that of the first
        stored tensor, whatever the config says. Biases of routers stay in theirs.
        """
        stored = self.stored(name)
        is_cast = self.adapter is not None and stored.dtype in FLOATS
        is_cast = is_cast and not name.endswith("e_score_correction_bias")
        cast = self.checkpoint.first_float if is_cast else None
        return Term(
            stored=stored,
            coefficient=coefficient,
            cast=None if cast == stored.torch_name else cast,
            change=self.changes.get(stored.name),
        )

    def copy_mix(self, name: str, dtype: str | None, out_dtype: str | None = None) -> TensorMix:
        """Return the tensor `name` as it is, cast; a cast to its own dtype is none."""
        term = self.term(name)
        if is_table(term.stored):
            return TensorMix(terms=(term,))
        load = None if dtype == term.dtype else dtype
        result = out_dtype or dtype
        result = None if result == (load or term.dtype) else result
        return TensorMix(terms=(term,), load_dtype=load, dtype=result)


def build_merge(
    models: Sequence[LazyModel],
    make: Callable[[str], TensorMix],
    donor: LazyModel,
    dtype: str | None,
    rows_from: Collection[str] | None = None,
    base: Checkpoint | None = None,
) -> Merge:
    """Return the merge whose tensors `make` describes by their names.

    It has every weight that any of the models stores, except a tied output embedding; of the
    `extra_tensors`, and of tables, it has the donor's. `dtype`, `rows_from` and `base` are as in
    `checkpoint.compatible.merge_warnings`. One model has its config's dtype.
    """
    checkpoints = [model.checkpoint for model in models]
    heads = filter(None, (checkpoint.head for checkpoint in checkpoints))
    names = dict.fromkeys([*checkpoints[0].tensors, *heads])
    extra, stored = set(extra_tensors(checkpoints)), donor.checkpoint.tensors
    copied = {name for name, at in stored.items() if name in extra or is_table(at)}
    mixes = {
        name: donor.copy_mix(name, dtype) if name in copied else make(name)
        for name in (*names, *sorted(copied - names.keys()))
        if not is_buffer(name) and (name in copied or name not in extra)
    }
    decoder = donor.checkpoint.decoder
    has_further = any(decoder.predicts_further(name) for name in mixes)
    warnings = merge_warnings(checkpoints, dtype=dtype, rows_from=rows_from, base=base)
    weights = (mix for mix in mixes.values() if not is_table(mix.terms[0].stored))
    kinds = {mix.dtype or mix.sum_dtype for mix in weights}
    common = kinds.pop() if len(models) > len(kinds) == 1 else donor.checkpoint.dtype
    bases = (other_base(m.adapter, m.checkpoint) for m in models if m.adapter is not None)
    return Merge(
        {n: mix for n, mix in mixes.items() if any(term.stored.name == n for term in mix.terms)},
        donor=donor.checkpoint.path,
        dtype=dtype or common,
        lines=tuple(generation_notes(checkpoints, donor.checkpoint)),
        warnings=(*warnings, *filter(None, bases)),
        config={} if has_further else dict.fromkeys(FURTHER_LAYERS, 0),
    )
