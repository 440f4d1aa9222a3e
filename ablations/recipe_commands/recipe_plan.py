"""The layer plan of a recipe or a finished merge, in lines and as a picture; reads configs only."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.drawing.colors import COLORS, UNCLEAR_COLOR
from ablations.recipe_commands.find import open_recipe
from ablations.recipe_commands.model_facts import look_up
from layerswap_method.errors import InputError, input_errors
from layerswap_method.layer_plan import (
    MODULES,
    LayerPlan,
    Source,
    draw_plan,
)
from layerswap_method.methods import layer_swap_merge
from layerswap_method.methods.read import RecipeFile, read_recipe
from layerswap_method.methods.table import METHODS, OUR_METHODS
from layerswap_method.output import PLAN_FILE
from layerswap_method.recipe.references import is_folder, named_models

_COLORS: dict[Source, str] = {
    "language": COLORS[1],
    "average": COLORS[5],
    "task": COLORS[0],
    "base": UNCLEAR_COLOR,
}
"""Colours of the drawing in a notebook."""

_LEFT, _SIDE = 64, 18
"""Pixels left of the first layer, and from one layer to the next."""


@dataclass(frozen=True)
class RecipePlan:
    """The plan of a recipe, or of what was made of one; as text it is log lines and a picture.

    The source of a layer is ``task``, ``language``, ``average`` or ``base``.
    """

    merge_method: str
    layers: tuple[Source, ...]
    """Source of every layer, the layer of the embeddings first."""

    modules: Mapping[str, tuple[Source, ...]]
    """``attention`` and ``mlp`` -> their sources, where they are chosen separately; else empty."""

    parameters: Mapping[str, Any]
    """The parameters of the recipe, with defaults."""

    models: Mapping[str, str]
    """Model, as the recipe names it -> its role: ``task``, ``language`` or ``base``."""

    adapter: Mapping[str, Any] | None
    """The kind of adapter that a folder of `swap-adapters` holds, and what was cut of it."""

    lines: tuple[str, ...]

    @property
    def num_layers(self) -> int:
        """The depth of the model."""
        return len(self.layers)

    def __repr__(self) -> str:
        return str(self)  # so a notebook shows it

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        """Return a drawing: a square for each layer in the colour of its source, and a legend."""
        rows, used = dict(self.modules) or {"layer": self.layers}, set[Source]()
        parts = [
            f'<text x="{_LEFT + _SIDE * layer}" y="12">{layer}</text>'
            for layer in range(0, self.num_layers, 5)
        ]
        for row, (name, sources) in enumerate(rows.items(), 1):
            used.update(sources)
            parts.append(f'<text x="0" y="{_SIDE * row + 13}">{name}</text>')
            parts += [
                f'<rect x="{_LEFT + _SIDE * layer}" y="{_SIDE * row}" width="{_SIDE - 2}" '
                f'height="{_SIDE - 2}" fill="{_COLORS[source]}">'
                f"<title>layer {layer}: {source}</title></rect>"
                for layer, source in enumerate(sources)
            ]
        width, height = _LEFT + _SIDE * self.num_layers, _SIDE * (len(rows) + 1)
        legend = []
        for source in (source for source in _COLORS if source in used):
            names = ", ".join(model for model, role in self.models.items() if role == source)
            words = html.escape(f"{source}: {names}" if names else source)
            legend.append(f'<span style="color: {_COLORS[source]}">&#9632;</span> {words}')
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" style="max-width: 100%" fill="currentColor" font-size="12">'
            f"{''.join(parts)}</svg>\n<p>{'<br>'.join(legend)}</p>"
        )


def plan_recipe(
    recipe: str | os.PathLike[str] | Mapping[str, Any], num_layers: int | None = None
) -> RecipePlan:
    """Return the plan of a recipe, or of the folder of a `layer_swap`: of a merge or an adapter.

    Without `num_layers`, the depth is read from the config of a model, local or on the hub.

    Raises:
        InputError: for a recipe that is wrong, a method without a plan, or an unknown depth.
    """
    if not isinstance(recipe, Mapping) and is_folder(recipe):
        return _plan_of_folder(Path(recipe))
    return _plan_of_file(open_recipe(recipe), num_layers)


def _plan_of_file(file: RecipeFile, num_layers: int | None) -> RecipePlan:
    path, recipe = file.name, read_recipe(file.document)
    method = METHODS.get(recipe.merge_method)
    if method is None or method.outline is None:
        raise InputError(
            f"{path}: {recipe.merge_method} makes every tensor of all models, so there is no plan "
            f"to draw; layerswap plan draws {' and '.join(OUR_METHODS)}"
        )
    depth = num_layers or _depth(path, file.document)
    with input_errors(path):
        plan = recipe.layer_plan(depth)
    if plan is None:
        is_drawn_later = method.plan_file == PLAN_FILE
        advice = "; merge it, then layerswap plan MERGED_FOLDER draws what came out"
        raise InputError(
            f"{path}: what comes from where is measured at the merge, so there is no plan to draw"
            f"{advice if is_drawn_later else ''}"
        )
    shown = _with_moved_part(plan, recipe.moved_part)
    return RecipePlan(
        merge_method=recipe.merge_method,
        layers=shown.sources,
        modules=shown.modules,
        parameters=recipe.model_dump(include={"parameters"})["parameters"],
        models=recipe.roles,
        adapter=None,
        lines=(*method.outline(recipe, plan), *draw_plan(shown).splitlines()),
    )


def _plan_of_folder(folder: Path) -> RecipePlan:
    file = folder / PLAN_FILE
    if not file.is_file():
        raise InputError(f"{folder}: holds no {PLAN_FILE}, which a layer_swap merge leaves")
    try:
        return _swap_plan(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: is damaged; merge the recipe again") from error


def _swap_plan(record: Mapping[str, Any]) -> RecipePlan:
    moved = record["parameters"]["swap_modules"]
    plan = _with_moved_part(
        layer_swap_merge.plan_of_record(record), None if moved == "all" else moved
    )
    # The log of a measured plan has the picture.
    lines = dict.fromkeys([*layer_swap_merge.swap_lines(record), *draw_plan(plan).splitlines()])
    experts = {entry["model"]: entry["role"] for entry in record["models"]}
    return RecipePlan(
        merge_method=record["merge_method"],
        layers=plan.sources,
        modules=plan.modules,
        parameters=record["parameters"],
        models={record["base_model"]: "base", **experts},
        adapter=record.get("adapter"),
        lines=tuple(lines),
    )


def _with_moved_part(plan: LayerPlan, moved: str | None) -> LayerPlan:
    """Return a plan as it is drawn: by modules, where one part of each layer alone is swapped."""
    if moved is None:
        return plan
    rest: tuple[Source, ...] = tuple("task" for _ in plan.sources)
    modules = {part: plan.sources if part == moved else rest for part in MODULES}
    return LayerPlan(plan.sources, modules)


def _depth(path: str, document: Mapping[str, Any]) -> int:
    """Return the depth that the first config states that can be read."""
    for reference in dict.fromkeys(named_models(document)):
        model = look_up(reference, hub=True, recipe=Path(path))
        if model.depth is not None:
            return model.depth
    raise InputError(
        f"{path}: no config of its models is local or on the hub, so the number of layers is not "
        "known; write --layers N"
    )
