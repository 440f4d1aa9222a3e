"""Tables of single factors, of comparisons, of cells and of gaps. Knows no file format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ablations.machine.names import slug
from ablations.report.comparisons import Comparison
from ablations.report.document import Entry, Table, gap, text_entries
from ablations.report.factors import Factor, factors, most_draws
from ablations.report.names import task_name
from ablations.report.observations import Measure, Observations
from ablations.report.summaries import Summaries
from ablations.report.tables import entry, scope_note
from ablations.report.targets import in_order
from ablations.report.wording import (
    ALPHA,
    GAP,
    choice_text,
    contrast_text,
    difference_text,
    mark,
    measure_text,
    not_compared,
    score_name,
    verdict,
)
from ablations.runner.records import CellRecord
from ablations.statistics.as_text import p_text, points, with_interval
from layerswap_method.plan import describe_plan

_P_NOTE = (
    "p: two-sided. Corrected: by Holm's method for the primary comparisons; all others are "
    "exploratory and not corrected. Differences are in points of the score in percent, or of BLEU "
    "and chrF++ on a scale of 0 to 100."
)


def factor_tables(summaries: Summaries, comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """Yield a table per varied parameter: every level, and how it differs from the first."""
    study = summaries.observations.run.study
    if study.report.tables and "parameters" not in study.report.tables:
        return
    for factor in factors(study):
        notes = [scope_note(summaries.observations), _P_NOTE]
        others = [each.label for each in factors(study) if each.names != factor.names]
        if others:
            notes.append(
                f"Averaged over {', '.join(others)}; settings that differ in them are not compared."
            )
        if most_draws(study) > 1:
            notes.append("Seeds of a setting are averaged; seed variance is not included.")
        yield Table(
            slug(f"factor-{'-'.join(factor.names)}"),
            f"By {factor.label}",
            (
                *("task", factor.label, "score", f"difference from {factor.levels[0].label}"),
                *("p", "p corrected", "reading"),
            ),
            tuple(_factor_rows(summaries, factor, comparisons)),
            tuple(notes),
            text_columns=2,
            is_record=True,
        )


def comparisons_table(comparisons: Sequence[Comparison]) -> Table | None:
    """Return all comparisons with every number; None where nothing could be compared."""
    rows = []
    for each in comparisons:
        outcome = each.outcome
        if outcome is None:
            continue
        head = text_entries([measure_text(each.measure, each.group), contrast_text(each)])
        rows.append(
            (
                *head,
                _difference(each),
                *_p_entries(each),
                Entry(f"{outcome.items:,} × {outcome.cells}", float(outcome.items * outcome.cells)),
                Entry(", ".join(filter(None, (verdict(each), choice_text(each.contrast))))),
            )
        )
    if not rows:
        return None
    return Table(
        "comparisons",
        "All comparisons",
        ("task", "compared", "difference", "p", "p corrected", "items × pairs of cells", "reading"),
        tuple(rows),
        (_P_NOTE, *(f"{line}." for line in not_compared(comparisons))),
        text_columns=2,
        is_record=True,
    )


def baselines_table(comparisons: Sequence[Comparison]) -> Table | None:
    """Return how the recipe differs from every baseline; None where nothing could be compared."""
    found = [c for c in comparisons if not c.contrast.factor and not c.contrast.chosen_on]
    if all(each.outcome is None for each in found):
        return None
    names = tuple(dict.fromkeys(each.contrast.second for each in found))
    by_feature: dict[tuple[str, str], dict[str, Comparison]] = {}
    for each in found:
        head = measure_text(each.measure, each.group), each.contrast.first
        by_feature.setdefault(head, {})[each.contrast.second] = each
    marks = Counter(mark(each) for each in found)
    notes = [
        "Score of the row's model minus that of the column's, in points of the score in percent, "
        "or of BLEU and chrF++ on a scale of 0 to 100. Marked by *: evidence of a difference in a "
        f"primary comparison, p below {ALPHA} once corrected. Marked by °: p below {ALPHA} in an "
        "exploratory comparison, without correction. The table All comparisons has every interval "
        "and p.",
        f"{marks['*']} marked by * and {marks['°']} by ° of {len(found)} comparisons.",
    ]
    return Table(
        "baselines",
        "Against the baselines",
        ("task", "model", *names),
        tuple(
            (*text_entries(head), *(_marked(row.get(name)) for name in names))
            for head, row in by_feature.items()
        ),
        (*notes, *(f"{line}." for line in not_compared(found))),
        text_columns=2,
    )


def cells_table(observations: Observations) -> Table:
    """Return every finished cell with its own scores and intervals."""
    run = observations.run
    measures = list(dict.fromkeys(measure for _, measure in in_order(observations)))
    rows = []
    for cell in run.cells:
        plan = cell.layer_plan
        told = "" if plan is None else describe_plan(plan).partition(": ")[2]
        rows.append(
            (
                *text_entries([cell.label, cell.kind.replace("_", " "), told]),
                *(_cell_entry(observations, cell, measure) for measure in measures),
            )
        )
    return Table(
        "cells",
        "All cells",
        ("cell", "kind", "layers", *(task_name(measure.task) for measure in measures)),
        tuple(rows),
        ("Intervals are over items: Wilson's for right and wrong answers, else by bootstrap.",),
    )


def gaps_table(observations: Observations) -> Table | None:
    """Return the cells without a record, with the reason; None where there are none."""
    run = observations.run
    failures = {failure.label: failure for failure in run.failures}
    rows = []
    for planned in run.unfinished:
        failure = failures.get(planned.label)
        state = "not run" if failure is None else f"failed {failure.attempt}×"
        reason = "" if failure is None else failure.error
        rows.append(text_entries([planned.label, state, reason]))
    if not rows:
        return None
    return Table(
        "gaps",
        "Cells without a result",
        ("cell", "state", "reason"),
        tuple(rows),
        ("layerswap run with the same arguments runs exactly these.",),
        text_columns=3,
        is_record=True,
    )


def _factor_rows(
    summaries: Summaries, factor: Factor, comparisons: Sequence[Comparison]
) -> Iterator[tuple[Entry, ...]]:
    observations = summaries.observations
    for group, measure in in_order(observations):
        name = score_name(measure, group)
        for number_of, level in enumerate(factor.levels):
            label = Entry(level.label, float(number_of))
            score = entry(summaries.of(level.models, group, measure), measure)
            if number_of == 0:
                yield (Entry(name), label, score, *text_entries(["reference", "", "", ""]))
                continue
            found = next(
                each
                for each in comparisons
                if (each.group, each.measure) == (group, measure)
                and each.contrast.first_models == level.models
                and each.contrast.second_models == factor.levels[0].models
            )
            yield (
                Entry(name),
                label,
                score,
                _difference(found),
                *_p_entries(found),
                Entry(verdict(found)),
            )


def _marked(comparison: Comparison | None) -> Entry:
    if comparison is None or comparison.outcome is None:
        return gap()
    text = f"{points(comparison.outcome.difference)} {mark(comparison)}".rstrip()
    return Entry(text, comparison.outcome.difference)


def _difference(comparison: Comparison) -> Entry:
    outcome = comparison.outcome
    if outcome is None:
        return gap()
    return Entry(difference_text(outcome), outcome.difference)


def _p_entries(comparison: Comparison) -> tuple[Entry, Entry]:
    outcome = comparison.outcome
    if outcome is None:
        return gap(), gap()
    if outcome.p is None:
        return Entry(GAP), Entry(GAP)
    if comparison.p_holm is None:
        return Entry(p_text(outcome.p), outcome.p), Entry("exploratory")
    return Entry(p_text(outcome.p), outcome.p), Entry(p_text(comparison.p_holm), comparison.p_holm)


def _cell_entry(observations: Observations, cell: CellRecord, measure: Measure) -> Entry:
    score = observations.score(cell, measure)
    if score is None:
        return Entry("")
    return Entry(with_interval(score.value, score.interval, score.is_share), score.value)
