"""Which score a study is about: that of the target language first. Knows names; no score."""

from __future__ import annotations

from ablations.report.design import Group
from ablations.report.names import target_language
from ablations.report.observations import Measure, Observations


def is_english(task: str) -> bool:
    """Return whether a task is in English, by the last language in its name."""
    return target_language(task) == "en"


def ordered(observations: Observations) -> list[tuple[Group, Measure]]:
    """Return what is measured in percent or BLEU, tasks that are not English first."""
    found = [each for each in observations.measured() if each[1].is_share]
    return sorted(found, key=lambda each: is_english(each[1].task))
