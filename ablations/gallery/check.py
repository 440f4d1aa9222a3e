"""Everything that is wrong with a recipe, at once. Merges nothing and downloads no weights.

What the models of a merge must share is checked by `layerswap_method.checkpoint.compatible`, as it
is for a merge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ablations.gallery.find import find_recipe, is_shipped, recipe_files
from ablations.gallery.models import Known, look_up
from layerswap_method.checkpoint.compatible import merge_problems, merge_warnings
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.mergekit_plugin.recipe_errors import check_form, unknown_parameters
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.layer_swap_merge import check_swap_modules, large_swap_warning
from layerswap_method.methods.read import read_own_recipe, read_recipe, read_recipe_file
from layerswap_method.recipe.document import DTYPES, Recipe, dtype_problems
from layerswap_method.recipe.references import named_models

Level = Literal["error", "warning", "note"]
"""`error`: the merge would fail or mean something else. `warning`: it may not be what is meant.
`note`: what could not be checked."""

_Said = tuple[Level, str]


class Finding(Frozen):
    """One thing that a check says of one recipe."""

    file: str
    level: Level
    message: str


def recipes_of(names: Sequence[str]) -> list[Path]:
    """Return the recipes that are named: files, all of a folder, or shipped ones such as swahili.

    Raises:
        InputError: for a name that is none of them, or a folder without recipes.
    """
    found: list[Path] = []
    for path in map(Path, names):
        if path.is_dir():
            inside = recipe_files(path)
            if not inside:
                raise InputError(f"{path}: holds no recipe (*.yml)")
            found += inside
        else:
            found.append(path if path.is_file() else find_recipe(str(path)))
    return list(dict.fromkeys(found))


def check_recipe(path: Path, *, hub: bool = True) -> list[Finding]:
    """Return what is wrong with one recipe, errors first.

    Args:
        path: the recipe.
        hub: whether configs of models that are not here may be fetched from the hub.
    """
    said: list[_Said] = []
    try:
        said += _findings(read_recipe_file(path).document, hub=hub, shipped=is_shipped(path))
    except InputError as error:
        said += _errors(error)
    order = ("error", "warning", "note")
    return [
        Finding(file=str(path), level=level, message=message)
        for level, message in sorted(dict.fromkeys(said), key=lambda each: order.index(each[0]))
    ]


def as_text(findings: Sequence[Finding], checked: int) -> str:
    """Return one line a finding and the sum."""
    lines = [f"{f.file}: {f.level}: {f.message.removeprefix(f'{f.file}: ')}" for f in findings]
    counts = {level: sum(f.level == level for f in findings) for level in ("error", "warning")}
    recipes = "1 recipe" if checked == 1 else f"{checked} recipes"
    summed = ", ".join(f"{n} {level}{'' if n == 1 else 's'}" for level, n in counts.items())
    return "\n".join([*lines, f"{recipes}: {summed}"])


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as a JSON list."""
    return json.dumps([found.model_dump() for found in findings], indent=2, ensure_ascii=False)


def _errors(error: InputError) -> Iterator[_Said]:
    for problem in error.problems or (error.message,):
        yield "error", problem


def _findings(document: Mapping[str, Any], *, hub: bool, shipped: bool) -> Iterator[_Said]:
    recipe = None
    try:
        recipe = _read(document)
    except InputError as error:
        yield from _errors(error)
    named = () if recipe is None else recipe.references
    known: dict[str, Known] = {}
    for reference in dict.fromkeys([*named, *named_models(document)]):
        yield from _unpinned(reference)
        try:
            known[reference] = model = look_up(reference, hub=hub)
        except InputError as error:  # a checkpoint that cannot be read
            yield from _errors(error)
            continue
        if model.is_missing and not shipped:  # the gallery's are made by its own commands
            yield "error", str(model.problem)
        elif model.problem is not None:
            yield "note", f"{model.problem}; its layers and shapes were not checked"
        yield from (("warning", text) for text in model.warnings)
    try:
        yield from _depth_findings(recipe, known)
        yield from _merge_findings(document, recipe, known)
    except (InputError, ValueError) as error:
        yield from _errors(error if isinstance(error, InputError) else InputError(str(error)))


def _read(document: Mapping[str, Any]) -> Recipe | None:
    """Return a recipe of this project's methods, None for others; mergekit's types judge those."""
    recipe = read_own_recipe(document)
    if recipe is None:
        check_form(document)
        problems = [*unknown_parameters(document), *dtype_problems(document)]
        InputError.raise_any("recipe", problems)
        read_recipe(document)
    return recipe


def _unpinned(reference: str) -> Iterator[_Said]:
    """Yield hub ids without a revision: what they name can change from one day to the next."""
    for part in reference.split("+"):
        is_hub = part.count("/") == 1 and not part.startswith((".", "/", "~"))
        if is_hub and "@" not in part and not Path(part).exists():
            yield (
                "note",
                f"{part} names no revision, so another day may give another model; write "
                f"{part}@COMMIT",
            )


def _depth_findings(recipe: Recipe | None, known: Mapping[str, Known]) -> Iterator[_Said]:
    """Yield layer counts that do not fit the models, and models of different depths."""
    depths = {name: model.depth for name, model in known.items() if model.depth is not None}
    if len(set(depths.values())) > 1:
        shown = ", ".join(f"{name} {depth}" for name, depth in depths.items())
        yield "error", f"the models have different depths ({shown}); merging needs one parent"
        return
    for depth in set(depths.values()):
        if isinstance(recipe, DeltaRevertRecipe):
            recipe.parameters.layers(depth)
        elif isinstance(recipe, LayerSwapRecipe) and recipe.parameters.placement != "delta_share":
            spec = recipe.parameters
            for warning in large_swap_warning(spec, spec.plan(depth)):
                yield "warning", warning


def _merge_findings(
    document: Mapping[str, Any], recipe: Recipe | None, known: Mapping[str, Known]
) -> Iterator[_Said]:
    """Yield what does not fit between the models that are here."""
    checkpoints = [model.checkpoint for model in known.values() if model.checkpoint is not None]
    if not checkpoints:
        return
    how: dict[str, Any] = {
        "rows_from": set(recipe.embedding_givers) if isinstance(recipe, LayerSwapRecipe) else None,
        "aligned": any(document.get(key) is not None for key in ("tokenizer", "tokenizer_source")),
    }
    by_feature = isinstance(recipe, DeltaRevertRecipe) and recipe.parameters.by_feature
    for problem in merge_problems(checkpoints, by_feature=by_feature, **how):
        yield "error", problem
    dtype = str(document.get("out_dtype") or document.get("dtype") or "").removeprefix("torch.")
    if dtype in ("", *DTYPES):
        for warning in merge_warnings(checkpoints, dtype=dtype or None, **how):
            yield "warning", warning
    if recipe is not None:
        checkpoints[0].depth()
    if isinstance(recipe, LayerSwapRecipe):
        check_swap_modules(recipe.parameters, checkpoints[0].name, checkpoints[0].tensors)
