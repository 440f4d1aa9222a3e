"""Opening an expert beside its base: files, layers, and whether the two belong together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from layerswap_method.algorithm.tensor_names import decoder_layer
from layerswap_method.checkpoints.compatible import pairing_problems
from layerswap_method.checkpoints.config import _HEADS, RawConfig, read_config
from layerswap_method.checkpoints.headers import Checkpoint, is_buffer, read_checkpoint
from layerswap_method.checkpoints.lora import read_changes
from layerswap_method.checkpoints.spans import StoredTensor, stored_tensors
from layerswap_method.deltas.pair import DeltaPair
from layerswap_method.deltas.passes import Segment
from layerswap_method.errors import InputError

if TYPE_CHECKING:
    from layerswap_method.checkpoints.model_files import StreamInput


_SAMPLED_TENSORS, _SAMPLED_VALUES = 16, 1 << 16


def read_sides(
    expert: tuple[str, Path], base: tuple[str, Path]
) -> tuple[Checkpoint, Checkpoint, RawConfig]:
    """Return the headers of an expert and of its base, each a (name, folder), and base's config.

    Raises:
        InputError: for files that cannot be read.
    """
    configs = [read_config(*side) for side in (expert, base)]
    checkpoints = [
        read_checkpoint(*side, config) for side, config in zip((expert, base), configs, strict=True)
    ]
    # What holds where a config is silent depends on the model's class: the files tell.
    has_head = all(any(name.endswith(_HEADS) for name in c.shapes) for c in checkpoints)
    ours, theirs = (
        replace(
            checkpoint,
            num_layers=config.num_hidden_layers or _stored_layers(checkpoint),
            tied=not has_head if config.tie_word_embeddings is None else checkpoint.tied,
        )
        for checkpoint, config in zip(checkpoints, configs, strict=True)
    )
    return ours, theirs, configs[1]


def _stored_layers(checkpoint: Checkpoint) -> int | None:
    layers = map(decoder_layer, checkpoint.shapes)
    return max((layer + 1 for layer in layers if layer is not None), default=None)


UNRELATED = 0.7
"""||delta|| / ||base|| from which the base is not the base: of two unrelated models it is about
1.4, of fine-tunes far below 0.5."""


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
