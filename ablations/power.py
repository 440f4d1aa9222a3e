"""`layerswap power`: how large differences a study can show, measured by a run or assumed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from ablations.engines.task_loading import load_tasks
from ablations.models.find import Expert
from ablations.report.analysis import analyse
from ablations.report.contrasts import compared_languages, contrasts, primary_tasks
from ablations.report.power import (
    PlannedDifferences,
    PowerTable,
    StudyDifference,
    have_other_experts,
    measured_differences,
    power_sentence,
    power_table,
)
from ablations.requests.resolve import resolve
from ablations.runs.run import load_run
from ablations.scoring.evaluation import EvaluationRequest
from ablations.search.plan import (
    Search,
    expected_comparison,
    items_that_report,
    with_comparators,
)
from ablations.statistics.as_text import percent
from ablations.statistics.power import Design, Spread
from ablations.study.checks import expert_names, study_problems
from ablations.study.expansion import expand
from ablations.study.files import StudyFile, open_study_file
from ablations.study.grouping import derive_models
from ablations.study.planning import tasks_by_language, with_its_files
from ablations.study.schema import Study
from ablations.tasks.names import task_language
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.recipe.references import is_folder

ASSUMED = Spread(
    items=0.073, rest=0.103, task=0.0712**2, language=0.0343**2, pair=0.0268**2, base_rate=0.2
)
"""What differences vary by where nobody has measured it: the medians over the primary comparisons
of ablations/results/real_model, real_model_french and real_model_layers (SmolLM2-135M, math word
problems, 3 x 3 experts), and of the mean score of both models; `tests/power/test_power.py`
computes them again."""

_FINALISTS = ("winner", "first runner-up", "second runner-up")
"""What a search compares with the comparators, before it is known which settings these are."""

_NONE_PLANNED = "no comparison is planned; write report: {primary: ...}"
_OTHER_EXPERTS = (
    "the two sides of every planned comparison have different experts, and power is stated pair by "
    "pair; layerswap report has the intervals of these differences after a run"
)

_Counted = TypeVar("_Counted")


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
        items: of each task, in place of those of the run or the study; of a search, those that
            report. Without it a study has its limit, or else as many as its tasks have.
        difference: to be seen, in points; how many items or experts do so is added.
        base_rate: score of the models, in percent, in place of what a study is assumed to have.
        disagreement: of two models that are as good, in percent of the items; likewise.
        expert_sd: standard deviation between the experts of a role, in points; likewise.

    Raises:
        InputError: for a place that is neither, a study whose number of items is not known here,
            assumptions that cannot be or are for a run, or a run without a planned comparison that
            can be computed.
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
        study, planned = _of_run(place)
        source = f"measured in {place}"
    else:
        spread = _stated(base_rate, disagreement, expert_sd)
        study, planned = _of_file(open_study_file(place), items, spread)
        source = (
            "assumed: the medians of the shipped results real_model, real_model_french and "
            "real_model_layers (SmolLM2-135M, math word problems)"
        )
        source += ", but for what is given" if stated else ""
    if items is not None:
        planned = _with_items(planned, lambda _: items)
    return power_table(study, source, planned, wanted)


def power_line(study: Study, place: str, num_layers: int | None = None) -> str:
    """Return in one line how large differences a study can show that has not run.

    `place` is what `layerswap power` takes for it.
    """
    if (limit := study.evaluate.limit) is None:
        return f"differences that it can show: layerswap power {shlex.quote(place)}"
    return power_sentence(study, _assumed(study, ASSUMED, limit, num_layers))


def power_line_of_search(search: Search) -> str:
    """Return in one line how large differences the held-out comparison of a search can show."""
    study = search.expected_report
    items = len(search.report_items[search.report])
    return f"held-out comparison: {power_sentence(study, _assumed(study, ASSUMED, items))}"


def _with_items(planned: PlannedDifferences, items_of: Callable[[str], int]) -> PlannedDifferences:
    """Return comparisons with other numbers of items, by their task."""
    entries = [
        replace(entry, design=replace(entry.design, items=items_of(entry.task)))
        for entry in planned.entries
    ]
    return replace(planned, entries=entries)


def _of_run(place: str) -> tuple[Study, PlannedDifferences]:
    """Return the study of a run folder, and its planned comparisons."""
    analysis = analyse(load_run(Path(place)))
    planned = measured_differences(analysis)
    if planned.entries:
        return analysis.study, planned
    if planned.other_experts and not planned.incomplete:
        why = _OTHER_EXPERTS
    elif any(row.family == "primary" for row in analysis.comparisons):
        why = (
            "no planned comparison has results of whole pairs of experts; layerswap run finishes it"
        )
    else:
        why = f"{_NONE_PLANNED} into its study"
    raise InputError(f"{place}: {why}")


def _of_file(
    file: StudyFile, items: int | None, spread: Spread
) -> tuple[Study, PlannedDifferences]:
    """Return a study that nobody has run, and its planned comparisons.

    Of a study with a `search` block those are the held-out ones of its search.
    """
    study = with_its_files(file)
    if "search" in file.study.model_fields_set:
        return _of_search(with_comparators(replace(file, study=study)).study, items, spread)
    items = items or study.evaluate.limit
    planned = _assumed(study, spread, items or 1)
    if not planned.entries:
        why = _OTHER_EXPERTS if planned.other_experts else _NONE_PLANNED
        raise InputError(f"{file.path}: {why}")
    if items is None:
        counts = _counted(study, lambda request: _item_counts(request, planned.entries))
        planned = _with_items(planned, counts.__getitem__)
    return study, planned


def _of_search(whole: Study, items: int | None, spread: Spread) -> tuple[Study, PlannedDifferences]:
    study = expected_comparison(whole)
    items = items or _counted(whole, lambda request: items_that_report(whole, request))
    planned = _assumed(study, spread, items)
    firsts = dict.fromkeys(one.first for one in planned.entries)
    names = dict(zip(firsts, _FINALISTS, strict=False))
    entries = [replace(one, first=names[one.first]) for one in planned.entries]
    return study, replace(planned, entries=entries)


def _counted(study: Study, count: Callable[[EvaluationRequest], _Counted]) -> _Counted:
    """Return what is counted of a study's tasks, whose data is loaded."""
    try:
        InputError.raise_any(study.name, [*study_problems(study)])
        return count(tasks_by_language(study)[None].request)
    except LayerSwapError as error:
        raise InputError(
            f"{study.name}: how many items its tasks have is not known here: {error.message}\n"
            "Say it: --items 250"
        ) from error


