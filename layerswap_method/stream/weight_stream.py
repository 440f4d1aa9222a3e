"""A merged model as a stream of tensors, made from the experts' files without a merged copy.

Knows files and mixes; not engines, not mergekit, not the parameters of a method. Every tensor is
bit-identical to the one that `mergekit-yaml` writes for the same recipe. Vocabularies are not
aligned here: models must hold the same tensors in the same shapes (recipes with ``tokenizer:`` go
through mergekit), under the names in their files. Only models that give no vocabulary rows may have
another number of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerswap_method.checkpoints.compatible import merge_problems, ties
from layerswap_method.checkpoints.headers import Checkpoint, is_buffer, is_head, read_checkpoint
from layerswap_method.checkpoints.lora import LowRankChange, read_changes
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.checkpoints.stored import FLOATS, StoredTensor
from layerswap_method.errors import InputError
from layerswap_method.stream.mix import TensorMix, TensorOrigin

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class WeightStream:
    """The tensors of one model, each made when it is asked for."""

    mixes: Mapping[str, TensorMix] = field(repr=False)
    """Every tensor's name -> content: equal mixes are equal bytes."""

    donor: Path
    """The folder whose config and tokenizer the merged model has."""

    model_dtype: str | None
    """torch dtype that the merged model's config states; None where none."""

    description: str
    """The model in words, for records."""

    measured: Mapping[str, Any] | None = None
    """What was measured of the experts' changes to make it, for records."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return every tensor's name, in the order of the first expert's files."""
        return tuple(self.mixes)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and tensor, on CPU, bit-identical to what `mergekit-yaml` writes.

        One is in memory at a time if the caller keeps none.

        Raises:
            InputError: if a file is gone, cut short, or was written anew since the stream was made.
        """
        from layerswap_method.stream.read import read_mix

        for name, mix in self.mixes.items():
            yield name, read_mix(mix)


@dataclass(frozen=True)
class StreamModel:
    """A checkpoint with its adapter, as far as headers say."""

    given: StreamInput
    """What the recipe says of it."""

    checkpoint: Checkpoint
    """Its checkpoint, without the adapter."""

    changes: Mapping[str, LowRankChange]
    """Tensor name -> what the adapter adds; empty without one."""

    @property
    def config_dtype(self) -> str | None:
        """Return the torch dtype in which an engine runs the model: the config's, or the stored."""
        return self.checkpoint.config.dtype or self._first_float

    def stored(self, name: str) -> StoredTensor:
        """Return the place of a tensor; of a tied output embedding, that of what it is tied to."""
        return self.checkpoint.tensors[self.stored_name(name)]

    def stored_name(self, name: str) -> str:
        """Return the name under which the model stores a tensor."""
        checkpoint = self.checkpoint
        is_tied = is_head(name) and name not in checkpoint.tensors
        return checkpoint.embedding if is_tied and checkpoint.embedding is not None else name

    def origin(self, name: str) -> TensorOrigin:
        """Return where the tensor `name` comes from.

        mergekit merges an adapter into a model that transformers loaded in one dtype: that of the
        first stored tensor, whatever the config says (mergekit asks for ``torch_dtype=None``).
        """
        stored, cast = self.stored(name), None
        if self.given.adapter is not None and stored.dtype in FLOATS:
            cast = self._first_float if self._first_float != stored.torch_name else None
        return TensorOrigin(
            file=stored.file,
            stamp=stored.stamp,
            name=self.stored_name(name),
            dtype=cast,
            change=self.changes.get(self.stored_name(name)),
        )

    def dtype(self, name: str) -> str:
        """Return the torch dtype of the tensor as it enters a mix."""
        return self.origin(name).dtype or self.stored(name).torch_name

    @property
    def _first_float(self) -> str | None:
        tensors = self.checkpoint.tensors.values()
        return next((each.torch_name for each in tensors if each.dtype in FLOATS), None)


