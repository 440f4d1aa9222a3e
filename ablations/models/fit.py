"""Whether the experts of a study can be merged with each other. Knows headers and configs.

The checks are the merge method's own (`layerswap_method.checkpoints.compatible`), asked here of
all experts at once and before the first cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ablations.models.find import Expert
from layerswap_method.checkpoints.compatible import own_problems, pair_problems
from layerswap_method.checkpoints.headers import Checkpoint, read_checkpoint, read_config
from layerswap_method.checkpoints.lora import check_readable
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.api import architecture_of
from layerswap_method.mergekit_plugin.definitions import vocabulary_tensors


def read_expert(expert: Expert) -> tuple[Checkpoint, Any]:
    """Return headers and transformers config of an expert's checkpoint (without its adapter).

    Raises:
        InputError: where one of them, or a file of its adapter, cannot be read.
    """
    if expert.adapter is not None:
        check_readable(expert.adapter)
    config = read_config(f"expert {expert.name!r}", expert.folder)
    return read_checkpoint(expert.name, expert.folder, config), config


def compatibility_report(
    experts: Sequence[Expert], *, aligned: bool
) -> tuple[list[Checkpoint], list[str]]:
    """Return the experts' headers, and why some cannot be merged with the first.

    Args:
        experts: the base first.
        aligned: whether the recipe aligns vocabularies (``tokenizer:``).
    """
    read: list[tuple[Checkpoint, Any]] = []
    problems: list[str] = []
    for expert in experts:
        try:
            read.append(read_expert(expert))
        except InputError as error:
            problems.append(error.message)
    checkpoints = [checkpoint for checkpoint, _ in read]
    if read:
        problems += _problems(checkpoints, read[0][1], aligned=aligned)
    return checkpoints, problems


def _problems(checkpoints: Sequence[Checkpoint], config: Any, *, aligned: bool) -> Iterator[str]:
    first = checkpoints[0]
    for checkpoint in checkpoints:
        yield from own_problems(checkpoint)
    architecture = architecture_of(config)
    vocabulary = () if architecture is None else vocabulary_tensors(architecture, config)
    for other in checkpoints[1:]:
        yield from pair_problems(first, other, vocabulary=vocabulary, aligned=aligned)
