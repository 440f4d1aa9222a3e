"""Everything that is wrong with a recipe, at once. Merges nothing and downloads no weights.

Knows recipes, headers and the files of models that are on this machine; what they must share is
said by `layerswap_method.checkpoint.compatible`, as it is for a merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.gallery.find import find_recipe, is_shipped, recipe_files
from ablations.gallery.findings import Finding, Level, line_of
from ablations.gallery.header import header_problems
from ablations.gallery.models import Known, look_up
from layerswap_method.checkpoint.compatible import merge_problems, merge_warnings
from layerswap_method.errors import InputError
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.layer_swap_merge import check_swap_modules, large_swap_warning
from layerswap_method.methods.read import read_own_recipe, read_recipe
from layerswap_method.recipe.document import DTYPES, Recipe, dtype_problems
from layerswap_method.recipe.references import named_models
from layerswap_method.recipe.strict_yaml import parse_yaml

Said = tuple[Level, str]


def recipes_of(names: Sequence[str]) -> list[Path]:
    """Return the recipes that are named: files, all of a folder, or shipped ones such as swahili.

    Raises:
        InputError: for a name that is none of them, or a folder without recipes.
    """
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = recipe_files(path)
            if not inside:
                raise InputError(f"{path}: holds no recipe (*.yml)")
            found += inside
        else:
            found.append(path if path.is_file() else find_recipe(name))
    return list(dict.fromkeys(found))


def check_recipe(path: Path, *, hub: bool = True) -> list[Finding]:
    """Return what is wrong with one recipe, errors first.

    Args:
        path: the recipe.
        hub: whether configs of models that are not here may be fetched from the hub.

    Raises:
        InputError: where the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    said: list[Said] = []
    try:
        document = parse_yaml(text, "recipe")
        if not isinstance(document, dict):
            raise InputError("it is not a recipe; write merge_method:, models: and base_model:")
        said += _document_findings(document, hub=hub, shipped=is_shipped(path))
    except InputError as error:
        said += _errors(error)
    if is_shipped(path):
        said += [("warning", problem) for problem in header_problems(text)]
    found = [
        Finding(file=str(path), level=level, message=message, line=line_of(text, message))
        for level, message in dict.fromkeys(said)
    ]
    order = ("error", "warning", "note")
    return sorted(found, key=lambda finding: order.index(finding.level))


def _errors(error: InputError) -> Iterator[Said]:
    for problem in error.problems or (error.message,):
        yield "error", problem


def _document_findings(document: Mapping[str, Any], *, hub: bool, shipped: bool) -> Iterator[Said]:
    try:
        _check_form(document)
    except InputError as error:
        yield from _errors(error)
    recipe = _own_recipe(document)
    first = () if recipe is None else recipe.references
    references = list(dict.fromkeys([*first, *named_models(document)]))
    for reference in references:
        yield from _unpinned(reference)
    try:
        yield from _model_findings(document, references, hub=hub, shipped=shipped)
    except InputError as error:  # a checkpoint that cannot be read
        yield from _errors(error)


def _check_form(document: Mapping[str, Any]) -> None:
    """Raise for keys, roles and values that are wrong; mergekit's types judge its own methods."""
    if read_own_recipe(document) is None:
        from layerswap_method.mergekit_plugin.recipe_errors import check_form, unknown_parameters

        check_form(document)
        if found := [*unknown_parameters(document), *dtype_problems(document)]:
            raise InputError.from_problems("recipe", found)
        read_recipe(document)


def _unpinned(reference: str) -> Iterator[Said]:
    """Yield hub ids without a revision: what they name can change from one day to the next."""
    for part in reference.split("+"):
        is_hub = part.count("/") == 1 and not part.startswith((".", "/", "~"))
        if is_hub and "@" not in part and not Path(part).exists():
            yield (
                "note",
                f"{part} names no revision, so another day may give another model; write "
                f"{part}@COMMIT",
            )


def _model_findings(
    document: Mapping[str, Any], references: Sequence[str], *, hub: bool, shipped: bool
) -> Iterator[Said]:
    known = {reference: look_up(reference, hub=hub) for reference in references}
    for reference, model in known.items():
        if model.error is not None and not shipped:  # the gallery's are made by its own commands
            yield "error", model.error
        elif model.problem is not None:
            what = f"{reference}: {model.problem}"
            yield "note", f"{what}; its layers and shapes were not checked"
    yield from _depth_findings(document, known)
    checkpoints = [model.checkpoint for model in known.values() if model.checkpoint is not None]
    recipe = _own_recipe(document)
    aligned = any(document.get(key) is not None for key in ("tokenizer", "tokenizer_source"))
    by_feature = isinstance(recipe, DeltaRevertRecipe) and recipe.parameters.by_feature
    givers = set(recipe.embedding_givers) if isinstance(recipe, LayerSwapRecipe) else None
    for problem in merge_problems(
        checkpoints, rows_from=givers, aligned=aligned, by_feature=by_feature
    ):
        yield "error", problem
    dtype = str(document.get("out_dtype") or document.get("dtype") or "").removeprefix("torch.")
    if checkpoints and dtype in ("", *DTYPES):
        for warning in merge_warnings(
            checkpoints, dtype=dtype or None, rows_from=givers, aligned=aligned
        ):
            yield "warning", warning
    if checkpoints and recipe is not None:
        try:
            checkpoints[0].depth()
            if isinstance(recipe, LayerSwapRecipe):
                first = checkpoints[0]
                check_swap_modules(recipe.parameters, first.name, first.tensors)
        except InputError as error:
            yield from _errors(error)


def _depth_findings(document: Mapping[str, Any], known: Mapping[str, Known]) -> Iterator[Said]:
    """Yield layer counts that do not fit the models, and models of different depths."""
    depths = {name: model.depth for name, model in known.items() if model.depth is not None}
    if len(set(depths.values())) > 1:
        shown = ", ".join(f"{name} {depth}" for name, depth in depths.items())
        yield "error", f"the models have different depths ({shown}); merging needs one parent"
    elif depths:
        recipe, depth = _own_recipe(document), next(iter(depths.values()))
        try:
            if isinstance(recipe, DeltaRevertRecipe):
                recipe.parameters.layers(depth)
            elif isinstance(recipe, LayerSwapRecipe):
                spec = recipe.parameters
                if spec.placement != "delta_share":
                    for warning in large_swap_warning(spec, spec.plan(depth)):
                        yield "warning", warning
        except ValueError as error:
            yield "error", str(error)


def _own_recipe(document: Mapping[str, Any]) -> Recipe | None:
    """Return a recipe of this project's methods; None for others, and for one that is faulty."""
    try:
        return read_own_recipe(document)
    except InputError:  # a finding already
        return None
