"""Whether the experts of a study can be merged with each other.

The checks are the merge method's own (`layerswap_method.checkpoint.compatible`), run here on
all experts at once and before the first cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ablations.models.find import Expert
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.compatible import merge_problems, vocabulary_problems
from layerswap_method.checkpoint.lora import read_adapter_config, read_adapter_tensors
from layerswap_method.errors import InputError
from layerswap_method.methods.layer_swap import NAME as LAYER_SWAP
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.recipe.references import named_models


def compatibility_report(
    experts: Sequence[Expert], *, aligned: bool
) -> tuple[list[Checkpoint], list[str]]:
    """Return the experts' headers (without adapters), and why some cannot be merged.

    The base is first, with which the others are compared; `aligned` vocabularies may differ.
    """
    found: list[Checkpoint] = []
    problems: list[str] = []
    for expert in experts:
        try:
            if expert.adapter is not None:
                read_adapter_config(expert.adapter)
                read_adapter_tensors(expert.adapter)
            found.append(read_checkpoint(expert.name, expert.folder))
        except InputError as error:
            problems.append(error.message)
    return found, [*problems, *merge_problems(found, aligned=aligned)]


def unfit_vocabularies(
    merges: Iterable[Mapping[str, Any]],
    experts: Collection[Expert],
    checkpoints: Sequence[Checkpoint],
) -> list[str]:
    """Return why merges cannot be: they take vocabulary rows of models with different numbers.

    The recipes `merges` name `experts`, whose headers are `checkpoints`.
    """
    both = list(zip(experts, checkpoints, strict=True))
    found: dict[str, None] = {}
    for merge in merges:
        if merge.keys() & {"tokenizer", "tokenizer_source"}:
            continue
        givers = set(named_models(merge))
        if merge["merge_method"] == LAYER_SWAP:
            recipe = LayerSwapRecipe.read(merge)
            if not recipe.parameters.needs_deltas:  # changes are measured row by row
                givers = {str(model) for model in recipe.embedding_givers}
        used = [checkpoint for expert, checkpoint in both if expert.reference in givers]
        found |= dict.fromkeys(vocabulary_problems(used))
    return list(found)
