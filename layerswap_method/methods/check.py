"""The one check of a recipe on its models: of `layerswap check`, merges and mergekit's executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.compatible import (
    Checked,
    merge_problems,
    merge_warnings,
    own_problems,
    same_vocabulary,
    vocabulary_problems,
)
from layerswap_method.checkpoint.settings import generation_notes, settings_note
from layerswap_method.checkpoint.vocabulary import (
    ALIGN,
    ONE_VOCABULARY,
    lost_tokens,
    token_conflicts,
    tokenizer_warnings,
)
from layerswap_method.recipe.document import Recipe
from layerswap_method.tensor_names import layer_part


def check_models(
    recipe: Recipe,
    models: Mapping[str, Checkpoint],
    *,
    by_mergekit: bool | None = None,
    aligned: bool | None = None,
    allow_crimes: bool = False,
) -> Checked:
    """Check the models of a recipe, reference -> checkpoint, in the order of its `references`.

    `by_mergekit`: mergekit's executor merges them, by default where the recipe needs it; it reads
    the rows of every model and gives the merge the base's tokenizer. `aligned`: rows of vocabulary
    tensors may differ, by default where the recipe aligns them. `allow_crimes` is mergekit's
    option: models are not compared.
    """
    by_mergekit = recipe.why_mergekit() is not None if by_mergekit is None else by_mergekit
    aligned = recipe.aligns_tokens if aligned is None else aligned
    checkpoints = [*models.values()]
    givers = None
    if (rows_from := recipe.rows_from) is not None:
        references = {*rows_from, *([str(recipe.base_model)] if by_mergekit else ())}
        givers = [model for reference, model in models.items() if reference in references]
    # The tokens that an adapter was trained with may be others than those of its base.
    of_rows = [model.as_trained for model in (checkpoints if givers is None else givers)]
    conflicts, conflict_warnings = list[str](), list[str]()
    if not aligned:
        conflicts, conflict_warnings = token_conflicts(
            of_rows,
            ONE_VOCABULARY if recipe.is_one_vocabulary else ALIGN,
        )
    if allow_crimes:
        problems = [problem for model in checkpoints for problem in own_problems(model)]
    else:
        compared = merge_problems(
            checkpoints, givers=givers, aligned=aligned, is_revert=recipe.is_one_vocabulary
        )
        problems = [*compared, *conflicts]
    if by_mergekit and not problems and not aligned:
        problems += vocabulary_problems(checkpoints)
    problems += _part_problems(recipe, checkpoints[0])
    warnings = merge_warnings(
        checkpoints,
        dtype=recipe.written_dtype,
        base=models.get(str(recipe.base_model)) if recipe.names_parent else None,
        sources=[model for name, model in models.items() if name in recipe.weights_from],
    )
    donor = donor_of(recipe, models, by_mergekit=by_mergekit)
    if not aligned:
        conflict_warnings += tokenizer_warnings(donor, of_rows, checkpoints)
    has_its_tokenizer = not recipe.makes_tokenizer
    notes = [*generation_notes(checkpoints, donor, has_its_tokenizer=has_its_tokenizer)]
    if note := settings_note(checkpoints, donor):
        notes.append(note)
    return Checked(tuple(problems), (*warnings, *conflict_warnings), tuple(notes), donor)


def _part_problems(recipe: Recipe, model: Checkpoint) -> Iterator[str]:
    """Yield that the layers of a model lack the part that is swapped alone."""
    parts = {layer_part(name) for name in model.tensors if model.decoder.layer(name) is not None}
    if recipe.moved_part is not None and recipe.moved_part not in parts:
        yield (
            f"swap_modules is {recipe.moved_part}, but the layers of {model.name} have no such "
            f"tensors (found: {', '.join(sorted(parts)) or 'no layers'})"
        )


def donor_of(
    recipe: Recipe, models: Mapping[str, Checkpoint], *, by_mergekit: bool = False
) -> Checkpoint:
    """Return the model whose config and tokenizer a merge has, of `models` as in `check_models`.

    It is the base, or the first model where there is none. Where files are enough and the base's
    tokens are those of no model that gives vocabulary rows, or lack some that each of these added,
    it is the first of these that has a tokenizer.
    """
    first, *_ = models.values()
    base, givers = models.get(str(recipe.base_model), first), recipe.rows_from
    if givers is None or by_mergekit:
        return base
    of_rows = [model for name, model in models.items() if name in givers] or [*models.values()]
    has_their_tokens = any(
        same_vocabulary(giver, base) and not lost_tokens(giver, base) for giver in of_rows
    )
    with_tokenizer = (giver for giver in of_rows if giver.has_tokenizer)
    return base if has_their_tokens else next(with_tokenizer, of_rows[0])
