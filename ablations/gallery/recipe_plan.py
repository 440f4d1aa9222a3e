"""The layer plan of a recipe or a finished merge, in lines and as a picture; reads configs only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablations.gallery.check import look_up
from ablations.gallery.find import find_recipe
from layerswap_method.errors import InputError, input_errors
from layerswap_method.layer_plan import (
    MODULES,
    LayerPlan,
    Source,
    draw_plan,
)
from layerswap_method.methods import delta_revert, layer_swap_merge
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.read import OUR_METHODS, read_recipe_file, read_written
from layerswap_method.output import PLAN_FILE
from layerswap_method.recipe.references import named_models
from layerswap_method.tensor_names import Decoder


def plan_lines(name: str, num_layers: int | None = None) -> list[str]:
    """Return the plan of a recipe, a file or a shipped one, or of the folder of a `layer_swap`.

    They are the lines of the merge's log, and a picture. Without `num_layers`, the depth is read
    from the config of a model, local or on the hub.

    Raises:
        InputError: for a recipe that is wrong, a method without a plan, or an unknown depth.
    """
    path = Path(name)
    if path.is_dir():
        return _lines_of_merge(path)
    path = path if path.is_file() else find_recipe(name)
    document = read_recipe_file(path).document
    recipe = read_written(document).typed
    if isinstance(recipe, LayerSwapRecipe):
        if recipe.parameters.placement == "delta_share":
            raise InputError(
                f"{path}: placement: delta_share goes by what the experts changed; merge it, then "
                "layerswap plan MERGED_FOLDER draws what came out"
            )
        with input_errors(str(path)):
            plan = recipe.parameters.plan(num_layers or _depth(path, document))
        return _swap_lines(layer_swap_merge.swap_record(recipe, plan))
    if isinstance(recipe, DeltaRevertRecipe):
        if recipe.parameters.by_feature:
            raise InputError(
                f"{path}: which rows go back is measured at the merge, so there is no plan to draw"
            )
        depth = num_layers or _depth(path, document)
        with input_errors(str(path)):
            back = recipe.parameters.layers(depth)
        record = delta_revert.revert_record(recipe, back, Decoder("", depth), None, {})
        expert, layers, *_ = delta_revert.revert_lines(recipe.parameters, record)
        plan = LayerPlan(tuple("base" if layer in back else "task" for layer in range(depth)))
        return [expert, layers, *draw_plan(plan).splitlines()]
    raise InputError(
        f"{path}: {document['merge_method']} makes every tensor of all models, so there is no plan "
        f"to draw; layerswap plan draws {' and '.join(OUR_METHODS)}"
    )


def _lines_of_merge(folder: Path) -> list[str]:
    file = folder / PLAN_FILE
    if not file.is_file():
        raise InputError(f"{folder}: holds no {PLAN_FILE}, which a layer_swap merge leaves")
    try:
        return _swap_lines(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: is damaged; merge the recipe again") from error


def _swap_lines(record: Mapping[str, Any]) -> list[str]:
    plan, moved = layer_swap_merge.plan_of_record(record), record["parameters"]["swap_modules"]
    if moved != "all":
        rest: tuple[Source, ...] = tuple("task" for _ in plan.sources)
        modules = {part: plan.sources if part == moved else rest for part in MODULES}
        plan = LayerPlan(plan.sources, modules)
    # The log of a measured plan has the picture.
    return list(
        dict.fromkeys([*layer_swap_merge.swap_lines(record), *draw_plan(plan).splitlines()])
    )


def _depth(path: Path, document: Mapping[str, Any]) -> int:
    """Return the depth that the first config states that can be read."""
    for reference in dict.fromkeys(named_models(document)):
        if (depth := look_up(reference, hub=True).depth) is not None:
            return depth
    raise InputError(
        f"{path}: no config of its models is local or on the hub, so the number of layers is not "
        "known; write --layers N"
    )
