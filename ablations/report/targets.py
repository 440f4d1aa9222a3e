"""Which score a study is about: that of the target language first. Knows names; no score."""

from __future__ import annotations

from ablations.report.design import Group
from ablations.report.observations import Measure, Observations
from ablations.report.primary import last_code, primary_measures


def is_english(task: str) -> bool:
    """Return whether a task is in English, by the last language in its name."""
    return last_code(task) == "en"


def in_order(observations: Observations) -> list[tuple[Group, Measure]]:
    """Return what is measured, in the order that all tables and figures have.

    As `report.tasks` says. Without it the primary tasks come first and those in English last;
    otherwise the order is that of `evaluate`.
    """
    found = list(observations.measured())
    if observations.run.study.report.tasks:
        return found
    primary = {(g, m) for g in observations.groups for m in primary_measures(observations, g)}
    return sorted(found, key=lambda each: (each not in primary, is_english(each[1].task)))


def ordered(observations: Observations) -> list[tuple[Group, Measure]]:
    """Return those of `in_order` that are in percent or BLEU."""
    return [each for each in in_order(observations) if each[1].is_share]
