"""One output tensor as coefficients over stored tensors: its identity, and its content.

A `TensorMix` is hashable and goes through JSON. No tensor is held whole (except an adapter's
change): content is read and computed a block of rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import TypeAdapter

from layerswap_method.checkpoint.checkpoint import (
    Checkpoint,
    is_buffer,
    is_head,
    is_table,
    read_checkpoint,
)
from layerswap_method.checkpoint.compatible import extra_tensors, merge_warnings, ties
from layerswap_method.checkpoint.config import FURTHER_LAYERS
from layerswap_method.checkpoint.lora import other_base, read_changes
from layerswap_method.checkpoint.low_rank import LowRankChange
from layerswap_method.checkpoint.settings import generation_notes
from layerswap_method.checkpoint.stored import (
    FLOATS,
    StoredTensor,
    open_stored,
    read_into,
    row_blocks,
    torch_dtype,
)
from layerswap_method.deltas.features import feature_layout, spread_features
from layerswap_method.frozen import Frozen
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.recipe.references import Model
from layerswap_method.tensor_names import Decoder

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


class Buffers:
    """Memory in which one thread computes a block of values, made once and used again."""

    block = 1 << 17
    """Values that are read and computed at a time: with their sum they stay in a core's cache."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self._device = device
        self._memory: dict[tuple[str, str], torch.Tensor] = {}

    def take(
        self, use: str, dtype: torch.dtype, count: int, device: str | torch.device | None = None
    ) -> torch.Tensor:
        """Return a flat tensor of `count` values, which is overwritten when `use` is taken anew."""
        import torch

        place, nbytes = device or self._device, count * dtype.itemsize
        memory = self._memory.get((use, str(place)))
        if memory is None or len(memory) < nbytes:
            room = max(count, self.block) * dtype.itemsize
            memory = torch.empty(room, dtype=torch.uint8, device=place)
            self._memory[use, str(place)] = memory
        return memory[:nbytes].view(dtype)

    def read(self, opened: IO[bytes], stored: StoredTensor, first: int, out: torch.Tensor) -> None:
        """Fill `out` with stored values from `first` on; `opened` is the tensor's `open_stored`."""
        on_cpu = out.device.type == "cpu"
        host = out if on_cpu else self.take("host", out.dtype, out.numel(), "cpu")
        read_into(opened, stored, first * stored.itemsize, memory_of(host))
        if not on_cpu:
            out.copy_(host)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a flat, contiguous tensor on the CPU, which can be written."""
    import torch

    return tensor.view(torch.uint8).numpy().data


class MixReader:
    """The content of one `TensorMix`, computed block by block.

    `shape`, `dtype` (torch's) and `nbytes` are those of the result. Values do not depend on where
    blocks begin; every operation rounds as in `average.weighted_average`. Several threads may call
    `fill` at once, each with its own buffers, unless `has_changes`.
    """

    def __init__(self, mix: TensorMix, device: str = "cpu") -> None:
        self._mix, self._device = mix, device
        self._deltas: dict[int, torch.Tensor] = {}
        self._buffers = Buffers(device)
        self._first = None if mix.mask is None else _spread_mask(mix.mask, mix.shape)
        self.shape = mix.shape
        self.dtype = torch_dtype(mix.dtype or mix.sum_dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        if any(term.stored.shape != self.shape for term in mix.terms):
            raise ValueError(f"shapes differ: {[term.stored.shape for term in mix.terms]}")

    @property
    def has_changes(self) -> bool:
        """Return whether an adapter is added: its whole product is computed at the first block."""
        return any(term.change is not None for term in self._mix.terms)

    @property
    def work_bytes(self) -> int:
        """Return the bytes of the tensor and of the products of its adapters."""
        changes = sum(term.change is not None for term in self._mix.terms)
        return self.nbytes + changes * math.prod(self.shape) * 4

    @property
    def is_wide(self) -> bool:
        """Return whether anything is float64."""
        names = {name for term in self._mix.terms for name in (term.dtype, term.stored.torch_name)}
        return "float64" in names | {self._mix.load_dtype, self._mix.dtype}

    def read(self) -> torch.Tensor:
        """Return the tensor on CPU; it is the caller's. Raises as `stored.read_rows`."""
        return self._rows(0, self._mix.terms[0].stored.rows).view(self.shape)

    def blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield first row and content of each block of rows; see `read`."""
        for block in row_blocks(self.shape):
            yield block.start, self._rows(block.start, block.stop)

    def fill(self, out: torch.Tensor, first: int = 0, buffers: Buffers | None = None) -> None:
        """Write values, in the order of memory from `first` on, over a flat, contiguous tensor.

        They are cast to its dtype. `buffers` are those of this thread, on the device of `out`, or
        else the reader's own. Raises as `stored.read_rows`.
        """
        import torch

        buffers = buffers or self._buffers
        with torch.inference_mode(), ExitStack() as files:
            opened = [files.enter_context(open_stored(term.stored)) for term in self._mix.terms]
            if self.has_changes and not self._deltas:
                self._multiply(buffers)
            for start in range(0, out.numel(), buffers.block):
                part, at = out[start : start + buffers.block], first + start
                if self._mix.copy_of is not None and part.dtype == self.dtype:
                    buffers.read(opened[0], self._mix.copy_of, at, part)
                else:
                    self._compute(opened, part, at, buffers)

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        import torch

        shape = (stop - start, *self.shape[1:])
        rows = torch.empty(shape, dtype=self.dtype, device=self._device)
        self.fill(rows.view(-1), start * math.prod(self.shape[1:]))
        return rows.cpu()

    def _multiply(self, buffers: Buffers) -> None:
        """Compute the products of adapters, whole and on the CPU.

        A GPU, or a part of the rows, would round them otherwise.
        """
        import torch

        for position, term in enumerate(self._mix.terms):
            if term.change is not None:
                compute = torch.promote_types(torch_dtype(term.dtype), torch.float32)
                size = math.prod(self.shape)
                memory = buffers.take(f"change {position}", compute, size, "cpu")
                self._deltas[position] = term.change.read(compute, memory).reshape(-1)

    def _compute(
        self, opened: Sequence[IO[bytes]], out: torch.Tensor, at: int, buffers: Buffers
    ) -> None:
        """Write what is no copy over one block; values begin `at` a place in the tensor."""
        import torch

        mix, count = self._mix, out.numel()
        result = out
        if out.dtype != self.dtype:
            result = buffers.take("result", self.dtype, count)
        sum_dtype = torch_dtype(mix.sum_dtype)
        is_wide = torch.float64 in (sum_dtype, self.dtype)
        compute = torch.float64 if is_wide else torch.float32
        if self._first is not None:
            total = buffers.take("total", sum_dtype, count)
            total.copy_(self._values(1, opened[1], at, count, buffers))
            others = buffers.take("term", sum_dtype, count)
            others.copy_(self._values(0, opened[0], at, count, buffers))
            first = self._first_of(at, count, out.device)
            result.copy_(torch.where(first, others, total, out=total))
        elif len(mix.terms) == 1:
            result.copy_(self._values(0, opened[0], at, count, buffers))
        else:
            total = buffers.take("total", compute, count)
            for position, term in enumerate(mix.terms):
                wide = total if position == 0 else buffers.take("term", compute, count)
                wide.copy_(self._values(position, opened[position], at, count, buffers))
                if term.coefficient != 1:
                    wide.mul_(term.coefficient)  # apart from the sum: `alpha=` would fuse them
                if position:
                    total.add_(wide)
            divisor = math.fsum(term.coefficient for term in mix.terms)
            # By a tensor on the device: by a plain number a GPU multiplies with the inverse.
            result.copy_(total.div_(total.new_full((), divisor)))
        if mix.factor != 1:
            result.mul_(mix.factor)
        if result is not out:
            out.copy_(result)

    def _values(
        self, position: int, opened: IO[bytes], at: int, count: int, buffers: Buffers
    ) -> torch.Tensor:
        """Return values of one term as they enter the sum, in a buffer."""
        term = self._mix.terms[position]
        values = buffers.take("stored", torch_dtype(term.stored.torch_name), count)
        buffers.read(opened, term.stored, at, values)
        if (dtype := torch_dtype(term.dtype)) != values.dtype:
            values = buffers.take("cast", dtype, count).copy_(values)
        if position in self._deltas:
            values.add_(self._deltas[position][at : at + count].to(values.device))
        if (loaded := torch_dtype(self._mix.load_dtype or term.dtype)) != values.dtype:
            values = buffers.take("loaded", loaded, count).copy_(values)
        return values

    def _first_of(self, at: int, count: int, device: torch.device) -> torch.Tensor:
        """Return whether values are the first term's."""
        assert self._first is not None
        width = math.prod(self.shape[1:])
        rows = slice(at // width, -(-(at + count) // width))
        first = self._first if len(self._first) == 1 else self._first[rows]
        spread = first.to(device).expand(rows.stop - rows.start, *self.shape[1:]).reshape(-1)
        return spread[at - rows.start * width :][:count]


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


@dataclass(frozen=True)
class Merge:
    """A merged model, not written yet: every tensor by what it is made of.

    `tensors` are in the order of the first expert's files. `donor` is the folder whose config and
    tokenizer the merged model has, `dtype` the torch dtype in which an engine runs it (None where
    nothing states it). `record` is the content of the plan file ({} writes none), `lines` are for
    log and card, `plan` has the source of every decoder layer, where the method has one. `config`
    has what the merge's config says otherwise than the donor's, where that states it.
    """

    tensors: Mapping[str, TensorMix] = field(repr=False)
    donor: Path
    dtype: str | None
    record: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    plan: LayerPlan | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> dict[Path, Any]:
        """Return every file of weights that is read -> its state when its header was read."""
        terms = (term for mix in self.tensors.values() for term in mix.terms)
        return {stored.file: stored.stamp for term in terms for stored in term.all_stored}

    @property
    def ranges(self) -> dict[Path, list[tuple[int, int]]]:
        """Return every file of weights that is read -> the byte ranges of it that are."""
        ranges: dict[Path, list[tuple[int, int]]] = {}
        for mix in self.tensors.values():
            for term in mix.terms:
                for stored in term.all_stored:
                    ranges.setdefault(stored.file, []).append(stored.span)
        return ranges


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
        config=further_layer_settings(donor.checkpoint.decoder, mixes),
    )


def further_layer_settings(decoder: Decoder, names: Iterable[str]) -> Mapping[str, Any]:
    """Return the settings of a merge's config whose tensors may lack layers for further tokens.

    A donor's config states how many of these layers there are, also where no model stores them.
    """
    has_further = any(decoder.predicts_further(name) for name in names)
    return {} if has_further else dict.fromkeys(FURTHER_LAYERS, 0)
