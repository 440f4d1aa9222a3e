"""Which b and u are best: the map of a study that tries many of them. Knows no plotting library."""

from __future__ import annotations

from dataclasses import dataclass

from ablations.drawing.score_map import MapCell, MapPanel, ScoreMap
from ablations.report.baselines import baseline_rows, reference_kind
from ablations.report.best import Best, Models, best_of
from ablations.report.design import Group, Model, recipe_models, setting_key
from ablations.report.observations import Measure
from ablations.report.summaries import Summaries
from ablations.report.targets import ordered
from ablations.report.wording import measure_text, metric_text
from ablations.study.documents import LAYER_SWAP
from ablations.study.schema import SUGGEST, Setting
from layerswap_method.plan import build_plan

_FEWEST = 6
"""Places that make a map."""

Place = tuple[int, int]
"""Layers at the bottom and at the top."""


@dataclass(frozen=True)
class LayerMap:
    """The settings of a study by the layers that they swap."""

    places: dict[Place, Models]
    """(b, u) -> the settings that swap exactly these layers; one model may have several places."""

    suggested: Models
    """What `layerswap suggest` proposes; empty where the study does not ask for it."""

    suggested_place: Place | None
    """Its b and u, whatever transition layers it has."""

    num_layers: int
    """Of the model."""

    best: dict[tuple[Group, Measure], Best]
    """Per score: the best place and those that may be as good."""


def layer_map(summaries: Summaries) -> LayerMap | None:
    """Return the map; None where the study tries too few outer swaps for one."""
    run = summaries.observations.run
    study, depth = run.study, run.head.num_layers
    if depth is None or (study.recipe or {}).get("merge_method") != LAYER_SWAP:
        return None
    models = {model.setting: model for model in recipe_models(study)}
    plans: dict[tuple[str, ...], list[Place]] = {}
    for bottom in range(depth + 1):
        for top in range(depth + 1 - bottom):
            plan = build_plan(depth, bottom_layers=bottom, top_layers=top)
            plans.setdefault(plan.sources, []).append((bottom, top))
    found: dict[Place, dict[Model, None]] = {}
    suggested: dict[Model, None] = {}
    suggested_place = None
    for cell in run.head.cells:
        if cell.kind != "recipe":
            continue
        model = models[setting_key(cell.values)]
        if cell.values.get(SUGGEST):
            suggested[model] = None
            suggested_place = (
                _count(cell.values, "bottom_layers"),
                _count(cell.values, "top_layers"),
            )
        if cell.plan is not None and cell.values.get("placement", "outer") == "outer":
            for place in plans.get(tuple(cell.plan), []):
                found.setdefault(place, {})[model] = None
    bottoms, tops = ({place[side] for place in found} for side in (0, 1))
    possible = sum(b + u <= depth for b in bottoms for u in tops)
    if len(found) < _FEWEST or min(len(bottoms), len(tops)) < 2 or 2 * len(found) < possible:
        return None
    places = {place: tuple(each) for place, each in sorted(found.items())}
    settings = list(dict.fromkeys(places.values()))
    return LayerMap(
        places,
        tuple(suggested),
        suggested_place,
        depth,
        {
            (group, measure): best
            for group, measure in ordered(summaries.observations)
            if (best := best_of(summaries.observations, settings, group, measure))
        },
    )


def map_figure(summaries: Summaries, layers: LayerMap) -> ScoreMap:
    """Return the figure of a map."""
    study = summaries.observations.run.study
    bottoms, tops = (sorted({place[side] for place in layers.places}) for side in (0, 1))
    kind = reference_kind(study)
    name, reference = next(
        ((n, m) for n, m in baseline_rows(study).items() if m[0].kind == kind),
        ("average of the map", ()),
    )
    panels = []
    for group, measure in ordered(summaries.observations):
        best = layers.best.get((group, measure))
        found = {p: summaries.of(each, group, measure) for p, each in layers.places.items()}
        known = [summary.average for summary in found.values() if summary is not None]
        if not known:
            continue
        own = summaries.of(reference, group, measure) if reference else None
        middle = sum(known) / len(known) if own is None else own.average
        sign = 1 if measure.higher_is_better else -1
        cells = {
            (bottoms.index(b), tops.index(u)): MapCell(None)
            if (summary := found[b, u]) is None
            else MapCell(
                100 * summary.average,
                100 * sign * (summary.average - middle),
                is_best=best is not None and layers.places[b, u] == best.best,
                is_near_best=best is not None and layers.places[b, u] in best.near,
                is_suggested=(b, u) == layers.suggested_place,
            )
            for b, u in layers.places
        }
        title = f"{measure_text(measure, group)}, {metric_text(measure)}"
        panels.append(MapPanel(title, cells))
    caption = (
        f"Green: above the {name}; purple: below it; one colour scale for all panels. Framed: "
        "settings that are not significantly worse than the best, which was chosen on one half of "
        "the items and compared with the others on the other half."
    )
    if layers.suggested_place is not None:
        b, u = layers.suggested_place
        has_zone = layers.places.get((b, u)) != layers.suggested
        caption += f" Sugg.: what layerswap suggest proposes, b={b} u={u}" + (
            "; it adds transition layers, so its own score is in the table." if has_zone else "."
        )
    if sum(b + u == layers.num_layers for b, u in layers.places) > 1:
        caption += (
            f" Where b + u = {layers.num_layers}, every layer is the language expert's: "
            "these places are one model."
        )
    return ScoreMap(
        "map-b-u",
        "Score by layers at the bottom (b) and at the top (u)",
        caption,
        f"u: top layers of {layers.num_layers} from the language expert",
        "b: bottom layers",
        tuple(map(str, bottoms)),
        tuple(map(str, tops)),
        tuple(panels),
    )


def _count(values: Setting, name: str) -> int:
    found = values.get(name, 0)
    return found if isinstance(found, int) else 0
