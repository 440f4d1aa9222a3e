"""A search as it is written before it runs: candidates, items, rounds, pairs of experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ablations.engines.task_loading import load_tasks
from ablations.machine.untrusted import read_regular
from ablations.machine.whole_files import write_text
from ablations.requests.resolve import resolve
from ablations.runs.records import SEARCH_FILE
from ablations.scoring.evaluation import EvaluationRequest
from ablations.search.equal import with_equal_keys
from ablations.search.rounds import FINALISTS, Bound, Round, Size, bounds, halving
from ablations.search.split import SplitItems, item_keys, rows_in_both, split_items
from ablations.study.expansion import expert_choices
from ablations.study.files import StudyFile
from ablations.study.grouping import StudyModel, derive_models
from ablations.study.planning import StudyPlan
from ablations.study.schema import (
    BASELINE_ROLES,
    EXPERTS,
    BaselineKind,
    Pools,
    PrimaryBlock,
    ReportBlock,
    SearchBlock,
    Study,
    Value,
)
from ablations.study.wording import setting_key
from ablations.tasks.names import task_language, task_name
from layerswap_method.errors import InputError, LayerSwapError, counted, first_line
from layerswap_method.frozen import Frozen
from layerswap_method.layer_plan import draw_line

_Form = TypeVar("_Form", bound=Frozen)

_SHOWN_EQUAL = 3
"""Settings that are no candidates, as many as an error names."""

COMPARATORS: tuple[BaselineKind, ...] = ("base", "task_expert", "language_expert", "soup")
"""Models that are in every round and never dropped."""


class Candidate(Frozen):
    """A setting that may win."""

    name: str
    """Its name in words, as in the report of a study."""

    settings: tuple[dict[str, Value], ...]
    """Its settings of `vary`, as the study file has them: several where seeds differ."""

    layers: str
    """Its layers, drawn; empty where they are measured at the merge."""


class Search(Frozen):
    """A search as it was written down before it ran."""

    study: Study
    """The study with the values of its experts file, and with the comparators."""

    report: str
    """The task whose score is reported."""

    choose: str
    """The task that chooses."""

    candidates: tuple[Candidate, ...]
    rounds: tuple[Round, ...]
    choose_items: dict[str, tuple[int, ...]]
    """Task -> its items that choose, by their row, in the order in which they are answered."""

    report_items: dict[str, tuple[int, ...]]
    choose_experts: Pools
    report_experts: Pools
    notes: tuple[str, ...]
    equal: tuple[str, ...] = ()
    """Which settings are no candidates, as their weights are those of a comparator or another."""

    @property
    def floors(self) -> Mapping[str, float]:
        """Task -> the most points that a setting may lose there."""
        return self.study.search.floors

    def candidate(self, model: StudyModel) -> Candidate | None:
        """Return the candidate that a model of one of its runs is; None for a comparator."""
        keys = {setting_key(setting) for setting in model.given}
        return next(
            (one for one in self.candidates if keys & {*map(setting_key, one.settings)}), None
        )

    def study_of_round(self, number: int, names: Sequence[str]) -> Study:
        """Return the study of a round, from 1, whose candidates have these names."""
        size = self.rounds[number - 1].items
        return self._study(
            names,
            f"Round {number} of the search {self.study.name!r}: which settings go on? These scores "
            "chose them, so the best is too high by chance.",
            self.choose_experts,
            (self.choose, *self.floors),
            {task: items[:size] for task, items in self.choose_items.items()},
        )

    def study_of_report(self, names: Sequence[str]) -> Study:
        """Return the study in which the last candidates answer the items that did not choose."""
        tasks = (self.report, *self.floors)
        return self._study(
            names, self.study.question, self.report_experts, tasks, self.report_items
        )

    @property
    def expected_report(self) -> Study:
        """The study in which the last candidates report, before it is known which these are."""
        names = [one.name for one in self.candidates[: self.rounds[-1].kept]]
        return self.study_of_report(names)

    def _study(
        self,
        names: Sequence[str],
        question: str,
        pools: Pools,
        tasks: Sequence[str],
        items: Mapping[str, tuple[int, ...]],
    ) -> Study:
        by_name = {one.name: one for one in self.candidates}
        settings = [setting for name in names for setting in by_name[name].settings]
        study = _comparison(self.study, settings, pools, tasks, items)
        return study.model_copy(update={"question": question})

    def bounds(self) -> tuple[Bound, ...]:
        """Return the most that each round costs, and last what the report does."""
        choose, report = (self._size(one) for one in (self.choose_experts, self.report_experts))
        new_items = [sum(items.values()) for items in self.new_items()]
        return bounds(self.rounds, choose, report, new_items)

    def new_items(self) -> tuple[dict[str, int], ...]:
        """Return task -> items that each round adds, and last those that report."""
        ends = [one.items for one in self.rounds]
        rounds = (
            {task: len(rows[start:end]) for task, rows in self.choose_items.items()}
            for start, end in pairwise((0, *ends))
        )
        return (*rounds, {task: len(rows) for task, rows in self.report_items.items()})

    def _size(self, pools: Pools) -> Size:
        seeds = max(len(one.settings) for one in self.candidates)
        baselines = (expert_choices(pools, BASELINE_ROLES[kind]) for kind in self.study.baseline)
        return Size(
            len(expert_choices(pools, ("task", "language"))) * seeds, sum(map(len, baselines))
        )


def _comparison(
    study: Study,
    settings: Sequence[dict[str, Value]],
    pools: Pools,
    tasks: Sequence[str],
    items: Mapping[str, tuple[int, ...]],
) -> Study:
    """Return the study that compares settings with the comparators, on the first of the tasks."""
    primary = PrimaryBlock(against=("soup", "better_expert"), tasks=tuple(tasks[:1]))
    report = ReportBlock(primary=primary, margin=study.report.margin)
    evaluate: dict[str, Any] = {"tasks": tuple(tasks), "languages": {}, "benchmarks": ()}
    return study.model_copy(
        update={
            "vary": tuple(settings),
            "experts": pools,
            "evaluate": study.evaluate.model_copy(
                update={**evaluate, "limit": None, "items": dict(items)}
            ),
            "report": report.model_copy(update={"metric": study.report.metric}),
        }
    )


def expected_comparison(study: Study) -> Study:
    """Return the study of the held-out comparison of a search that is not planned.

    Its first settings stand for the best, and it has no items.

    Args:
        study: from `with_comparators`.
    """
    listed = (*study.evaluate.tasks, *chain(*study.evaluate.languages.values()))
    report, _ = _task_names(study, listed)
    _, pools = split_pools(study.experts)
    return _comparison(study, study.settings()[:FINALISTS], pools, (report,), {})


def items_that_report(study: Study, request: EvaluationRequest) -> int:
    """Return how many items report in a search that is not planned; loads the data of its tasks.

    Args:
        study: from `with_comparators`.
        request: of the study's tasks.

    Raises:
        InputError: for a task that cannot choose or report.
        LayerSwapError: where data is not here.
    """
    _, report, (_, items), _ = _tasks(study, request, request.tasks, {})
    return len(items[report])


def with_comparators(file: StudyFile) -> StudyFile:
    """Return a study whose baselines are the comparators, and then those of its own.

    Raises:
        InputError: for a study in which nothing can be searched.
    """
    study = file.study
    problems = []
    if study.recipe is None or study.vary is None:
        problems.append("it has no recipe and vary: nothing to choose from")
    if any(name.startswith(EXPERTS) for setting in study.settings() for name in setting):
        problems.append(f"vary has {EXPERTS}...: a search chooses a setting, for all its experts")
    if study.evaluate.items:
        problems.append("evaluate.items: a search divides the items itself; write evaluate.limit")
    if len(languages := {*study.experts.languages().values()}) > 1:
        problems.append(
            f"it has experts of {', '.join(sorted(languages))}; a search is for one language"
        )
    InputError.raise_any(str(file.path), problems)
    baseline = tuple(dict.fromkeys((*COMPARATORS, *study.baseline)))
    return StudyFile(file.path, study.model_copy(update={"baseline": baseline}), file.settings)


def make_search(plan: StudyPlan, where: str) -> Search:
    """Return the search of a study that was planned `with_comparators`; loads the data of tasks.

    Args:
        plan: of all candidates.
        where: the study's file, for errors.

    Raises:
        InputError: for a task that cannot choose or report, or fewer than two candidates.
    """
    study = plan.study
    candidates, equal = _candidates(plan)
    if len(candidates) < 2:
        raise InputError(
            f"{where}: vary has {counted(len(candidates), 'setting')} with weights of its own; a "
            "search needs two" + "".join(f"\n  - {line}" for line in equal[:_SHOWN_EQUAL])
        )
    request = plan.cells[0].resolved.request
    listed = tuple(plan.cells[-1].record_keys)
    choose, report, items, notes = _tasks(study, request, listed, plan.task_languages)
    choose_experts, report_experts = split_pools(study.experts)
    rounds = halving(len(candidates), len(items[0][choose]), study.search.rounds)
    return Search(
        study=study,
        report=report,
        choose=choose,
        candidates=tuple(candidates),
        rounds=rounds,
        choose_items=items[0],
        report_items=items[1],
        choose_experts=choose_experts,
        report_experts=report_experts,
        notes=(*notes, *_pair_notes(choose_experts, report_experts)),
        equal=tuple(equal),
    )


def _candidates(plan: StudyPlan) -> tuple[list[Candidate], list[str]]:
    """Return the settings whose weights no comparator has, those of equal weights once.

    Also which settings that leaves out, in words, beyond what the plan's notes say.
    """
    study, cells = plan.study, plan.cells
    if not plan.needs:  # the weights are here
        cells = tuple(with_equal_keys(cells, plan.merges))
    by_label = {cell.label: cell for cell in cells}

    def keys(model: StudyModel) -> set[str]:
        return {by_label[label].weights_key for label in model.cells}

    models = derive_models(study, plan.cells, plan.num_layers)
    rivals = [model for model in models if model.kind != "recipe"]
    taken = {key for model in rivals for key in keys(model)}
    found, equal = list[Candidate](), list[str]()
    names = dict[frozenset[tuple[str, str]], str]()
    for model in models:
        if model.kind != "recipe":
            continue
        of_model = [by_label[label] for label in model.cells]
        weights = frozenset((setting_key(cell.experts), cell.weights_key) for cell in of_model)
        name = names.setdefault(weights, model.label)
        if keys(model) <= taken:
            name = next((one.label for one in rivals if keys(model) <= keys(one)), "comparators")
        if name != model.label:
            equal.append(f"{model.label} has the weights of the {name}: no candidate.")
            continue
        seeds = {cell.values.get("seed"): cell.values for cell in of_model}
        layers = "" if of_model[0].plan is None else draw_line(of_model[0].plan)
        found.append(Candidate(name=model.label, settings=tuple(seeds.values()), layers=layers))
    return found, equal


def _task_names(study: Study, listed: Sequence[str]) -> tuple[str, str]:
    """Return the task that reports, of `listed` ones where none is named, and the one that chooses.

    Raises:
        InputError: where one of them has a floor.
    """
    block = study.search
    report = block.report or next(iter((*study.report.primary.tasks, *listed)))
    choose = block.choose or report
    if twice := {choose, report} & {*block.floors}:
        raise InputError(f"search.floors: {twice.pop()} is what chooses or reports")
    return report, choose


def _tasks(
    study: Study, request: EvaluationRequest, listed: Sequence[str], languages: Mapping[str, str]
) -> tuple[str, str, tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]], list[str]]:
    """Return the tasks that choose and report, their items on both sides, and notes."""
    floors = study.search.floors
    report, choose = _task_names(study, listed)
    docs = _docs(request, tuple(dict.fromkeys((choose, report, *floors))))
    splits, notes = _split_tasks(study.search, choose, report, docs)
    reported = {task: splits[task].report for task in (report, *floors)}
    for task, rows in reported.items():
        _check_items(task, "report", len(rows), f"of {len(docs[task])}")
    chosen = dict[str, tuple[int, ...]]()
    for task in (choose, *floors):
        rows = splits[task].choose
        both = _rows_reported_elsewhere(task, reported, docs)
        chosen[task] = tuple(row for row in rows if row not in both)
        of_all = f"of {len(docs[task])}"
        if dropped := len(rows) - len(chosen[task]):
            notes.append(
                f"{counted(dropped, 'item')} of {task} report in another task, and do not choose."
            )
            of_all += f", {dropped} of which report in another task,"
        _check_items(task, "choose", len(chosen[task]), of_all)
    return choose, report, (chosen, reported), [_catch(choose, report, languages), *notes]


def _split_tasks(
    block: SearchBlock, choose: str, report: str, docs: Mapping[str, list[Any]]
) -> tuple[dict[str, SplitItems], list[str]]:
    """Return task -> its items on both sides, those of parallel tasks on one, and notes."""
    parallel = dict[int, list[str]]()
    for task, items in docs.items():
        parallel.setdefault(len(items), []).append(task)
    splits, notes = dict[str, SplitItems](), list[str]()
    for tasks in parallel.values():
        chooses, reports = ({task, *block.floors} & {*tasks} for task in (choose, report))
        share = block.share or (0.5 if chooses and reports else float(bool(chooses)))
        keys = item_keys([docs[task] for task in tasks])
        splits |= {
            task: split_items(of_task, block.seed, share)
            for task, of_task in zip(tasks, keys, strict=True)
        }
        if choose != report and len(tasks) > 1:
            notes.append(
                "Tasks with equally many items are taken to be parallel languages, so an item that "
                f"chooses in one reports in none: {', '.join(tasks)}."
            )
    return splits, notes


def _rows_reported_elsewhere(
    task: str, reported: Mapping[str, tuple[int, ...]], docs: Mapping[str, list[Any]]
) -> set[int]:
    """Return the rows of a task that report in one of another size, which is split by itself."""
    others = [
        [docs[other][row] for row in rows]
        for other, rows in reported.items()
        if len(docs[other]) != len(docs[task])
    ]
    return rows_in_both(docs[task], others)


def _check_items(task: str, purpose: str, rows: int, of_all: str) -> None:
    if rows < 2:
        raise InputError(
            f"{task}: {counted(rows, 'item')} {of_all} would {purpose}; take more items, or "
            "another search.share or search.choose"
        )


def _catch(choose: str, report: str, languages: Mapping[str, str]) -> str:
    code = task_language(report, languages)
    if choose == report or (code and task_language(choose, languages) == code):
        return (
            f"Choosing needs answers to {task_name(choose)}: this merge is no longer made without "
            "any data of the task in the language. A proxy may choose: search.choose."
        )
    return (
        f"{task_name(choose)} stands for {task_name(report)} while settings are chosen: what is "
        "best there need not be best here."
    )


def _docs(request: EvaluationRequest, tasks: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return task -> the items of it that a search may use: as many as the study's limit."""
    resolved = resolve(request.model_copy(update={"tasks": tasks}))
    if resolved.skipped:
        task, why = next(iter(resolved.skipped.items()))
        raise InputError(f"search: {task} cannot be evaluated: {why}")
    if set(resolved.chosen) != set(tasks) or resolved.groups:
        group = next(iter({*tasks} - {*resolved.chosen} or {*resolved.groups}))
        raise InputError(f"search: {group} is a group; name one task")
    found = {task.task_name: list(task.eval_docs) for task in load_tasks(resolved)}
    return {task: found[task][: request.limit] for task in tasks}


