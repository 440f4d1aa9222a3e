"""The cell of a run that has the scores of a merged model, and whether they are of it still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ablations.models.find import find_model
from ablations.runs.records import CellRecord, Run
from ablations.study.documents import with_references
from ablations.study.identity import Fingerprints, checkpoint_key, merge_key
from layerswap_method.errors import InputError, LayerSwapError, nearest
from layerswap_method.hub.downloads import Downloads
from layerswap_method.layer_plan import LayerPlan, describe_plan
from layerswap_method.methods.layer_swap import PLAN_PARAMETERS
from layerswap_method.methods.layer_swap_merge import read_plan
from layerswap_method.methods.read import read_recipe
from layerswap_method.recipe.document import OtherRecipe, Recipe
from layerswap_method.recipe.references import is_folder, resolve_from


def cell_of(
    run: Run, model: Path, label: str | None, recipe: Recipe, fingerprints: Fingerprints
) -> CellRecord:
    """Return the cell of a run that holds the scores of a model.

    Args:
        run: of `layerswap evaluate` or `layerswap run`.
        model: the model's folder.
        label: of the cell, or its name in a report; None looks for one with the weights of `model`,
            whatever the folder was called that they were read from, else for its folder, else for
            a merge in a study that is the same tensor by tensor.
        recipe: of the model.
        fingerprints: of models of the run.

    Raises:
        InputError: where there is no such cell, with those that there are.
    """
    if label is not None:
        cells = [cell for cell in run.cells if label in (cell.label, run.names.get(cell.label))]
    else:
        key = checkpoint_key(find_model(str(model)), fingerprints)
        cells = [cell for cell in run.cells if cell.weights_key == key]
        cells += [cell for cell in run.cells if _folders(run, cell) == {model.resolve()}]
        if not cells:
            same = _merge_key(recipe, fingerprints)
            cells = [cell for cell in run.cells if cell.weights_key == same]
    if cells:
        return cells[0]
    names = [run.names.get(cell.label, cell.label) for cell in run.cells]
    listed = "; ".join(names) or "none"
    if label is not None:
        hint = nearest(label, names) or nearest(label, [cell.label for cell in run.cells])
        raise InputError(f"{run.path}: no cell {label!r}{hint}; finished are {listed}")
    raise InputError(
        f"{run.path}: no cell has the weights of {model}, and none merges the same tensors; "
        f"evaluate it (layerswap evaluate {model}), or name the cell that merges the same: --cell "
        f"NAME, one of {listed}"
    )


def _merge_key(recipe: Recipe, fingerprints: Fingerprints) -> str | None:
    """Return the key of a recipe's merge; None where its models are not to be had.

    Of a model on the hub, the headers are enough: they come with the names of the contents.
    """
    hub = Downloads(headers_only=True)
    try:
        experts = {name: find_model(name, hub=hub) for name in recipe.references}
    except LayerSwapError:
        return None
    places = {name: expert.reference for name, expert in experts.items()}
    placed = read_recipe(with_references(recipe.document, places))
    with hub.fetching():
        return merge_key(placed, [*experts.values()], fingerprints)


def _folders(run: Run, cell: CellRecord) -> set[Path]:
    """Return the folders of a cell's models, as the run names them."""
    return {(run.path / name).resolve() for name in cell.recipe.references}


def check_same_model(
    run: Run,
    cell: CellRecord,
    model: Path,
    recipe: Recipe,
    fingerprints: Fingerprints,
) -> None:
    """Check that the scores of a cell are of the model in a folder, as far as the run tells.

    `recipe` is that of the folder.

    A checkpoint that was evaluated as it is must have the same content still; of a merge in a study
    the layers, the experts' weights and other settings must be the same.

    Raises:
        InputError: where they are not.
    """
    names = cell.recipe.references
    if len(names) == 1:
        if cell.weights_key != checkpoint_key(find_model(str(model)), fingerprints):
            raise InputError(
                f"{run.path}: the scores of {cell.label!r} are of other weights, config or "
                f"tokenizer than {model} holds now; evaluate it again: layerswap evaluate {model}"
            )
        return
    scored_places = {_place(part, run.path) for name in names for part in name.split("+")}
    places = {_place(part, None) for name in recipe.references for part in name.split("+")}
    # A model that is a folder on one side may be a hub id on the other.
    if places - scored_places and len({type(place) for place in places ^ scored_places}) == 1:
        raise InputError(
            f"{run.path}: the cell {cell.label!r} is a merge of other models than {model}: "
            f"{', '.join(sorted(map(str, scored_places)))}; name another --cell"
        )
    plan = read_plan(model)
    if plan is not None and cell.plan is not None and plan.sources != cell.plan.sources:
        layers, scored_layers = describe_plan(plan), describe_plan(cell.plan)
        if layers != scored_layers:
            raise _other_merge(run, cell, model, scored_layers, layers)
    settings = _beyond_plan(recipe, plan, cell.plan)
    scored_settings = _beyond_plan(cell.recipe, plan, cell.plan)
    parameters = _parameters(recipe, None)
    scored_parameters = _parameters(cell.recipe, run.path)
    for place in parameters:
        if place in scored_parameters:
            settings[str(place)] = parameters[place]
            scored_settings[str(place)] = scored_parameters[place]
    differing = [
        name
        for name in {**settings, **scored_settings}
        if settings.get(name) != scored_settings.get(name)
    ]
    if differing:
        raise _other_merge(
            run,
            cell,
            model,
            {name: scored_settings.get(name) for name in differing},
            {name: settings.get(name) for name in differing},
        )


def _other_merge(
    run: Run, cell: CellRecord, model: Path, scored: object, merged: object
) -> InputError:
    return InputError(
        f"{run.path}: the cell {cell.label!r} is another merge than {model}: it has {scored}; the "
        f"folder has {merged}"
    )


def _beyond_plan(recipe: Recipe, *plans: LayerPlan | None) -> dict[str, Any]:
    """Return a recipe's settings without its models, and without its layers if `plans` say them."""
    document = recipe.document
    if not isinstance(recipe, OtherRecipe):
        layers = {} if None in plans else {"parameters": set(PLAN_PARAMETERS)}
        document = recipe.model_dump(exclude=layers)
    models = [entry.get("parameters") or {} for entry in document.get("models") or ()]
    experts = [expert for expert in models if expert.get("role", "") is not None]
    return {
        **(document.get("parameters") or {}),
        "merge_method": document.get("merge_method"),
        "slices": document.get("slices"),
        "models": sorted(experts, key=lambda expert: str(expert.get("role"))),
    }


def _parameters(recipe: Recipe, folder: Path | None) -> dict[Path | str, Any]:
    """Return the last part of each model's reference -> its parameters in the recipe."""
    document = recipe.document if isinstance(recipe, OtherRecipe) else recipe.model_dump()
    entries = document.get("models") or ()
    places = [_place(str(entry["model"]).rpartition("+")[2], folder) for entry in entries]
    return {
        place: entry.get("parameters") or {}
        for place, entry in zip(places, entries, strict=True)
        if places.count(place) == 1
    }


def _place(reference: str, folder: Path | None) -> Path | str:
    """Return the folder of a model or adapter here; of a hub id the name without its commit."""
    path = resolve_from(reference, folder)
    return path.resolve() if is_folder(path) else reference.partition("@")[0]
