"""Checks that the experts of a study fit each other, and a context the positions of a model.

The merge method says what experts must share (`layerswap_method.checkpoint.compatible`); here it is
checked on all of them at once and before the first cell. No weights are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ablations.models.find import Expert
from ablations.models.load import read_model_config
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.compatible import merge_problems, vocabulary_problems
from layerswap_method.checkpoint.lora import read_adapter_config, read_adapter_tensors
from layerswap_method.errors import InputError
from layerswap_method.recipe.document import Recipe


def compatibility_report(experts: Sequence[Expert]) -> tuple[list[Checkpoint], list[str]]:
    """Return the experts' headers (without adapters), and why some cannot be merged.

    The base is first, with which the others are compared; vocabularies may differ, see
    `unfit_vocabularies`.
    """
    checkpoints: list[Checkpoint] = []
    problems: list[str] = []
    for expert in experts:
        try:
            if expert.adapter is not None:
                read_adapter_config(expert.adapter)
                read_adapter_tensors(expert.adapter)
            checkpoints.append(read_checkpoint(expert.name, expert.folder))
        except InputError as error:
            problems.append(error.message)
    return checkpoints, [*problems, *merge_problems(checkpoints, aligned=True)]


def unfit_vocabularies(
    recipes: Iterable[Recipe],
    experts: Collection[Expert],
    checkpoints: Sequence[Checkpoint],
) -> list[str]:
    """Return why merges are impossible: they take vocabulary rows of models with different numbers.

    `recipes` name `experts`, whose headers are `checkpoints`.
    """
    pairs = list(zip(experts, checkpoints, strict=True))
    problems: dict[str, None] = {}
    for recipe in recipes:
        if recipe.aligns_tokens:
            continue
        givers = set(recipe.references)
        # All models must have equal rows where changes are measured.
        if recipe.rows_from is not None and not recipe.needs_deltas:
            givers = set(recipe.rows_from)
        giver_checkpoints = [
            checkpoint for expert, checkpoint in pairs if expert.reference in givers
        ]
        problems |= dict.fromkeys(vocabulary_problems(giver_checkpoints))
    return list(problems)


def check_context(model: str, tokens: int | None) -> None:
    """Check that the model has positions for `tokens`, prompt and answer; None is its own.

    vLLM refuses more by itself; transformers goes on, and its output after the last position that
    was trained is noise.

    Raises:
        InputError: where it has fewer.
        OSError: where there is no config to be read.
    """
    context = None if tokens is None else context_of(model)
    if tokens is not None and context is not None and tokens > context:
        raise InputError(
            f"{model}: a context of {tokens} tokens (--max-model-len) is more than it has "
            f"positions for ({context})"
        )


def context_of(model: str) -> int | None:
    """Return the tokens that a model has positions for; None where its config does not say.

    Raises:
        OSError: where there is no config to be read.
    """
    config = read_model_config(model).get_text_config()
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if positions is None:
        positions = getattr(config, "n_positions", None)
    rotary: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    blocks = [value for value in (rotary, *rotary.values()) if isinstance(value, dict)]
    # Positions of these types are stretched; others (yarn, llama3, longrope) state the stretched
    # number.
    stretched = [block for block in blocks if block.get("rope_type") in ("linear", "dynamic")]
    factor = max((float(block.get("factor") or 1) for block in stretched), default=1.0)
    return None if positions is None else int(positions * factor)
