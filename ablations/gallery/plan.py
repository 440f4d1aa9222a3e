"""Which expert supplies what in a recipe or a merge, from configs only. Knows no tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.drawing.canvas import KINDS
from ablations.gallery.find import find_recipe
from ablations.gallery.layer_stacks import Stack, draw_stacks
from ablations.gallery.models import look_up
from ablations.machine.whole_files import check_place, told_if_unwritable, write_bytes
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.methods.delta_revert import NAME as DELTA_REVERT
from layerswap_method.methods.delta_revert import DeltaRevertRecipe, RevertSpec
from layerswap_method.methods.layer_swap import NAME as LAYER_SWAP
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.layer_swap_merge import read_plan
from layerswap_method.output import PLAN_FILE
from layerswap_method.plan import SYMBOLS, LayerPlan, Source, format_layers, tensor_source
from layerswap_method.recipe.references import named_models
from layerswap_method.recipe.strict_yaml import read_yaml

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

    @property
    def num_layers(self) -> int:
        """L, the number of decoder layers."""
        return len(next(iter(self.columns.values())))


def supply_of(name: str, num_layers: int | None = None) -> Supply:
    """Return the plan of a recipe, or of the folder of a finished `layer_swap`.

    Args:
        name: a recipe's file or a shipped one, or a merged folder with `layer_swap_plan.json`.
        num_layers: L; None asks the config of a model that is here or on the hub.

    Raises:
        InputError: for a recipe that is wrong, a method without a plan, or an unknown depth.
    """
    path = Path(name)
    if path.is_dir():
        return _supply_of_merge(path)
    if not path.is_file():
        path = find_recipe(name)
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: is no recipe")
    method = document.get("merge_method")
    if method == LAYER_SWAP:
        swap = LayerSwapRecipe.read(document)
        if swap.parameters.placement == "delta_share":
            raise InputError(
                f"{path}: placement: delta_share goes by what the experts changed; merge it, then "
                "layerswap plan MERGED_FOLDER draws what came out"
            )
        try:
            plan = swap.parameters.plan(num_layers or _depth(path, document))
        except ValueError as error:
            raise InputError(f"{path}: {error}") from error
        return _swap_supply(swap, plan)
    if method == DELTA_REVERT:
        revert = DeltaRevertRecipe.read(document)
        return _revert_supply(path, revert, num_layers or _depth(path, document))
    raise InputError(
        f"{path}: {method} makes every tensor of all models, so there is no plan to draw; "
        f"layerswap plan draws {LAYER_SWAP} and {DELTA_REVERT}"
    )


def describe(supply: Supply) -> Iterator[str]:
    """Yield lines: the models, a ruler with one cell a layer, layers by source, the rest."""
    for source, models in supply.suppliers.items():
        yield f"{source}: {models}"
    last = supply.num_layers - 1
    width = max(len(name) for name in supply.columns)
    ruler = "".join("|" if layer % 5 == 0 else " " for layer in range(supply.num_layers))
    yield f"  {'layer':{width}} 0 {ruler} {last}"
    for name, sources in supply.columns.items():
        cells = "".join(SYMBOLS[source] for source in sources)
        yield f"  {name:{width}}   {cells}"
    shown = [*(s for sources in supply.columns.values() for s in sources), supply.outside]
    legend = (f"{SYMBOLS[source]} {source}" for source in _ORDER if source in shown)
    yield f"  {' ' * width}   {'  '.join(legend)}"
    for name, sources in supply.columns.items():
        chosen = {s: [i for i, each in enumerate(sources) if each == s] for s in _ORDER}
        listed = (f"{source} {format_layers(at)}" for source, at in chosen.items() if at)
        yield f"{name}: {'; '.join(listed)}"
    yield f"embeddings, final norm, head: {supply.outside}"


def draw(supply: Supply, name: str, out: Path) -> None:
    """Write the plan as a picture, whose kind is the ending of `out`.

    Raises:
        InputError: for another ending.
        LayerSwapError: without matplotlib.
    """
    kind = out.suffix.removeprefix(".")
    if kind not in KINDS:
        raise InputError(f"{out}: write a name that ends in .{', .'.join(KINDS)}")
    check_place(out)
    image = draw_stacks(stacks_of(supply), name, (kind,))[kind]
    with told_if_unwritable(out):
        write_bytes(out, image)


def stacks_of(supply: Supply) -> list[Stack]:
    """Return what the figure shows: each supplier with the layers it gives, the merge between."""
    used = {*(s for sources in supply.columns.values() for s in sources), supply.outside}
    both = "average" in used
    givers = [s for s in ("task", "language", "base") if s in used or (both and s != "base")]
    merged = Stack(
        "merged model", tuple(supply.columns.items()), supply.outside, tuple(supply.columns)
    )
    sides = []
    for giver in givers:
        columns = tuple(
            (name, tuple(giver if s in (giver, "average") else "" for s in sources))
            for name, sources in supply.columns.items()
        )
        outside = giver if supply.outside in (giver, "average") else ""
        title = "base" if giver == "base" else f"{giver} expert"
        sides.append(Stack(title, columns, outside, ()))
    return [sides[0], merged, *sides[1:]]


def _swap_supply(recipe: LayerSwapRecipe, plan: LayerPlan) -> Supply:
    named: dict[Source, str] = {}
    for role in ("task", "language"):
        models = [e.model for e in recipe.experts if e.parameters.role == role]
        named[role] = ", ".join(str(model) for model in models)
    if recipe.parameters.non_layer == "base":
        named["base"] = str(recipe.base_model)
    columns = _columns(plan, recipe.parameters.model_dump())
    return Supply(columns=columns, outside=recipe.parameters.non_layer, suppliers=named)


def _columns(plan: LayerPlan, parameters: Mapping[str, Any]) -> dict[str, tuple[Source, ...]]:
    """Return the source of each part in each layer; of whole layers where the parts agree."""
    kept = {key: parameters[key] for key in ("non_layer", "layer_norms", "swap_modules")}
    found = {
        part: tuple(tensor_source(name, layer, plan, **kept) for layer in range(plan.num_layers))
        for part, name in _PARTS.items()
    }
    return {"layers": found["mlp"]} if len(set(found.values())) == 1 else found


def _revert_supply(path: Path, recipe: DeltaRevertRecipe, num_layers: int) -> Supply:
    spec: RevertSpec = recipe.parameters
    if spec.by_feature:
        raise InputError(
            f"{path}: which rows go back is measured at the merge, so there is no plan to draw"
        )
    try:
        back = spec.layers(num_layers)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    rules = {
        part: tuple(spec.rule(name, layer, back) for layer in range(num_layers))
        for part, name in _PARTS.items()
    }
    named: dict[str, Source] = {"base": "base", "expert": "task"}
    columns = {part: tuple(named[rule] for rule in rules[part]) for part in rules}
    if len(set(columns.values())) == 1:
        columns = {"layers": columns["mlp"]}
    return Supply(
        columns=columns,
        outside=named[spec.rule("model.norm.weight", None, back)],
        suppliers={"task": str(recipe.expert), "base": str(recipe.base_model)},
    )


def _supply_of_merge(folder: Path) -> Supply:
    try:
        plan = read_plan(folder)
        if plan is not None:
            return _supply_of_record(folder, plan)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / PLAN_FILE}: is damaged; merge the recipe again") from error
    raise InputError(f"{folder}: holds no {PLAN_FILE}, which a layer_swap merge leaves")


def _supply_of_record(folder: Path, plan: LayerPlan) -> Supply:
    record: Mapping[str, Any] = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
    models: Sequence[Mapping[str, Any]] = record["models"]
    named: dict[Source, str] = {
        role: ", ".join(str(m["model"]) for m in models if m["role"] == role)
        for role in ("task", "language")
    }
    parameters = record["parameters"]
    if parameters["non_layer"] == "base":
        named["base"] = str(record["base_model"])
    columns = _columns(plan, parameters)
    return Supply(columns=columns, outside=parameters["non_layer"], suppliers=named)


def _depth(path: Path, document: Mapping[str, Any]) -> int:
    """Return the depth that the first config states that can be read."""
    for reference in dict.fromkeys(named_models(document)):
        known = look_up(reference, hub=True)
        if known.depth is not None:
            return known.depth
    raise InputError(
        f"{path}: no config of its models is here or on the hub, so the number of layers is not "
        "known; write --layers N"
    )