def _item_counts(request: EvaluationRequest, compared: Iterable[StudyDifference]) -> dict[str, int]:
    """Return task -> its items, of the tasks of comparisons."""
    tasks = tuple(dict.fromkeys(one.task for one in compared))
    resolved = resolve(request.model_copy(update={"tasks": tasks}))
    sizes = {task.task_name: len(task.eval_docs) for task in load_tasks(resolved)}
    counts = {}
    for task in tasks:
        if task not in resolved.chosen:
            why = resolved.skipped.get(task, "it stands for several tasks")
            raise InputError(f"{task} cannot be counted: {why}")
        members = resolved.groups[task].members if task in resolved.groups else (task,)
        counts[task] = sum(sizes[member] for member in members)
    return counts


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


def _assumed(
    study: Study, spread: Spread, items: int, num_layers: int | None = None
) -> PlannedDifferences:
    """Return the planned comparisons of a study that nobody has run, with assumed spreads.

    Settings that come to the same layer counts are one where the number of layers is known.
    """
    experts = {name: Expert(name, Path("/experts", name)) for name in expert_names(study)}
    cells, problems = expand(study, experts, num_layers)
    InputError.raise_any(study.name, problems)
    models = derive_models(study, [cell.with_keys(cell.label, {}) for cell in cells], num_layers)
    labels = {model.label: model.cells for model in models}
    pools = {model.label: model.pools for model in models}
    by_label = {cell.label: cell for cell in cells}
    by_language = study.evaluate.languages
    entries, other_experts = list[StudyDifference](), 0
    for contrast in contrasts(study, models):
        if not contrast.rival:
            continue
        sides = (contrast.first_models, contrast.second_models)
        differ = have_other_experts(*([pools[name] for name in side] for side in sides))
        names = (*contrast.first_models, *contrast.second_models)
        compared = [by_label[label] for name in names for label in labels[name]]
        for code in compared_languages(by_language, {cell.language for cell in compared}):
            # A language's experts are those of its cells, of which the task experts' have none.
            of_code = [cell for cell in compared if not code or cell.language in (None, "", code)]
            counts = (
                len({cell.experts[role] for cell in of_code if role in cell.experts})
                for role in ("task", "language")
            )
            design = Design(items, *(max(count, 1) for count in counts))
            listed = by_language[code] if code else chain(*by_language.values())
            tasks = list(dict.fromkeys((*listed, *study.evaluate.tasks)))
            languages = {task: task_language(task, {}) for task in tasks}
            chosen = primary_tasks(study, tasks, code, languages)
            if differ:
                other_experts += len(chosen)
                continue
            entries += [
                StudyDifference(contrast.first, contrast.second, task, spread, design)
                for task in chosen
            ]
    return PlannedDifferences(entries, other_experts)
