"""What a swap gained and lost against the models that it comes from. Knows no file format.

Tested are all tasks and languages, and the share of answers in the right language: a model may keep
its score and begin to answer in another language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ablations.report.baselines import baseline_of
from ablations.report.comparisons import MOST_SETTINGS, Outcome, compare_models
from ablations.report.design import Group, Model, recipe_models
from ablations.report.document import Entry, Table, gap
from ablations.report.observations import Measure, Observations
from ablations.report.targets import in_order
from ablations.report.wording import ALPHA, difference_text, is_small, measure_text
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED
from ablations.statistics.paired import holm
from ablations.study.schema import BaselineKind

Reading = Literal["gained", "lost", "no evidence"]

_EXPERTS: tuple[BaselineKind, ...] = ("task_expert", "language_expert")
_RIVALS: tuple[BaselineKind, ...] = ("base", *_EXPERTS)


@dataclass(frozen=True)
class _Row:
    group: Group
    measure: Measure
    label: str
    models: tuple[Model, ...]


def losses_table(observations: Observations) -> Table | None:
    """Return gained, lost or no evidence against the base and the experts, by task and language.

    None for a study without a recipe or such a baseline, or one that asks for other tables.
    """
    study = observations.run.study
    if study.report.tables and "losses" not in study.report.tables:
        return None
    rivals = [kind for kind in _RIVALS if kind in study.baseline]
    rows = list(_rows(observations))
    if not rivals or not rows:
        return None
    columns = {kind: _outcomes(observations, rows, kind) for kind in rivals}
    if all(each is None for found in columns.values() for each in found):
        return None
    readings = {kind: _readings(rows, found) for kind, found in columns.items()}
    heads = [f"against the {kind.replace('_', ' ')}" for kind in rivals]
    both = set(_EXPERTS) <= set(rivals)
    if both:
        heads.append("against the better expert")
    entries = []
    for number, row in enumerate(rows):
        told = [_entry(columns[kind][number], readings[kind][number]) for kind in rivals]
        if both:
            told.append(_better([readings[kind][number] for kind in _EXPERTS]))
        entries.append((Entry(_task_text(row)), Entry(row.label), *told))
    return Table(
        "losses",
        "Gained and lost",
        ("task", "model", *heads),
        tuple(entries),
        tuple(_notes(readings, both=both)),
        text_columns=2,
        is_record=True,
    )


def _rows(observations: Observations) -> Iterator[_Row]:
    recipes = recipe_models(observations.run.study)
    several: list[tuple[str, tuple[Model, ...]]] = [(each.label, (each,)) for each in recipes]
    if len(recipes) > MOST_SETTINGS:
        several = [(f"average of {len(recipes)} settings", recipes)]
    for group, measure in in_order(observations):
        if not measure.is_share:
            continue
        for each in (measure, *_fidelity(observations, group, measure)):
            for label, models in several:
                yield _Row(group, each, label, models)


def _fidelity(observations: Observations, group: Group, measure: Measure) -> Iterator[Measure]:
    """Yield the share of answers in the right language, where the answers of a task have one."""
    if measure.metric == LANGUAGE_FIDELITY:
        return
    for cell in observations.members(group):
        for score in cell.scores:
            if (score.task, score.metric) == (measure.task, LANGUAGE_FIDELITY):
                better = OBSERVED[LANGUAGE_FIDELITY]
                yield Measure(score.task, score.metric, score.filter, score.is_share, better)
                return


def _outcomes(
    observations: Observations, rows: Sequence[_Row], kind: BaselineKind
) -> list[Outcome | None]:
    found = []
    for row in rows:
        matched = tuple(baseline_of(kind, model) for model in row.models)
        seconds = matched[:1] if len(set(matched)) == 1 else matched
        pair = (row.models, seconds)
        found.append(compare_models(observations, row.group, row.measure, pair))
    return found


def _readings(rows: Sequence[_Row], outcomes: Sequence[Outcome | None]) -> list[Reading | None]:
    """Return what the tests of one column allow to be said, corrected for all of them."""
    tested = {
        i: each.p for i, each in enumerate(outcomes) if each is not None and each.p is not None
    }
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    found: list[Reading | None] = []
    for i, (row, outcome) in enumerate(zip(rows, outcomes, strict=True)):
        if outcome is None:
            found.append(None)
        elif i not in corrected or not is_small(outcome, corrected[i]):
            found.append("no evidence")
        else:
            is_up = (outcome.difference > 0) == row.measure.higher_is_better
            found.append("gained" if is_up else "lost")
    return found


def _entry(outcome: Outcome | None, reading: Reading | None) -> Entry:
    if outcome is None:
        return gap()
    if outcome.p is None:
        return Entry("the same model", outcome.difference)
    return Entry(f"{reading} {difference_text(outcome)}", outcome.difference)


def _better(readings: Sequence[Reading | None]) -> Entry:
    """Return the reading against the better of both experts, whichever that is.

    Better than both is better than the better one; worse than one of them is worse than it, too.
    """
    if None in readings:
        return gap()
    if all(each == "gained" for each in readings):
        return Entry("gained")
    return Entry("lost" if "lost" in readings else "no evidence")


def _task_text(row: _Row) -> str:
    text = measure_text(row.measure, row.group)
    return f"{text}: answers in the language" if row.measure.metric == LANGUAGE_FIDELITY else text


def _notes(readings: dict[BaselineKind, list[Reading | None]], *, both: bool) -> Iterator[str]:
    yield (
        "Difference of the row's model to the column's, on the same items, in points of the score "
        "in percent, or of BLEU and chrF++ on a scale of 0 to 100, with its interval. Gained and "
        f"lost: p below {ALPHA} by Holm's correction over all rows of the column, and the interval "
        "(which is not corrected) excludes zero. No evidence is no proof that nothing was lost."
    )
    if both:
        yield (
            "Against the better expert: gained where the model gained against both, lost where it "
            "lost against one of them. So the better one need not be chosen on the same items. "
            "Each column is corrected for itself, so a loss by chance is up to twice as likely."
        )
    for kind, found in readings.items():
        counts = Counter(each for each in found if each is not None)
        yield (
            f"Against the {kind.replace('_', ' ')}: {counts['gained']} gained, {counts['lost']} "
            f"lost, {counts['no evidence']} without evidence."
        )
