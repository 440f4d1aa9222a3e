"""The layout of Table 6: swaps of pairs beside swaps of soups. Knows several runs; no file format.

The paper's table has merges of one pair and merges of several experts a role. A run has one recipe,
so it takes a run for each; they are put beside each other if they asked the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablations.report.baselines import baseline_of, baselines
from ablations.report.design import Group, Model, recipe_models
from ablations.report.document import Entry, Table, gap
from ablations.report.observations import Measure, Observations
from ablations.report.summaries import Summaries
from ablations.report.tables import entry, scope_note
from ablations.report.targets import in_order
from ablations.report.wording import score_name
from ablations.runner.records import Run
from layerswap_method.errors import InputError

_Structure = tuple[int, int]
"""Task experts and language experts in one merge."""

_PAIR: _Structure = (1, 1)


def has_soups(several: Sequence[Summaries]) -> bool:
    """Return whether some merge has several experts of a role."""
    return any(each != _PAIR for s in several for each in _structures(s.observations))


def souping_table(several: Sequence[Summaries]) -> Table:
    """Return the layout of Table 6: the soup of pairs, and swaps of pairs or of soups.

    Args:
        several: summaries of runs that asked the same; the first gives the rows.
    """
    first = several[0].observations
    columns: list[tuple[str, Sequence[tuple[Summaries, Sequence[Model]]]]] = []
    by_run = [(s, _structures(s.observations)) for s in several]
    soups = [(s, _soups_of(s, found.get(_PAIR, ()))) for s, found in by_run]
    if any(models for _, models in soups):
        columns.append(("soup, pairwise", [(s, models) for s, models in soups if models]))
    for structure in sorted({each for _, found in by_run for each in found}):
        task, language = structure
        experts = " × ".join(_souped(*each) for each in ((task, "task"), (language, "language")))
        columns.append(
            (
                "swap, pairwise" if structure == _PAIR else f"swap, {experts}",
                [(s, found[structure]) for s, found in by_run if structure in found],
            )
        )
    rows = tuple(
        (
            Entry(score_name(measure, group)),
            *(_first_entry(sources, group, measure) for _, sources in columns),
        )
        for group, measure in in_order(first)
    )
    notes = [scope_note(first), "Several settings of the recipe are averaged."]
    if len(several) > 1:
        names = ", ".join(str(s.observations.run.path) for s in several[1:])
        notes.append(
            f"Columns that this run does not have are from {names}: same items and same prompts."
        )
    return Table(
        "souping",
        "Swapping between soups (layout of Table 6)",
        ("task", *(label for label, _ in columns)),
        rows,
        tuple(notes),
    )


def check_same_questions(run: Run, others: Sequence[Run]) -> None:
    """Check that `others` asked what `run` asked, item by item and prompt by prompt.

    Raises:
        InputError: naming the run and the task; also where no task is in both, or a run is there
            twice.
    """
    paths = [each.path.resolve() for each in (run, *others)]
    for number, other in enumerate(others, start=1):
        if paths[number] in paths[:number]:
            raise InputError(f"{other.path} is named twice")
    ours = _asked(run)
    for other in others:
        theirs = _asked(other)
        shared = [task for task in ours if task in theirs]
        if not shared:
            raise InputError(
                f"{other.path}: no task in common with {run.path}; "
                f"it has {', '.join(theirs) or 'none'}, the other {', '.join(ours) or 'none'}"
            )
        for task in shared:
            if ours[task] == theirs[task]:
                continue
            same = len(ours[task].items() & theirs[task].items())
            raise InputError(
                f"{other.path}: {task} was asked in another way than in {run.path}: {same} of "
                f"{len(ours[task])} and {len(theirs[task])} items are the same with the same "
                "prompt; give both runs one limit, one seed and one task folder"
            )


def _soups_of(summaries: Summaries, pairs: Sequence[Model]) -> list[Model]:
    """Return the soups of the experts that `pairs` swap; all in a run without pairs."""
    soups = [m for m in baselines(summaries.observations.run.study) if m.kind == "soup"]
    if not soups or not pairs:
        return soups
    return list(dict.fromkeys(baseline_of("soup", pair) for pair in pairs))


def _souped(number: int, role: str) -> str:
    return f"{role} expert" if number == 1 else f"soup of {number} {role} experts"


def _first_entry(
    sources: Sequence[tuple[Summaries, Sequence[Model]]], group: Group, measure: Measure
) -> Entry:
    for summaries, models in sources:
        for own, theirs in summaries.observations.measured():
            # A run whose recipe names its experts need not say which language they are of.
            if theirs == measure and (own.language or group.language) == group.language:
                summary = summaries.of(models, own, measure)
                if summary is not None:
                    return entry(summary, measure)
    return gap()


def _structures(observations: Observations) -> Mapping[_Structure, Sequence[Model]]:
    """Return (task experts, language experts) in one merge -> settings of the recipe."""
    found: dict[_Structure, list[Model]] = {}
    for model in recipe_models(observations.run.study):
        for group in observations.groups:
            cells = observations.cells(model, group).values()
            merged = next((cell for cell in cells if cell is not None), None)
            if merged is None:
                continue
            roles = [
                (each.get("parameters") or {}).get("role")
                for each in merged.merge.get("models") or ()
            ]
            if "task" not in roles or "language" not in roles:
                continue
            known = found.setdefault((roles.count("task"), roles.count("language")), [])
            if model not in known:
                known.append(model)
    return found


def _asked(run: Run) -> dict[str, dict[int, tuple[str, str]]]:
    """Return task -> index of an item -> its hash and that of its prompt."""
    asked: dict[str, dict[int, tuple[str, str]]] = {}
    for cell in run.cells:
        fresh = {score.task for score in cell.scores} - asked.keys()
        if not fresh:
            continue
        for sample in cell.samples():
            if sample.task in fresh:
                items = asked.setdefault(sample.task, {})
                items[sample.doc_id] = (sample.doc_hash, sample.prompt_hash)
    return asked
