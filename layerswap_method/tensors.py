"""Merges as values: one output tensor as coefficients over stored tensors, and all of a model.

A `TensorMix` is hashable and goes through JSON; `mix_reader.py` computes its content.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from layerswap_method.checkpoint.checkpoint import (
    Checkpoint,
    is_buffer,
    is_head,
    is_integer,
    keeps_dtype,
    read_checkpoint,
)
from layerswap_method.checkpoint.compatible import Checked, extra_tensors
from layerswap_method.checkpoint.config import FURTHER_LAYERS
from layerswap_method.checkpoint.lora import added_elsewhere, other_base, read_changes
from layerswap_method.checkpoint.low_rank import LowRankChange
from layerswap_method.checkpoint.origin import adapter_faults
from layerswap_method.checkpoint.stored import (
    FLOATS,
    STORED_NAMES,
    Stamp,
    StoredTensor,
    torch_dtype,
)
from layerswap_method.checkpoint.tied_heads import ties
from layerswap_method.frozen import Frozen
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.recipe.references import Model
from layerswap_method.tensor_names import Decoder


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
    (None: the promoted terms'). An adapter's change is added in the result's dtype where that is
    wider than the tensor's. Another factor than 1 serves to test an engine. With a `mask`
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
    def result_dtype(self) -> str:
        """Return the torch dtype of the result, which is that of the written tensor."""
        return self.dtype or self.sum_dtype

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


class OpenModel(Frozen):
    """A model whose files are read once, with its adapter, if there is one.

    The adapter's `changes` are added to tensors when they are read.
    """

    checkpoint: Checkpoint
    adapter: Path | None = None
    changes: Mapping[str, LowRankChange] = {}

    @property
    def name(self) -> str:
        """The model's name in messages."""
        return self.checkpoint.name

    @classmethod
    def read(cls, model: Model) -> OpenModel:
        """Open a model on this machine: its config, headers and adapter are read."""
        checkpoint = read_checkpoint(model.name, model.folder, model.adapter)
        if model.adapter is None:
            return cls(checkpoint=checkpoint)
        changes = read_changes(model.adapter, checkpoint)
        if ties(checkpoint) and checkpoint.head is not None:
            # peft saves the copy that an adapter is merged into without a tied head.
            tensors = {n: tensor for n, tensor in checkpoint.tensors.items() if not is_head(n)}
            checkpoint = dataclasses.replace(checkpoint, tensors=tensors)
        return cls(checkpoint=checkpoint, adapter=model.adapter, changes=changes)

    def stored(self, name: str) -> StoredTensor:
        """Return the place of a tensor; of a tied output embedding, that of what it is tied to."""
        tensors = self.checkpoint.tensors
        if is_head(name) and name not in tensors:
            name = self.checkpoint.embedding or name
        return tensors[name]

    def term(self, name: str, coefficient: float = 1.0) -> Term:
        """Return the tensor `name` as a term of a mix.

        An adapter's change is added in the dtype of the config where that is wider: in it
        transformers loads the model that peft changes. Tensors without a change are as stored,
        also where peft's merge would round them.
        """
        stored, dtype = self.stored(name), self.checkpoint.dtype
        change = self.changes.get(stored.name)
        loaded_bytes = FLOATS.get(STORED_NAMES.get(dtype or "", ""), 0)
        is_wider = loaded_bytes > FLOATS.get(stored.dtype, loaded_bytes)
        return Term(
            stored=stored,
            coefficient=coefficient,
            cast=dtype if change is not None and is_wider else None,
            change=change,
        )

    def copy_mix(self, name: str, dtype: str | None, out_dtype: str | None = None) -> TensorMix:
        """Return the tensor `name` as it is, cast; a cast to its own dtype is none."""
        term = self.term(name)
        if is_integer(term.stored):
            return TensorMix(terms=(term,))
        load = None if dtype == term.dtype else dtype
        result = out_dtype or dtype
        result = None if result == (load or term.dtype) else result
        return TensorMix(terms=(term,), load_dtype=load, dtype=result)