def split_pools(pools: Pools) -> tuple[Pools, Pools]:
    """Return the experts of the pairs that choose, and of those that report.

    Of a role with several experts the first half chooses, at least one, and the others report.
    """
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for role in ("task", "language"):
        names = pools.names(role)
        middle = len(names) // 2
        parts = (names[:middle], names[middle:]) if middle else (names, names)
        for side, part in zip(sides, parts, strict=True):
            value: Any = part
            if isinstance(pools.language, dict) and role == "language":
                value = dict.fromkeys(pools.language, part)
            side[role] = value
    choose, report = (pools.model_copy(update=side) for side in sides)
    return choose, report


def _pair_notes(choose: Pools, report: Pools) -> Iterator[str]:
    first, second = (
        f"{', '.join(pools.names('task'))} with {', '.join(pools.names('language'))}"
        for pools in (choose, report)
    )
    if first != second:
        yield f"The experts that choose are {first}; those that report are {second}."
    if len(report.names("task")) == len(report.names("language")) == 1:
        yield (
            f"One pair of experts reports ({second}): the answer holds for these experts, and "
            "other trainings may differ by more."
        )


def write_search(out: Path, search: Search) -> None:
    """Write a search before it runs, or check that it is the one that was written.

    Raises:
        InputError: where `out` holds another one.
    """
    earlier = read_search(out)
    if earlier is None:
        write_text(out / SEARCH_FILE, f"{search.model_dump_json(indent=1)}\n")
        return
    changed = [
        name
        for name in ("choose", "report", "candidates", "rounds", "choose_items", "report_items")
        if getattr(earlier, name) != getattr(search, name)
    ]
    if earlier.floors != search.floors:
        changed.append("floors")
    if (earlier.choose_experts, earlier.report_experts) != (
        search.choose_experts,
        search.report_experts,
    ):
        changed.append("experts")
    if changed:
        raise InputError(
            f"{out}: holds a search with other {', '.join(changed)}, and what is searched is "
            "decided before it runs; choose another --out"
        )


def read_search(out: Path) -> Search | None:
    """Return the search of a folder; None where there is none.

    Raises:
        InputError: where its file cannot be read.
    """
    return read_file(out / SEARCH_FILE, Search)


def read_file(path: Path, form: type[_Form]) -> _Form | None:
    """Return what a file of a search holds; None where there is no such file.

    Raises:
        InputError: where it cannot be read.
    """
    try:
        return form.model_validate_json(read_regular(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, LayerSwapError) as error:
        raise InputError(f"{path}: cannot be read: {first_line(error)}") from error
