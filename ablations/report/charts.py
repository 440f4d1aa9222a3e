"""What the figures of a report show, as numbers. Knows no plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ablations.drawing.charts import Chart, Panel, Point, Series
from ablations.machine.names import slug
from ablations.report.design import (
    Group,
    Model,
    baseline_of,
    baselines,
    by_kind,
    describe_value,
)
from ablations.report.factors import Factor, Level, factors, over_fact
from ablations.report.observations import Measure, Observations
from ablations.report.summaries import Summaries
from ablations.report.tables import grid, has_pairs
from ablations.report.wording import measure_text, metric_text
from ablations.study.schema import BaselineKind

_MOST_SERIES = 4
_Place = tuple[float, Level, str]
"""Position, what stands there, and its tick."""

_COUNTS = ("bottom_layers", "top_layers")
_AXES = {
    "bottom_layers": "bottom layers from the language expert (b)",
    "top_layers": "top layers from the language expert (u)",
    "bottom_transition": "averaged layers at the bottom (t_b)",
    "top_transition": "averaged layers at the top (t_u)",
}


def charts(summaries: Summaries) -> Iterator[Chart]:
    """Yield the figures that fit the study: lines over numbers, bars over names, b × u."""
    study = summaries.observations.run.study
    found = factors(study)
    for factor in found:
        if factor.names == ("seed",):
            continue
        others = [each for each in found if each is not factor and each.names != ("seed",)]
        for fact in study.report.facts:
            if fact.rpartition(".")[0] in factor.names:
                yield _line_chart(summaries, over_fact(study, factor, fact), others)
        if set(factor.names) == set(_COUNTS):
            chart = _layer_count_chart(summaries, factor, others)
        elif _is_numeric(factor):
            chart = _line_chart(summaries, factor, others)
        else:
            chart = _bar_chart(summaries, factor)
        if chart.panels:
            yield chart
    heatmap = _heatmap(summaries)
    if heatmap is not None:
        yield heatmap


def _layer_count_chart(summaries: Summaries, factor: Factor, others: Sequence[Factor]) -> Chart:
    observations = summaries.observations
    counted = [
        (count, level) for level in factor.levels if (count := _swapped(observations, level))
    ]
    places = [
        (float(count[0]), level, f"{count[0]}\n{_pair(level.label)}") for count, level in counted
    ]
    total = max((count[1] for count, _ in counted), default=0)
    return Chart(
        "score-layer-count",
        "Score against the number of swapped layers",
        f"{_caption(summaries, others)} b, u: layers at the bottom and at the top as the study "
        "gives them.",
        "lines",
        f"layers from the language expert (of {total}); below: b+u",
        _panels(summaries, _split(summaries, places, others)),
        is_continuous=len({x for x, _, _ in places}) == len(places),
    )


def _line_chart(summaries: Summaries, factor: Factor, others: Sequence[Factor]) -> Chart:
    places = [
        (float(level.value), level, "")
        for level in factor.levels
        if isinstance(level.value, (int, float))
    ]
    name = factor.names[0]
    return Chart(
        slug(f"score-{name}"),
        f"Score against {factor.label}",
        _caption(summaries, others),
        "lines",
        _AXES.get(name, factor.label),
        _panels(summaries, _split(summaries, places, others)),
    )


def _split(
    summaries: Summaries, places: Sequence[_Place], others: Sequence[Factor]
) -> list[tuple[str, list[_Place]]]:
    """Return a line per level of the only other factor; one line where there is none or many.

    A baseline of other experts at other places is a line, too.
    """
    baselined = _baseline_lines(summaries, places)
    if not _is_split(others):
        return [(_recipe_name(summaries), list(places)), *baselined]
    return [
        *(
            (
                other.label if "=" in other.label else f"{others[0].label} {other.label}",
                [(x, _only(each, other.models), tick) for x, each, tick in places],
            )
            for other in others[0].levels
        ),
        *baselined,
    ]


def _only(level: Level, models: Sequence[Model]) -> Level:
    return replace(level, models=tuple(model for model in level.models if model in models))


def _baseline_lines(
    summaries: Summaries, places: Sequence[_Place]
) -> list[tuple[str, list[_Place]]]:
    """Return the baselines whose experts are not the same at all places: kind, line."""
    lines = []
    for kind in summaries.observations.run.study.baseline:
        line = [
            (x, replace(level, models=_baselines_of(kind, level)), tick)
            for x, level, tick in places
        ]
        if len({frozenset(level.models) for _, level, _ in line}) > 1:
            lines.append((line[0][1].models[0].label, line))
    return lines


def _baselines_of(kind: BaselineKind, level: Level) -> tuple[Model, ...]:
    return tuple(dict.fromkeys(baseline_of(kind, model) for model in level.models))


def _is_split(others: Sequence[Factor]) -> bool:
    return len(others) == 1 and len(others[0].levels) <= _MOST_SERIES


def _bar_chart(summaries: Summaries, factor: Factor) -> Chart:
    places = [
        (float(position), level, _tick(factor, level))
        for position, level in enumerate(factor.levels)
    ]
    others = [each for each in factors(summaries.observations.run.study) if each != factor]
    lines = [(_recipe_name(summaries), places), *_baseline_lines(summaries, places)]
    return Chart(
        slug(f"bars-{'-'.join(factor.names)}"),
        f"Score by {factor.label}",
        _caption(summaries, others, is_split=False),
        "bars" if len(lines) == 1 else "lines",
        factor.label,
        _panels(summaries, lines),
        is_continuous=False,
    )


def _tick(factor: Factor, level: Level) -> str:
    """Return the level without the name of the factor, which stands below the axis."""
    name = factor.names[0]
    is_single = len(factor.names) == 1 and name in level.setting
    return describe_value(level.setting[name]) if is_single else level.label


def _heatmap(summaries: Summaries) -> Chart | None:
    panels = []
    for group, measure in _shares(summaries.observations):
        cells = grid(summaries, group, measure)
        if cells is None:
            return None
        bottoms, tops, found = cells
        values = tuple(
            tuple(
                None if (each := found[bottom, top]) is None else 100 * each.average for top in tops
            )
            for bottom in bottoms
        )
        panels.append(
            Panel(
                title=f"{measure_text(measure, group)}, {metric_text(measure)}",
                y_label="",
                rows=tuple(str(bottom) for bottom in bottoms),
                columns=tuple(str(top) for top in tops),
                values=values,
            )
        )
    return Chart(
        "heatmap-b-u",
        "Score by layers at the bottom and at the top",
        "Hatched cells have no result. Intervals are in the table of the same data.",
        "heatmap",
        _AXES["top_layers"],
        tuple(panels),
        y_label=_AXES["bottom_layers"],
    )


def _panels(
    summaries: Summaries, lines: Sequence[tuple[str, Sequence[_Place]]]
) -> tuple[Panel, ...]:
    panels = []
    for group, measure in _shares(summaries.observations):
        series = []
        for name, levels in lines:
            points = [
                point
                for place in sorted(levels, key=lambda each: each[0])
                if (point := _point(summaries, place, group, measure)) is not None
            ]
            if points:
                series.append(Series(name, tuple(points)))
        if series:
            panels.append(
                Panel(
                    title=measure_text(measure, group),
                    y_label=metric_text(measure),
                    series=tuple(series),
                    references=tuple(
                        (name, value)
                        for name, value in _references(summaries, group, measure)
                        if name not in dict(lines)
                    ),
                )
            )
    return tuple(panels)


def _point(summaries: Summaries, place: _Place, group: Group, measure: Measure) -> Point | None:
    x, level, tick = place
    summary = summaries.of(level.models, group, measure)
    if summary is None:
        return None
    low, high = summary.interval or (None, None)
    return Point(
        x=x,
        tick=tick,
        value=100 * summary.average,
        low=None if low is None else 100 * low,
        high=None if high is None else 100 * high,
    )


def _references(
    summaries: Summaries, group: Group, measure: Measure
) -> Iterator[tuple[str, float]]:
    for name, models in by_kind(baselines(summaries.observations.run.study)).items():
        summary = summaries.of(models, group, measure)
        if summary is not None:
            yield name, 100 * summary.average


def _swapped(observations: Observations, level: Level) -> tuple[int, int] | None:
    """Return (layers from the language expert, all layers) as the cells' plans have them."""
    for model in level.models:
        for group in observations.groups:
            for cell in observations.cells(model, group).values():
                if cell is not None and cell.plan is not None:
                    return cell.plan.count("language"), len(cell.plan)
    return None