def checkpoint_stream(
    folder: Path,
    adapter: Path | None = None,
    dtype: str | None = None,
    out_dtype: str | None = None,
) -> WeightStream:
    """Return the stream of one checkpoint, with its adapter if there is one, unmerged otherwise.

    Raises:
        InputError: for files or an adapter that cannot be read.
    """
    (model,) = models = read_models([StreamInput(str(folder), folder, adapter=adapter)])
    return WeightStream(
        {name: copy_mix(model, name, dtype, out_dtype) for name in weight_names(models)},
        donor=folder,
        model_dtype=out_dtype or dtype or model.config_dtype,
        description=str(folder) if adapter is None else f"{folder}+{adapter}",
    )


def linear_stream(
    inputs: Sequence[StreamInput], dtype: str | None = None, out_dtype: str | None = None
) -> WeightStream:
    """Return the stream of mergekit's `linear` (the plain soup) over `inputs`.

    The first input is the donor of config and tokenizer. mergekit adds a ``base_model`` to the
    soup if it is not one of its models; this does not.

    Raises:
        InputError: for files that cannot be read, models that do not fit each other, or weights
            that sum to 0.
    """
    if sum(given.weight for given in inputs) == 0:
        raise InputError("linear: the weights sum to 0")
    models = read_models(inputs)
    return WeightStream(
        {
            name: TensorMix(
                terms=tuple((model.origin(name), model.given.weight) for model in models),
                load_dtype=dtype,
                out_dtype=out_dtype,
                rule="linear",
            )
            for name in weight_names(models)
        },
        donor=inputs[0].folder,
        model_dtype=out_dtype or dtype or models[0].config_dtype,
        description=f"linear of {', '.join(given.name for given in inputs)}",
    )


def copy_mix(
    model: StreamModel, name: str, dtype: str | None, out_dtype: str | None = None
) -> TensorMix:
    """Return the tensor of one model as it is; a cast to its own dtype is none."""
    steps = []
    current = model.dtype(name)
    for wanted in (dtype, out_dtype):
        steps.append(wanted if wanted is not None and wanted != current else None)
        current = wanted or current
    return TensorMix(terms=((model.origin(name), 1.0),), dtype=steps[0], out_dtype=steps[1])


def written(mixes: Mapping[str, TensorMix]) -> dict[str, TensorMix]:
    """Return the mixes that mergekit would write.

    It leaves out a tied output embedding that is stored by none of the models it is made of.
    """
    return {n: mix for n, mix in mixes.items() if any(o.name == n for o, _ in mix.terms)}


def weight_names(models: Sequence[StreamModel]) -> tuple[str, ...]:
    """Return the tensors that any of the models stores, in the order of the first one's files."""
    names = dict.fromkeys(models[0].checkpoint.tensors)
    heads = [model.checkpoint.head for model in models]
    names |= dict.fromkeys(head for head in heads if head is not None)
    return tuple(name for name in names if not is_buffer(name))


def read_models(
    inputs: Sequence[StreamInput], rows_from: Sequence[StreamInput] | None = None
) -> list[StreamModel]:
    """Return the headers of every input, checked against each other; a folder is read once.

    Args:
        inputs: what the stream reads.
        rows_from: those whose vocabulary rows it has; None: all of them.

    Raises:
        InputError: with every problem of the first kind found.
    """
    known: dict[tuple[Path, Path | None], StreamModel] = {}
    for given in inputs:
        if given.files not in known:
            known[given.files] = _read_model(given)
    checkpoints = [model.checkpoint for model in known.values()]
    names = None if rows_from is None else {known[each.files].given.name for each in rows_from}
    problems = list(merge_problems(checkpoints, rows_from=names))
    if problems:
        raise InputError.from_problems("weight stream", problems)
    return [replace(known[given.files], given=given) for given in inputs]


def _read_model(given: StreamInput) -> StreamModel:
    checkpoint = read_checkpoint(given.name, given.folder)
    if given.adapter is None:
        return StreamModel(given, checkpoint, {})
    changes = read_changes(given.adapter, checkpoint)
    if ties(checkpoint) and checkpoint.head is not None:
        # The copy that mergekit merges an adapter into is saved without a tied head.
        left = {name: at for name, at in checkpoint.tensors.items() if not is_head(name)}
        checkpoint = replace(checkpoint, tensors=left)
    return StreamModel(given, checkpoint, changes)
