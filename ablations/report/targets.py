"""Which score a study is about: that of the target language first. Knows names; no score."""

from __future__ import annotations

from ablations.report.design import Group
from ablations.report.observations import Measure, Observations
from ablations.report.primary import last_code, primary_measures


def is_english(task: str) -> bool:
    """Return whether a task is in English, by the last language in its name."""
    return last_code(task) == "en"


def ordered(observations: Observations) -> list[tuple[Group, Measure]]:
    """Return what is measured in percent or BLEU: primary tasks first, English ones last."""
    primary = {(g, m) for g in observations.groups for m in primary_measures(observations, g)}
    found = [each for each in observations.measured() if each[1].is_share]
    return sorted(found, key=lambda each: (each not in primary, is_english(each[1].task)))