def _shares(observations: Observations) -> Iterator[tuple[Group, Measure]]:
    for group in observations.groups:
        for measure in observations.measures(group):
            if measure.is_share:
                yield group, measure


def _is_numeric(factor: Factor) -> bool:
    return all(
        isinstance(level.value, (int, float)) and not isinstance(level.value, bool)
        for level in factor.levels
    )


def _caption(
    summaries: Summaries, others: Sequence[Factor], *, is_split: bool | None = None
) -> str:
    observations = summaries.observations
    over = "experts and items" if has_pairs(observations) else "items"
    level = observations.run.study.evaluate.level
    text = f"Error bars: {level:.0%} intervals over {over}."
    if any(len(models) > 1 for models in by_kind(baselines(observations.run.study)).values()):
        text += " A baseline drawn as one level line is the average of its experts."
    split = _is_split(others) if is_split is None else is_split
    if others and not split:
        text += f" Averaged over {', '.join(each.label for each in others)}."
    return text


def _recipe_name(summaries: Summaries) -> str:
    recipe = summaries.observations.run.study.recipe or {}
    return str(recipe.get("merge_method", "recipe")).replace("_", " ")


def _pair(label: str) -> str:
    """Return ``5+2`` for ``b=5 u=2``."""
    return "+".join(part.partition("=")[2] for part in label.split())
