"""Opening an expert beside its base: files, layers, and whether the two belong together."""

from __future__ import annotations

import math

import numpy as np
import torch

from layerswap_method.checkpoints.compatible import own_problems, pair_problems, ties
from layerswap_method.checkpoints.headers import is_buffer, is_head, read_checkpoint
from layerswap_method.checkpoints.lora import read_changes
from layerswap_method.checkpoints.model_files import ModelFiles
from layerswap_method.checkpoints.stored import FLOATS
from layerswap_method.deltas.pair import DeltaPair
from layerswap_method.deltas.passes import Segment, blocks_of, segments_of
from layerswap_method.errors import InputError

_SAMPLED_TENSORS, _SAMPLED_VALUES = 16, 1 << 16

UNRELATED = 0.7
"""||delta|| / ||base|| from which the base is not the base: of two unrelated models it is about
1.4, of fine-tunes far below 0.5."""


def open_pair(expert: ModelFiles, base: ModelFiles) -> DeltaPair:
    """Return an expert and its base, checked against each other.

    Args:
        expert: a checkpoint, or an adapter on one.
        base: a checkpoint without an adapter.

    Raises:
        InputError: with every problem of the first kind found: files that do not read, quantised
            weights, tensors that one side lacks, other shapes or vocabularies, an adapter of
            another model; or a base that is not the expert's.
    """
    if base.adapter is not None:
        raise InputError(f"{base.name}: the base has an adapter; merge it into a folder first")
    ours, theirs = (read_checkpoint(each.name, each.folder) for each in (expert, base))
    problems = [*own_problems(theirs), *own_problems(ours)]
    problems += pair_problems(theirs, ours, by_row=True)
    if problems:
        raise InputError.from_problems("delta", problems)
    changes = {} if expert.adapter is None else read_changes(expert.adapter, ours)
    # The copy that an adapter is merged into is saved without a tied output embedding.
    without_head = expert.adapter is not None and ties(ours, theirs)
    names = (
        name
        for name, tensor in theirs.tensors.items()
        if name in ours.tensors
        and not is_buffer(name)
        and not (without_head and is_head(name))
        and tensor.dtype in FLOATS
    )
    pair = DeltaPair(
        expert=expert.name,
        base=base.name,
        folder=base.folder,
        model_type=theirs.config.text_type,
        architecture=theirs.config.architecture,
        num_layers=theirs.num_layers,
        names=tuple(names),
        expert_tensors=ours.tensors,
        base_tensors=theirs.tensors,
        changes=changes,
    )
    _check_related(pair)
    return pair


def _check_related(pair: DeltaPair) -> None:
    """Raise where a sample of the matrices has a delta as large as the weights."""
    matrices = [name for name in pair.names if len(pair.shape(name)) >= 2]
    step = max(1, len(matrices) // _SAMPLED_TENSORS)
    change = weight = 0.0
    for name in matrices[::step]:
        segments = segments_of(pair, name)
        if not segments:
            continue
        lines = max(1, _SAMPLED_VALUES // pair.layout(name).columns)
        first = segments[0]
        sample = Segment(name, first.start, min(first.stop, first.start + lines))
        for block in blocks_of(pair, sample):
            # numpy: torch's threads cost more to wake than so few values take
            change += _sum_of_squares(block.delta)
            weight += _sum_of_squares(block.wide_base)
    # What is not finite is another fault, which whoever reads all of it names.
    if math.isfinite(change) and weight > 0 and change >= UNRELATED**2 * weight:
        ratio = (change / weight) ** 0.5
        raise InputError(
            f"{pair.base} is not the base of {pair.expert}: the deltas are as large as the weights "
            f"(||delta|| / ||weights|| = {ratio:.2f} in a sample; a fine-tuned model is far below "
            f"{UNRELATED}); give the checkpoint that the expert was trained from"
        )


def _sum_of_squares(values: torch.Tensor) -> float:
    return float(np.square(values.numpy(), dtype=np.float64).sum())
