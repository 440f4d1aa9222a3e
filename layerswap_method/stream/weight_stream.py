"""A merged model as a stream of tensors, made from the experts' files without a merged copy.

Knows files, specs and plans; not engines, not mergekit. Every tensor is bit-identical to the one
that `mergekit-yaml` writes for the same recipe. Vocabularies are not aligned here: experts must
hold the same tensors in the same shapes (recipes with ``tokenizer:`` go through mergekit), under
the names in their files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerswap_method.checkpoints.compatible import own_problems, pair_problems
from layerswap_method.checkpoints.headers import Checkpoint, is_buffer, read_checkpoint, read_config
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.errors import InputError

if TYPE_CHECKING:
    import torch

    from layerswap_method.checkpoints.lora import LowRankChange
    from layerswap_method.stream.mix import TensorMix, TensorOrigin


class WeightStream:
    """The tensors of one model, each made when it is asked for."""

    def __init__(
        self,
        names: Sequence[str],
        mix: Callable[[str], TensorMix],
        *,
        donor: Path,
        model_dtype: str | None,
        description: str,
        measured: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep what makes the tensors.

        Args:
            names: every tensor, in the order of the first expert's files.
            mix: name -> content.
            donor: folder whose config and tokenizer the merged model has.
            model_dtype: torch dtype that the merged model's config states; None where none.
            description: the model in words, for records.
            measured: what was measured of the experts' changes to make it, for records.
        """
        self.names = tuple(names)
        self.donor = donor
        self.model_dtype = model_dtype
        self.description = description
        self.measured = measured
        self._mixes = {name: mix(name) for name in names}

    def mix(self, name: str) -> TensorMix:
        """Return the content of one tensor: equal mixes are equal bytes.

        Raises:
            KeyError: for a name that the model does not have.
        """
        return self._mixes[name]

    def mixes(self) -> Mapping[str, TensorMix]:
        """Return tensor name -> content."""
        return dict(self._mixes)

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor on CPU, bit-identical to what `mergekit-yaml` writes.

        It is the caller's.

        Raises:
            InputError: if a file is gone, cut short, or was written anew since the stream was made.
        """
        from layerswap_method.stream.read import read_mix

        return read_mix(self.mix(name))

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor; one is in memory at a time if the caller keeps none."""
        for name in self.names:
            yield name, self.read(name)


@dataclass(frozen=True)
class StreamModel:
    """A checkpoint with its adapter, as far as headers say."""

    given: StreamInput
    checkpoint: Checkpoint
    config_dtype: str | None
    stamps: Mapping[Path, int]
    changes: Mapping[str, LowRankChange]
    model_type: str

    def origin(self, name: str) -> TensorOrigin:
        """Return where the tensor `name` comes from.

        mergekit merges an adapter into a model that transformers loaded in one dtype: that of the
        first stored tensor, whatever the config says (mergekit asks for ``torch_dtype=None``).
        """
        from layerswap_method.stream.mix import TensorOrigin

        file = self.checkpoint.files[name]
        stored, cast = self.stored_dtype(name), None
        if self.given.adapter is not None and stored.startswith(_FLOAT):
            first = _first_float(self.checkpoint)
            cast = first if first != stored else None
        return TensorOrigin(
            file=file.resolve(),
            stamp=self.stamps[file],
            name=name,
            dtype=cast,
            change=self.changes.get(name),
        )

    def stored_dtype(self, name: str) -> str:
        """Return the torch dtype in the file."""
        from layerswap_method.checkpoints.spans import DTYPES

        stored = self.checkpoint.dtypes[name]
        return DTYPES.get(stored, stored)

    def dtype(self, name: str) -> str:
        """Return the torch dtype of the tensor as it enters a mix."""
        return self.origin(name).dtype or self.stored_dtype(name)

    def rows(self, name: str) -> int:
        """Return the number of its rows, one an input feature."""
        from layerswap_method.deltas.rows import input_axis, row_layout

        shape = self.checkpoint.shapes[name]
        return row_layout(shape, input_axis(name, len(shape), self.model_type)).features


_FLOAT = ("float", "bfloat")


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
    (model,) = read_models([StreamInput(str(folder), folder, adapter=adapter)])
    return WeightStream(
        weight_names(model.checkpoint),
        lambda name: copy_mix(model, name, dtype, out_dtype),
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
    from layerswap_method.stream.mix import TensorMix

    if sum(given.weight for given in inputs) == 0:
        raise InputError("linear: the weights sum to 0")
    models = read_models(inputs)
    return WeightStream(
        weight_names(models[0].checkpoint),
        lambda name: TensorMix(
            terms=tuple((model.origin(name), model.given.weight) for model in models),
            load_dtype=dtype,
            out_dtype=out_dtype,
            rule="linear",
        ),
        donor=inputs[0].folder,
        model_dtype=out_dtype or dtype or models[0].config_dtype,
        description=f"linear of {', '.join(given.name for given in inputs)}",
    )


def copy_mix(model: StreamModel, name: str, dtype: str | None, out_dtype: str | None) -> TensorMix:
    """Return the mix of one tensor as it is; a cast to its own dtype is none."""
    from layerswap_method.stream.mix import TensorMix

    steps = []
    current = model.dtype(name)
    for wanted in (dtype, out_dtype):
        steps.append(wanted if wanted is not None and wanted != current else None)
        current = wanted or current
    return TensorMix(terms=((model.origin(name), 1.0),), dtype=steps[0], out_dtype=steps[1])


def weight_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the tensors that a merge writes, in the order of the files."""
    return tuple(name for name in checkpoint.shapes if not is_buffer(name))


def read_models(inputs: Sequence[StreamInput]) -> list[StreamModel]:
    """Return the headers of every input, checked against each other.

    Raises:
        InputError: with every problem of the first kind found.
    """
    known: dict[tuple[Path, Path | None], StreamModel] = {}
    for given in inputs:
        known.setdefault((given.folder, given.adapter), _read_model(given))
    models = list(known.values())
    problems = [problem for model in models for problem in own_problems(model.checkpoint)]
    for other in models[1:]:
        problems += pair_problems(models[0].checkpoint, other.checkpoint)
    if problems:
        raise InputError.from_problems("weight stream", problems)
    return [known[given.folder, given.adapter] for given in inputs]


def _read_model(given: StreamInput) -> StreamModel:
    from layerswap_method.checkpoints.lora import read_changes
    from layerswap_method.checkpoints.spans import file_stamp

    config = read_config(given.name, given.folder)
    checkpoint = read_checkpoint(given.name, given.folder, config)
    changes: Mapping[str, LowRankChange] = {}
    if given.adapter is not None:
        changes = read_changes(given.adapter, checkpoint.shapes, config.model_type)
    return StreamModel(
        given=given,
        checkpoint=checkpoint,
        config_dtype=_config_dtype(config, checkpoint),
        stamps={file: file_stamp(file) for file in dict.fromkeys(checkpoint.files.values())},
        changes=changes,
        model_type=str(config.get_text_config().model_type),
    )


def _config_dtype(config: Any, checkpoint: Checkpoint) -> str | None:
    """Return the torch dtype in which an engine runs the model: the config's, or the stored."""
    stated = getattr(config, "dtype", None)
    return _first_float(checkpoint) if stated is None else str(stated).removeprefix("torch.")


def _first_float(checkpoint: Checkpoint) -> str | None:
    from layerswap_method.checkpoints.spans import DTYPES

    stored = (DTYPES.get(dtype, dtype) for dtype in checkpoint.dtypes.values())
    return next((dtype for dtype in stored if dtype.startswith(_FLOAT)), None)
