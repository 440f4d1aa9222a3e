"""What the line figures of a report show, as numbers. Knows no plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablations.drawing.charts import Chart, Panel, Point, Series
from ablations.machine.names import slug
from ablations.report.baselines import baseline_of, baseline_rows
from ablations.report.design import SHORT, Model
from ablations.report.factors import Factor, Level, factors, over_fact
from ablations.report.observations import Observations
from ablations.report.summaries import Summaries
from ablations.report.tables import has_pairs
from ablations.report.targets import in_order
from ablations.report.wording import measure_text, metric_text

_MOST_SERIES, _MOST_LEVELS = 4, 12
_Place = tuple[float, tuple[Model, ...], str]
"""Position, the models that stand there, and its tick."""

_Line = tuple[str, Sequence[_Place]]

_COUNTS = ("bottom_layers", "top_layers")
_AXES = {
    "bottom_layers": "b: bottom layers from the language expert",
    "top_layers": "u: top layers from the language expert",
    "bottom_transition": "t_b: averaged layers at the bottom",
    "top_transition": "t_u: averaged layers at the top",
}


def charts(summaries: Summaries) -> Iterator[Chart]:
    """Yield lines for whatever varies as a number, and for facts of the experts."""
    study = summaries.observations.run.study
    # Seeds are a factor only where there is no other, and then no figure shows them.
    found = [factor for factor in factors(study) if factor.names != ("seed",)]
    for factor in found:
        others = [each for each in found if each is not factor]
        for fact in study.report.facts:
            if fact.rpartition(".")[0] in factor.names:
                yield _line_chart(summaries, over_fact(study, factor, fact), others)
        if set(factor.names) == set(_COUNTS) and len(factor.levels) <= _MOST_LEVELS:
            chart = _layer_count_chart(summaries, factor, others)
        elif all(type(level.value) in (int, float) for level in factor.levels):
            chart = _line_chart(summaries, factor, others)
        else:
            continue
        if chart.panels:
            yield chart


def _layer_count_chart(summaries: Summaries, factor: Factor, others: Sequence[Factor]) -> Chart:
    places: list[_Place] = []
    total = 0
    for level in factor.levels:
        swapped = _swapped(summaries.observations, level)
        if swapped is not None:
            count, total = swapped
            counts = "+".join(part.partition("=")[2] for part in level.label.split())
            places.append((float(count), level.models, f"{count}\n{counts}"))
    return Chart(
        "score-layer-count",
        "Score against the number of swapped layers",
        _caption(summaries, others),
        f"layers from the language expert (of {total}); below: b+u",
        _panels(summaries, _split(summaries, places, others)),
        is_continuous=len({x for x, _, _ in places}) == len(places),
    )


def _line_chart(summaries: Summaries, factor: Factor, others: Sequence[Factor]) -> Chart:
    places = [(float(level.value or 0), level.models, "") for level in factor.levels]
    name = factor.names[0]
    axis = _AXES.get(name, factor.label)
    own = f"{SHORT.get(name, name)}="
    fixed = [word for word in factor.levels[0].label.split() if not word.startswith(own)]
    if name in _COUNTS and fixed:  # the other end, which does not vary
        axis += f" ({' '.join(fixed)})"
    return Chart(
        slug(f"score-{name}"),
        f"Score against {factor.label}",
        _caption(summaries, others),
        axis,
        _panels(summaries, _split(summaries, places, others)),
    )


def _split(summaries: Summaries, places: Sequence[_Place], others: Sequence[Factor]) -> list[_Line]:
    """Return a line per level of the only other factor; one line where there is none or many.

    A baseline of other experts at other places is a line, too.
    """
    study = summaries.observations.run.study
    lines: list[_Line] = []
    if _is_split(others):
        for level in others[0].levels:
            name = level.label if "=" in level.label else f"{others[0].label} {level.label}"
            lines.append(
                (name, [(x, tuple(m for m in at if m in level.models), t) for x, at, t in places])
            )
    else:
        method = str((study.recipe or {}).get("merge_method", "recipe"))
        lines.append((method.replace("_", " "), places))
    for kind in study.baseline:
        line = [
            (x, tuple(dict.fromkeys(baseline_of(kind, model) for model in models)), tick)
            for x, models, tick in places
        ]
        if len({frozenset(models) for _, models, _ in line}) > 1:
            lines.append((line[0][1][0].label, line))
    return lines


def _is_split(others: Sequence[Factor]) -> bool:
    return len(others) == 1 and len(others[0].levels) <= _MOST_SERIES


def _panels(summaries: Summaries, lines: Sequence[_Line]) -> tuple[Panel, ...]:
    panels = []
    names = {name for name, _ in lines}
    kinds = baseline_rows(summaries.observations.run.study)
    for group, measure in in_order(summaries.observations):
        if not measure.is_share:
            continue
        series = []
        for name, places in lines:
            points = []
            for x, models, tick in sorted(places, key=lambda place: place[0]):
                summary = summaries.of(models, group, measure)
                if summary is not None:
                    ends = [100 * end for end in summary.interval or ()]
                    low, high = ends or (None, None)
                    points.append(Point(x, 100 * summary.average, low, high, tick))
            if points:
                series.append(Series(name, tuple(points)))
        if series:
            references = {
                name: 100 * summary.average
                for name, models in kinds.items()
                if name not in names
                and (summary := summaries.of(models, group, measure)) is not None
            }
            panels.append(
                Panel(
                    title=measure_text(measure, group),
                    y_label=metric_text(measure),
                    series=tuple(series),
                    references=tuple(references.items()),
                )
            )
    return tuple(panels)


def _swapped(observations: Observations, level: Level) -> tuple[int, int] | None:
    """Return (layers from the language expert, all layers) as the cells' plans have them."""
    for model in level.models:
        for group in observations.groups:
            for cell in observations.cells(model, group).values():
                if cell is not None and cell.plan is not None:
                    return cell.plan.count("language"), len(cell.plan)
    return None


def _caption(summaries: Summaries, others: Sequence[Factor]) -> str:
    observations = summaries.observations
    over = "experts and items" if has_pairs(observations) else "items"
    level = observations.run.study.evaluate.level
    text = f"Error bars: {level:.0%} intervals over {over}."
    if any(len(models) > 1 for models in baseline_rows(observations.run.study).values()):
        text += " A baseline drawn as one level line is the average of its experts."
    if others and not _is_split(others):
        text += f" Averaged over {', '.join(each.label for each in others)}."
    return text
