"""Which expert supplies what in a recipe or a merge, from configs only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablations.gallery.check import look_up
from ablations.gallery.find import find_recipe
from layerswap_method.errors import InputError, input_errors
from layerswap_method.frozen import Frozen
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.layer_swap_merge import plan_of_record
from layerswap_method.methods.read import OWN, read_own_recipe, read_recipe_file
from layerswap_method.output import PLAN_FILE
from layerswap_method.plan import SYMBOLS, Source, format_layers, tensor_source
from layerswap_method.recipe.references import named_models

_PARTS = {
    "attention": "self_attn.q_proj.weight",
    "mlp": "mlp.up_proj.weight",
    "norms": "input_layernorm.weight",
}
"""Part of a layer -> a tensor that stands for it."""

_ORDER: tuple[Source, ...] = ("language", "average", "task", "base")


class Supply(Frozen):
    """Where the parts of a merged model come from."""

    columns: dict[str, tuple[Source, ...]]
    """`layers`, or `attention`, `mlp` and `norms` where they differ -> source in every layer, layer
    0 at the embedding side. `task` is the one expert of a `delta_revert`."""

    outside: Source
    """Source of embeddings, final norm and head."""

    suppliers: dict[Source, str]
    """Source -> the models behind it, in words."""


def supply_of(name: str, num_layers: int | None = None) -> Supply:
    """Return the plan of a recipe, a file or a shipped one, or of the folder of a `layer_swap`.

    Without `num_layers`, L is read from the config of a model that is here or on the hub.

    Raises:
        InputError: for a recipe that is wrong, a method without a plan, or an unknown depth.
    """
    path = Path(name)
    if path.is_dir():
        return _supply_of_merge(path)
    path = path if path.is_file() else find_recipe(name)
    document = read_recipe_file(path).document
    recipe = read_own_recipe(document)
    if isinstance(recipe, LayerSwapRecipe):
        if recipe.parameters.placement == "delta_share":
            raise InputError(
                f"{path}: placement: delta_share goes by what the experts changed; merge it, then "
                "layerswap plan MERGED_FOLDER draws what came out"
            )
        with input_errors(str(path)):
            plan = recipe.parameters.plan(num_layers or _depth(path, document))
        models = [(str(entry.parameters.role), entry.model) for entry in recipe.experts]
        return _swap_supply(plan, models, recipe.base_model, recipe.parameters.model_dump())
    if isinstance(recipe, DeltaRevertRecipe):
        return _revert_supply(path, recipe, num_layers or _depth(path, document))
    raise InputError(
        f"{path}: {document['merge_method']} makes every tensor of all models, so there is no plan "
        f"to draw; layerswap plan draws {' and '.join(OWN)}"
    )


def describe(supply: Supply) -> Iterator[str]:
    """Yield lines: the models, a ruler with one cell a layer, layers by source, the rest."""
    for source, models in supply.suppliers.items():
        yield f"{source}: {models}"
    width, count = max(map(len, supply.columns)), len(next(iter(supply.columns.values())))
    ruler = "".join("|" if layer % 5 == 0 else " " for layer in range(count))
    yield f"  {'layer':{width}} 0 {ruler} {count - 1}"
    for name, sources in supply.columns.items():
        yield f"  {name:{width}}   {''.join(SYMBOLS[source] for source in sources)}"
    used = {supply.outside}.union(*supply.columns.values())
    legend = (f"{SYMBOLS[source]} {source}" for source in _ORDER if source in used)
    yield f"  {' ' * width}   {'  '.join(legend)}"
    for name, sources in supply.columns.items():
        chosen = {s: [i for i, each in enumerate(sources) if each == s] for s in _ORDER}
        listed = (f"{source} {format_layers(at)}" for source, at in chosen.items() if at)
        yield f"{name}: {'; '.join(listed)}"
    yield f"embeddings, final norm, head: {supply.outside}"


def _swap_supply(plan: Any, models: Any, base: Any, parameters: Mapping[str, Any]) -> Supply:
    named: dict[Source, list[str]] = {"task": [], "language": []}
    for role, model in models:
        named["task" if role == "task" else "language"].append(str(model))
    if parameters["non_layer"] == "base":
        named["base"] = [str(base)]
    rules = {key: parameters[key] for key in ("non_layer", "layer_norms", "swap_modules")}
    return Supply(
        columns=_columns(
            plan.num_layers, lambda name, layer: tensor_source(name, layer, plan, **rules)
        ),
        outside=parameters["non_layer"],
        suppliers={source: ", ".join(models) for source, models in named.items()},
    )


def _revert_supply(path: Path, recipe: DeltaRevertRecipe, num_layers: int) -> Supply:
    spec = recipe.parameters
    if spec.by_feature:
        raise InputError(
            f"{path}: which rows go back is measured at the merge, so there is no plan to draw"
        )
    with input_errors(str(path)):
        back = spec.layers(num_layers)
    named: dict[str, Source] = {"base": "base", "expert": "task"}
    return Supply(
        columns=_columns(num_layers, lambda name, layer: named[spec.rule(name, layer, back)]),
        outside=named[spec.rule("model.norm.weight", None, back)],
        suppliers={"task": str(recipe.expert), "base": str(recipe.base_model)},
    )


def _columns(
    num_layers: int, source_of: Callable[[str, int], Source]
) -> dict[str, tuple[Source, ...]]:
    """Return the source of each part in each layer; of whole layers where the parts agree."""
    found = {
        part: tuple(source_of(name, layer) for layer in range(num_layers))
        for part, name in _PARTS.items()
    }
    return {"layers": found["mlp"]} if len(set(found.values())) == 1 else found


def _supply_of_merge(folder: Path) -> Supply:
    file = folder / PLAN_FILE
    if not file.is_file():
        raise InputError(f"{folder}: holds no {PLAN_FILE}, which a layer_swap merge leaves")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        models = [(model["role"], model["model"]) for model in record["models"]]
        base = record.get("base_model")
        return _swap_supply(plan_of_record(record), models, base, record["parameters"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: is damaged; merge the recipe again") from error


def _depth(path: Path, document: Mapping[str, Any]) -> int:
    """Return the depth that the first config states that can be read."""
    for reference in dict.fromkeys(named_models(document)):
        if (depth := look_up(reference, hub=True).depth) is not None:
            return depth
    raise InputError(
        f"{path}: no config of its models is here or on the hub, so the number of layers is not "
        "known; write --layers N"
    )
