"""`layerswap power`: how large differences a study can show, measured by a run or assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablations.models.find import Expert
from ablations.report.analysis import analyse
from ablations.report.contrasts import contrasts, primary_tasks
from ablations.report.power import (
    PowerTable,
    StudyDifference,
    measured_differences,
    power_sentence,
    power_table,
)
from ablations.runs.records import load_run
from ablations.search.result import HELD_OUT, is_search
from ablations.statistics.as_text import percent
from ablations.statistics.power import Design, Spread
from ablations.study.checks import expert_names
from ablations.study.expansion import expand
from ablations.study.files import open_study_file
from ablations.study.grouping import derive_models
from ablations.study.schema import Study
from ablations.tasks.names import task_language
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import is_folder

ASSUMED = Spread(
    items=0.073, rest=0.103, task=0.0712**2, language=0.0343**2, pair=0.0268**2, base_rate=0.2
)
"""What differences vary by where nobody has measured it: the medians over the primary comparisons
of ablations/results/real_model, real_model_french and real_model_layers (SmolLM2-135M, math word
problems, 3 x 3 experts), and of the mean score of both models; `tests/power/test_power.py`
computes them again."""


def power_of(
    place: str | Mapping[str, Any],
    *,
    items: int | None = None,
    difference: float | None = None,
    base_rate: float | None = None,
    disagreement: float | None = None,
    expert_sd: float | None = None,
) -> PowerTable:
    """Return how large differences a study can show.

    Args:
        place: a run folder, whose answers say what differences vary by; or a study, for which
            `ASSUMED` does: a file, the name of a shipped one, or its content as a mapping.
        items: of each task, in place of those of the run, or of the study's limit.
        difference: to be seen, in points; how many items or experts do so is added.
        base_rate: score of the models, in percent, in place of what a study is assumed to have.
        disagreement: of two models that are as good, in percent of the items; likewise.
        expert_sd: standard deviation between the experts of a role, in points; likewise.

    Raises:
        InputError: for a place that is neither, a study without a number of items, assumptions
            that cannot be or are for a run, or a run without a planned comparison that can be
            computed.
    """
    wanted = None if difference is None else difference / 100
    if wanted is not None and not 0 < wanted < 1:
        raise InputError(f"--difference is {difference:g}; give points above 0 and below 100")
    stated = {"base-rate": base_rate, "disagreement": disagreement, "expert-sd": expert_sd}
    stated = {name: value for name, value in stated.items() if value is not None}
    if not isinstance(place, Mapping) and is_folder(place):
        if stated:
            raise InputError(
                f"{place}: a run has its own answers; leave out --{' --'.join(stated)}"
            )
        folder = Path(place)
        if is_search(folder):
            folder /= HELD_OUT
        analysis = analyse(load_run(folder))
        entries = [*measured_differences(analysis)]
        study, source = analysis.study, f"measured in {place}"
        if not entries:
            raise InputError(
                f"{place}: no planned comparison has results of whole pairs of experts; "
                "layerswap run finishes it"
            )
    else:
        file = open_study_file(place)
        study = file.study
        spread = _stated(base_rate, disagreement, expert_sd)
        entries = [*_assumed(study, items, spread)]
        source = (
            "assumed: the medians of the shipped results real_model, real_model_french and "
            "real_model_layers (SmolLM2-135M, math word problems)"
        )
        source += ", but for what is given" if stated else ""
        if not entries:
            raise InputError(
                f"{file.path}: no comparison is planned; write report: {{primary: ...}}"
            )
    if items is not None:
        entries = [replace(each, design=replace(each.design, items=items)) for each in entries]
    return power_table(study, source, entries, wanted)


def power_line(study: Study) -> str:
    """Return in one line how large differences a study can show that has not run."""
    if study.evaluate.limit is None:
        return f"differences that it can show: layerswap power {study.name} --items N"
    return power_sentence(study, [*_assumed(study, None, ASSUMED)])


def _stated(base_rate: float | None, disagreement: float | None, sd: float | None) -> Spread:
    """Return `ASSUMED` with what a user states, in percent and points."""
    for option, value in (("base-rate", base_rate), ("disagreement", disagreement)):
        if value is not None and not 0 < value < 100:
            raise InputError(f"--{option} is {value:g}; give percent above 0 and below 100")
    if sd is not None and not 0 <= sd < 100:
        raise InputError(f"--expert-sd is {sd:g}; give points from 0 to below 100")
    score = (ASSUMED.base_rate or 0.0) if base_rate is None else base_rate / 100
    spread = replace(ASSUMED, base_rate=score)
    if sd is not None:
        spread = replace(spread, task=(sd / 100) ** 2, language=(sd / 100) ** 2, pair=0.0)
    of_experts = spread.task + spread.language + spread.pair
    most = 2 * min(score, 1 - score)
    share = min(ASSUMED.disagreement, most) if disagreement is None else disagreement / 100
    if share > most:
        raise InputError(
            f"--disagreement is {disagreement:g}: of items of which both models have "
            f"{percent(score)} % right, they disagree on {percent(most)} % at the most"
        )
    factor = max(share - of_experts, 0.01 * share) / (ASSUMED.items + ASSUMED.rest)
    return replace(spread, items=factor * ASSUMED.items, rest=factor * ASSUMED.rest)


def _assumed(study: Study, items: int | None, spread: Spread) -> Iterator[StudyDifference]:
    """Yield the planned comparisons of a study that nobody has run, with assumed spreads."""
    size = items or study.evaluate.limit
    if size is None:
        raise InputError(
            f"{study.name}: it has no evaluate.limit; say how many items a task has: --items 250"
        )
    experts = {name: Expert(name, Path("/experts", name)) for name in expert_names(study)}
    cells, problems = expand(study, experts, None)
    InputError.raise_any(study.name, problems)
    models = derive_models(study, cells, None)
    labels = {model.label: model.cells for model in models}
    by_label = {cell.label: cell for cell in cells}
    for contrast in contrasts(study, models):
        if not contrast.rival:
            continue
        names = (*contrast.first_models, *contrast.second_models)
        compared = [by_label[label] for name in names for label in labels[name]]
        for code in study.evaluate.languages or {"": ()}:
            # A language's experts are those of its cells, of which the task experts' have none.
            of_code = [cell for cell in compared if not code or cell.language in (None, "", code)]
            counts = (
                len({cell.experts[role] for cell in of_code if role in cell.experts})
                for role in ("task", "language")
            )
            design = Design(size, *(max(count, 1) for count in counts))
            tasks = [*study.evaluate.languages.get(code, ()), *study.evaluate.tasks]
            languages = {task: task_language(task, {}) for task in tasks}
            for task in primary_tasks(study, tasks, code, languages):
                yield StudyDifference(contrast.first, contrast.second, task, spread, design)
