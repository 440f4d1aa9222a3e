"""The table of the first screen: models as rows, tasks as columns. Knows no file format."""

from __future__ import annotations

from ablations.report.among_settings import MOST_SHOWN
from ablations.report.baselines import shown_baselines
from ablations.report.design import Group, Model, recipe_models
from ablations.report.document import Entry, Table, gap
from ablations.report.forests import settings_of
from ablations.report.missing import missing_tasks
from ablations.report.names import task_name
from ablations.report.observations import Measure, Observations
from ablations.report.score_maps import LayerMap
from ablations.report.summaries import Summaries
from ablations.report.tables import entry, scope_note
from ablations.report.targets import in_order, is_english
from ablations.report.wording import measure_text
from ablations.statistics.corpus import CORPUS_METRICS


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
    if layers is None and len(settings) <= MOST_SHOWN:
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
    columns = _columns(observations)
    found = []
    labels: dict[tuple[Model, ...], list[str]] = {}
    for name, models in rows:
        labels.setdefault(models, []).append(name)
    for models, names in labels.items():
        entries = (
            gap() if isinstance(each, str) else entry(summaries.of(models, *each), each[1])
            for each in columns
        )
        found.append((Entry("; ".join(names)), *entries))
    return Table(
        "scores",
        "Scores",
        (
            "model",
            *(
                task_name(each) if isinstance(each, str) else measure_text(each[1], each[0])
                for each in columns
            ),
        ),
        tuple(found),
        (*notes, _metrics(observations)),
    )


def _columns(observations: Observations) -> list[tuple[Group, Measure] | str]:
    """Return what is measured, and in their place the tasks that no cell has answered."""
    run = observations.run
    asked = run.study.report.tasks or tuple(
        task for cell in run.head.cells for task in cell.records
    )
    order = {task: at for at, task in reversed(list(enumerate(asked)))}

    def place(task: str) -> tuple[bool, int]:
        return is_english(task) and not run.study.report.tasks, order.get(task, 0)

    found: list[tuple[Group, Measure] | str] = [*in_order(observations)]
    for task in missing_tasks(run):
        later = (
            at
            for at, each in enumerate(found)
            if not isinstance(each, str) and place(each[1].task) > place(task)
        )
        found.insert(next(later, len(found)), task)
    return found


def _metrics(observations: Observations) -> str:
    """Return which metric each task is scored by, and on how many items."""
    columns = in_order(observations)
    items = {measure: len(observations.items(group, measure)) for group, measure in columns}
    told: dict[str, list[str]] = {}
    for measure in items:
        metric = CORPUS_METRICS.get(measure.metric) or measure.metric.replace("_", " ")
        number = f", {items[measure]} items" if items[measure] else ""
        told.setdefault(f"{metric}{number}", []).append(task_name(measure.task))
    return "; ".join(f"{' and '.join(names)}: {metric}" for metric, names in told.items()) + "."