@dataclasses.dataclass(frozen=True)
class Merge:
    """A merged model, not written yet: every tensor by what it is made of.

    `tensors` are in the order of the first expert's files. `donor_folder` is that whose config
    (`donor_config`) and tokenizer the merged model has, `dtype` the torch dtype in which an engine
    runs it (None where nothing states it). `record` is the content of the plan file ({} where the
    method has none), `lines` are for log and card, `plan` has the source of every decoder layer,
    where the method has one. `config_changes` are keys of the donor's config with the merge's
    values.
    """

    tensors: Mapping[str, TensorMix] = dataclasses.field(repr=False)
    donor_folder: Path
    dtype: str | None
    donor_config: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    plan: LayerPlan | None = None
    config_changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> dict[Path, Stamp]:
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
    models: Sequence[OpenModel],
    make: Callable[[str], TensorMix],
    dtype: str | None,
    checked: Checked,
    base: Checkpoint | None = None,
) -> Merge:
    """Return the merge whose tensors `make` describes by their names.

    It has every weight that any of the models stores, except a tied output embedding; of the
    `extra_tensors`, and of integers, it has the donor's. `dtype` is the torch dtype that the recipe
    gives it, but for tensors that keep theirs, None that of the files: one model has its config's.
    `base` is what adapters should be trained on.
    """
    checkpoints = [model.checkpoint for model in models]
    donor = next(model for model in models if model.checkpoint is checked.donor)
    heads = filter(None, (checkpoint.head for checkpoint in checkpoints))
    names = dict.fromkeys([*checkpoints[0].tensors, *heads])
    extra = set(extra_tensors(checkpoints))
    copied = {
        name
        for name, tensor in donor.checkpoint.tensors.items()
        if name in extra or is_integer(tensor)
    }

    def mix_of(name: str) -> TensorMix:
        mix = donor.copy_mix(name, dtype) if name in copied else make(name)
        as_stored = {"load_dtype": None, "dtype": None}
        return mix.model_copy(update=as_stored) if keeps_dtype(name) else mix

    mixes = {
        name: mix_of(name)
        for name in (*names, *sorted(copied - names.keys()))
        if not is_buffer(name) and (name in copied or name not in extra)
    }
    weights = (mix for mix in mixes.values() if not is_integer(mix.terms[0].stored))
    dtypes = {mix.result_dtype for mix in weights}
    # One model has its config's dtype, also where all that it stores is in another.
    has_common_dtype = len(models) > 1 and len(dtypes) == 1
    files_dtype = dtypes.pop() if has_common_dtype else donor.checkpoint.dtype
    notes = [*checked.notes]
    adapter_warnings: list[str | None] = []
    for model in models:
        if model.adapter is None:
            continue
        name = model.checkpoint.name
        adapter_warnings += [other_base(model.adapter, model.checkpoint)]
        adapter_warnings += adapter_faults(name, model.changes)
        note = None if base is None else added_elsewhere(name, model.checkpoint, base)
        notes += [] if note is None else [note]
    return Merge(
        # A head that all models of its mix tie is stored as their embedding, and not written.
        {n: mix for n, mix in mixes.items() if any(term.stored.name == n for term in mix.terms)},
        donor_folder=donor.checkpoint.path,
        dtype=dtype or files_dtype,
        donor_config=donor.checkpoint.document,
        lines=tuple(notes),
        warnings=(*checked.warnings, *filter(None, adapter_warnings)),
        config_changes=further_layer_settings(donor.checkpoint.decoder, mixes),
    )


def further_layer_settings(decoder: Decoder, names: Iterable[str]) -> Mapping[str, Any]:
    """Return the settings of a merge's config whose tensors may lack layers for further tokens.

    A donor's config states how many of these layers there are, also where no model stores them.
    """
    has_further = any(decoder.predicts_further(name) for name in names)
    return {} if has_further else dict.fromkeys(FURTHER_LAYERS, 0)
