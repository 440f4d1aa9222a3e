"""Everything that is wrong with a recipe, at once. Merges nothing and downloads no weights.

Knows recipes, headers and the files of models that are on this machine; what they must share is
said by `layerswap_method.checkpoints.compatible`, as it is for a merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.gallery.find import find_recipe, is_in_gallery, recipe_files
from ablations.gallery.findings import Finding, Level, line_of
from ablations.gallery.header import header_problems
from ablations.gallery.models import Known, look_up, may_be_hub_id
from layerswap_method.checkpoints.compatible import merge_problems
from layerswap_method.checkpoints.differences import mixed_settings
from layerswap_method.delta_revert.recipe import RevertDocument
from layerswap_method.delta_revert.spec import NAME as DELTA_REVERT
from layerswap_method.delta_revert.spec import RevertSpec
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.recipe import LayerSwapDocument
from layerswap_method.layer_swap.report import most_swapped
from layerswap_method.layer_swap.spec import NAME as LAYER_SWAP
from layerswap_method.layer_swap.spec import LayerSwapSpec
from layerswap_method.layer_swap.stream import check_swap_modules
from layerswap_method.recipe.document import dtype_problems
from layerswap_method.recipe.references import named_models
from layerswap_method.recipe.strict_yaml import parse_yaml

_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}
_STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""dtype in a safetensors header -> torch's name."""

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
        # The gallery names experts that its user is to train.
        missing: Level = "note" if is_in_gallery(path) else "error"
        said += _document_findings(document, hub=hub, missing=missing)
    except InputError as error:
        said += _errors(error)
    if is_in_gallery(path):
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


def _document_findings(document: Mapping[str, Any], *, hub: bool, missing: Level) -> Iterator[Said]:
    faulty = []
    for check in (_form, _dtypes):
        try:
            check(document)
        except InputError as error:
            faulty += list(_errors(error))
    yield from faulty
    references = list(dict.fromkeys(named_models(document)))
    for reference in references:
        yield from _unpinned(reference)
    if document.get("dtype") is None:
        yield (
            "warning",
            "dtype is missing: each copied tensor keeps its own, and an average takes the wider; "
            "write dtype: float32 or bfloat16",
        )
    try:
        yield from _model_findings(document, references, hub=hub, missing=missing)
    except InputError as error:  # a checkpoint that cannot be read
        yield from _errors(error)


def _form(document: Mapping[str, Any]) -> None:
    """Raise for keys, roles and values that are wrong; mergekit's types judge its own methods."""
    method = document.get("merge_method")
    if method == LAYER_SWAP:
        LayerSwapDocument.read(document)
    elif method == DELTA_REVERT:
        RevertDocument.read(document)
    else:
        from layerswap_method.mergekit_plugin.method_parameters import check_parameters
        from layerswap_method.mergekit_plugin.recipe_errors import check_form

        check_form(document)
        check_parameters(document)


def _dtypes(document: Mapping[str, Any]) -> None:
    found = list(dtype_problems(**{key: document.get(key) for key in ("dtype", "out_dtype")}))
    if found:
        raise InputError.from_problems("recipe", found)


def _unpinned(reference: str) -> Iterator[Said]:
    """Yield hub ids without a revision, which can change, and folders that look like hub ids."""
    for part in reference.split("+"):
        if part.count("/") != 1 or part.startswith((".", "/", "~")):
            continue
        if Path(part).is_dir():
            yield (
                "warning",
                f"{part}: mergekit-yaml refuses it, for it could be a hub id; write ./{part}",
            )
        elif "@" not in part and may_be_hub_id(part):
            yield (
                "warning",
                f"{part} names no revision, so another day may give another model; write "
                f"{part}@COMMIT",
            )


def _model_findings(
    document: Mapping[str, Any], references: Sequence[str], *, hub: bool, missing: Level
) -> Iterator[Said]:
    known = {reference: look_up(reference, hub=hub) for reference in references}
    for reference, model in known.items():
        if model.problem is not None:
            what = f"{reference}: {model.problem}"
            if model.is_missing and missing == "error":
                yield missing, what
            else:
                yield "note", f"{what}; its layers and shapes were not checked"
    yield from _depth_findings(document, known)
    readable = [model for model in known.values() if model.checkpoint is not None]
    checkpoints = [model.checkpoint for model in readable if model.checkpoint is not None]
    aligned = any(document.get(key) is not None for key in ("tokenizer", "tokenizer_source"))
    by_row = document.get("merge_method") == DELTA_REVERT
    rows_from = _vocabulary_givers(document)
    for problem in merge_problems(checkpoints, rows_from=rows_from, aligned=aligned, by_row=by_row):
        yield "error", problem
    if len(checkpoints) > 1 and (warning := mixed_settings(checkpoints)) is not None:
        yield "warning", warning
    spec = _spec(document)
    if checkpoints and isinstance(spec, LayerSwapSpec):
        try:
            check_swap_modules(spec, checkpoints[0].name, checkpoints[0].tensors)
        except InputError as error:
            yield from _errors(error)
    yield from _dtype_traps(document, readable)


def _depth_findings(document: Mapping[str, Any], known: Mapping[str, Known]) -> Iterator[Said]:
    """Yield layer counts that do not fit the models, and models of different depths."""
    depths = {name: model.depth for name, model in known.items() if model.depth is not None}
    if len(set(depths.values())) > 1:
        shown = ", ".join(f"{name} {depth}" for name, depth in depths.items())
        yield "error", f"the models have different depths ({shown}); merging needs one parent"
    elif depths:
        spec, depth = _spec(document), next(iter(depths.values()))
        try:
            if isinstance(spec, RevertSpec):
                spec.layers(depth)
            elif spec is not None and spec.placement != "delta_share":
                warning = most_swapped(spec, spec.plan(depth))
                if warning is not None:
                    yield "warning", warning
        except ValueError as error:
            yield "error", str(error)


def _vocabulary_givers(document: Mapping[str, Any]) -> set[str] | None:
    """Return the models that give vocabulary rows; None where all do, or the recipe is faulty."""
    if not isinstance(_spec(document), LayerSwapSpec):
        return None
    return {str(model) for model in LayerSwapDocument.read(document).vocabulary_givers}


def _spec(document: Mapping[str, Any]) -> LayerSwapSpec | RevertSpec | None:
    """Return the parameters of a recipe of ours; None for others, and for one that is faulty."""
    try:
        if document.get("merge_method") == LAYER_SWAP:
            return LayerSwapDocument.read(document).parameters
        if document.get("merge_method") == DELTA_REVERT:
            return RevertDocument.read(document).parameters
    except InputError:  # said already
        pass
    return None


def _dtype_traps(document: Mapping[str, Any], models: Sequence[Known]) -> Iterator[Said]:
    """Yield what a cast would lose."""
    wanted = str(document.get("out_dtype") or document.get("dtype") or "")
    wanted = wanted.removeprefix("torch.")
    for model in models:
        if model.checkpoint is None or wanted not in _BITS:
            continue
        kinds = {_STORED.get(tensor.dtype, "") for tensor in model.checkpoint.tensors.values()}
        wider = sorted(kind for kind in kinds if _BITS.get(kind, 0) > _BITS[wanted])
        if wider:
            yield (
                "warning",
                f"{model.reference} is stored in {wider[0]} and dtype is {wanted}: what light "
                f"training changed may be rounded away; write dtype: {wider[0]}",
            )
        elif wanted == "float16" and "bfloat16" in kinds:
            yield (
                "warning",
                f"{model.reference} is stored in bfloat16 and dtype is float16, whose largest "
                "number is 65504; write dtype: bfloat16",
            )
