"""Whether the experts of a study can be merged with each other. Knows headers and configs.

The checks are the merge method's own (`layerswap_method.checkpoints.compatible`), asked here of
all experts at once and before the first cell.
"""

from __future__ import annotations

from collections.abc import Sequence

from ablations.models.find import Expert
from layerswap_method.checkpoints.compatible import own_problems, pair_problems
from layerswap_method.checkpoints.headers import Checkpoint, read_checkpoint
from layerswap_method.checkpoints.lora import check_readable
from layerswap_method.errors import InputError


def compatibility_report(
    experts: Sequence[Expert], *, aligned: bool
) -> tuple[list[Checkpoint], list[str]]:
    """Return the experts' headers (without adapters), and why some cannot be merged.

    Args:
        experts: the base first, with which the others are compared.
        aligned: whether the recipe aligns vocabularies (``tokenizer:``).
    """
    found: list[Checkpoint] = []
    problems: list[str] = []
    for expert in experts:
        try:
            if expert.adapter is not None:
                check_readable(expert.adapter)
            found.append(read_checkpoint(expert.name, expert.folder))
        except InputError as error:
            problems.append(error.message)
    for checkpoint in found:
        problems += own_problems(checkpoint)
    for other in found[1:]:
        problems += pair_problems(found[0], other, aligned=aligned)
    return found, problems
