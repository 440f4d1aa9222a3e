"""The table of the first screen: models as rows, tasks as columns. Knows no file format."""

from __future__ import annotations

from ablations.report.baselines import shown_baselines
from ablations.report.design import Model, recipe_models
from ablations.report.document import Entry, Table
from ablations.report.forests import settings_of
from ablations.report.names import task_name
from ablations.report.observations import Measure, Observations
from ablations.report.score_maps import LayerMap
from ablations.report.summaries import Summaries
from ablations.report.tables import entry, scope_note
from ablations.report.targets import ordered
from ablations.report.wording import measure_text
from ablations.statistics.corpus import CORPUS_METRICS

_MOST_ROWS = 24
"""Settings that are shown one by one."""


def lead_table(summaries: Summaries, layers: LayerMap | None) -> Table:
    """Return the scores of every model; of many settings the best, the suggested and the average.

    Args:
        summaries: of the run.
        layers: the map of the study, where it has one; names the best settings.
    """
    observations = summaries.observations
    study = observations.run.study
    rows = list(shown_baselines(study).items())
    settings = settings_of(observations)
    notes = [scope_note(observations)]
    if layers is None and len(settings) <= _MOST_ROWS:
        rows += settings
    else:
        rows.append((f"average of {len(settings)} settings", recipe_models(study)))
        named = {models: label for label, models in settings}
        short = {model: model.short for model in recipe_models(study)}
        best_at: dict[tuple[Model, ...], list[str]] = {}
        for (group, measure), best in (layers.best if layers else {}).items():
            best_at.setdefault(best.best, []).append(measure_text(measure, group))
        for models, places in best_at.items():
            label = named.get(models) or short[models[0]]
            rows.append((f"{label} (best on {'; '.join(places)})", models))
        if layers is not None and layers.suggested:
            rows.append((short[layers.suggested[0]], layers.suggested))
        if layers is not None:
            notes.append(
                "The best was chosen on one half of the items; its score here is over all items, "
                "and so a little too high."
            )
    columns = list(dict.fromkeys((*ordered(observations), *observations.measured())))
    found = []
    labels: dict[tuple[Model, ...], list[str]] = {}
    for name, models in rows:
        labels.setdefault(models, []).append(name)
    for models, names in labels.items():
        entries = (entry(summaries.of(models, *column), column[1]) for column in columns)
        found.append((Entry("; ".join(names)), *entries))
    return Table(
        "scores",
        "Scores",
        ("model", *(measure_text(measure, group) for group, measure in columns)),
        tuple(found),
        (*notes, _metrics(observations, [measure for _, measure in columns])),
    )


def _metrics(observations: Observations, measures: list[Measure]) -> str:
    """Return which metric each task is scored by, and on how many items."""
    items = {
        measure: len(observations.items(group, measure))
        for group, measure in observations.measured()
    }
    told: dict[str, list[str]] = {}
    for measure in dict.fromkeys(measures):
        metric = CORPUS_METRICS.get(measure.metric) or measure.metric.replace("_", " ")
        number = f", {items[measure]} items" if items[measure] else ""
        told.setdefault(f"{metric}{number}", []).append(task_name(measure.task))
    return "; ".join(f"{' and '.join(names)}: {metric}" for metric, names in told.items()) + "."
