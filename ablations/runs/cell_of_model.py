"""The cell of a run that has the scores of a merged model: one of the same weights."""

from __future__ import annotations

from pathlib import Path

from ablations.models.find import find_model
from ablations.runs.records import CellRecord
from ablations.runs.run import Run
from ablations.study.documents import with_references
from ablations.study.identity import Fingerprints, checkpoint_key, merge_key
from layerswap_method.errors import InputError, LayerSwapError, nearest
from layerswap_method.hub.downloads import Downloads
from layerswap_method.methods.read import read_recipe
from layerswap_method.recipe.document import Recipe


def cell_of(
    run: Run, model: Path, label: str | None, recipe: Recipe, fingerprints: Fingerprints
) -> CellRecord:
    """Return the cell of a run that holds the scores of a model.

    It has the weights, config and tokenizer of `model`, whatever the folder was called that they
    were read from, or is a merge in a study that is the same tensor by tensor.

    Args:
        run: of `layerswap evaluate` or `layerswap run`.
        model: the model's folder.
        label: of the cell, where several have these weights.
        recipe: of the model.
        fingerprints: of models of the run.

    Raises:
        InputError: where there is no such cell, with those that there are.
    """
    names = [cell.label for cell in run.cells]
    listed = "; ".join(names) or "none"
    chosen = list(run.cells)
    if label is not None:
        chosen = [cell for cell in chosen if cell.label == label]
        if not chosen:
            hint = nearest(label, names)
            raise InputError(f"{run.path}: no cell {label!r}{hint}; finished are {listed}")
    key = checkpoint_key(find_model(str(model)), fingerprints)
    cells = [cell for cell in chosen if cell.weights_key == key]
    if not cells:
        key = key_of_merge(recipe, fingerprints) or ""
        cells = [cell for cell in chosen if cell.weights_key == key]
    if cells:
        return cells[0]
    if label is not None:
        raise InputError(
            f"{run.path}: the scores of {label!r} are of other weights, config or tokenizer than "
            f"{model} holds now, and of another merge; evaluate it: layerswap evaluate {model}"
        )
    raise InputError(
        f"{run.path}: no cell has the weights of {model}, and none merges the same tensors; "
        f"evaluate it (layerswap evaluate {model}). Finished are {listed}"
    )


def key_of_merge(recipe: Recipe, fingerprints: Fingerprints) -> str | None:
    """Return the key that a recipe's merge has in studies; None where its models are not to be had.

    Of a model on the hub, the headers are enough: they come with the names of the contents.
    """
    hub = Downloads(headers_only=True)
    try:
        experts = {name: find_model(name, hub=hub) for name in recipe.references}
    except LayerSwapError:
        return None
    places = {name: expert.reference for name, expert in experts.items()}
    placed = read_recipe(with_references(recipe.document, places))
    try:
        with hub.fetching():
            return merge_key(placed, [*experts.values()], fingerprints)
    except InputError:  # its models are no longer those that were merged
        return None
