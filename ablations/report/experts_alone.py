"""The answer of a study without a recipe: its experts beside the base. Knows words; no test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablations.report.baselines import baseline_rows, kind_text
from ablations.report.comparisons import Comparison
from ablations.report.readings import compared_with, told_difference
from ablations.report.summaries import Summaries
from ablations.report.targets import in_order, ordered
from ablations.report.wording import measure_text
from ablations.statistics.as_text import number, with_interval

_NO_BASE = (
    "Nothing was tested: the study has no base to compare with. layerswap compare tests cells "
    "against each other."
)


def experts_alone(summaries: Summaries, comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a sentence for each task: the scores, and their differences from the base.

    Args:
        summaries: of the run.
        comparisons: of the report; each is of an expert with the base.
    """
    observations = summaries.observations
    rows = baseline_rows(observations.run.study)
    kinds = list(map(kind_text, observations.run.study.baseline))
    measures = ordered(observations) or in_order(observations)
    for group, measure in measures:
        scores = {name: summaries.of(each, group, measure) for name, each in rows.items()}
        found = {name: each for name, each in scores.items() if each is not None}
        where = measure_text(measure, group)
        compared = [each for each in comparisons if (each.group, each.measure) == (group, measure)]
        tested = {each.contrast.first: each for each in compared if each.outcome is not None}
        if not tested:
            shown = (
                f"{name} {with_interval(each.average, each.interval, measure.is_share)}"
                for name, each in found.items()
            )
            yield f"On {where}: {', '.join(shown)}."
            continue
        told = []
        for name, each in tested.items():
            score = number(found[name].average, measure.is_share)
            shown_name = f"the {name}" if name in kinds else name
            told.append((each, f"{shown_name} ({score}; {told_difference(each)})"))
        base = next(iter(tested.values())).contrast.second
        score = number(found[base].average, measure.is_share)
        is_primary = all(each.is_primary for each in tested.values())
        yield (
            f"On {where}, {compared_with(f'the {base} ({score})', told)}"
            f"{'' if is_primary else ' (exploratory)'}."
        )
    if not any(each.outcome is not None for each in comparisons) and len(rows) > 1:
        yield _NO_BASE
