"""Sentences of the answer: short and true, in all forms and with the names of all studies."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import ablations
from ablations.report.compare import BETTER, NO_RESULT, ONE_MODEL, SAME, UNCLEAR, WORSE
from ablations.report.sentences import MOST_SENTENCES, answer, sentences
from ablations.study.contrasts import Contrast, contrasts
from ablations.study.files import read_study
from ablations.study.labels import models_of, task_name
from layerswap_method.errors import InputError
from tests.report.runs import points_of, tasks_of

VERDICTS = (BETTER, WORSE, SAME, UNCLEAR, ONE_MODEL, NO_RESULT)
NUMBERS = {"difference": -0.111, "low": -0.23, "high": 0.152, "p": 0.04, "p_holm": 0.0004}
MOST_WORDS = 25


def words(text):
    """Return the number of words of every sentence of a text."""
    return [len(part.split()) for part in re.split(r"(?<=\.)\s+(?=[A-Z])", text)]


def shipped():
    """Yield the contrasts of every shipped study, and its task with the longest name."""
    for path in sorted((Path(ablations.__file__).parent / "studies").rglob("*.yml")):
        try:
            study = read_study(path).study
        except InputError:  # a file of experts
            continue
        assert study is not None
        points = points_of(study)
        cells = [SimpleNamespace(**vars(point), weights_key=point.label) for point in points]
        models = models_of(SimpleNamespace(study=study, cells=cells, num_layers=None))
        tasks = {task for point in points for task in tasks_of(study, point)}
        longest = sorted(tasks, key=lambda task: len(task_name(task).split()))[-1:]
        yield from ((contrasts(study, models), task) for task in longest)


STUDIES = list(shipped())


def row_of(contrast, task, verdict, **changes):
    row = {
        **{"first": contrast.first, "second": contrast.second, "task": task, "language": "sw"},
        **{"family": "primary", "rival": "soup", "verdict": verdict, "clusters": 0, **NUMBERS},
        **changes,
    }
    if verdict in (ONE_MODEL, NO_RESULT):
        row |= dict.fromkeys(("low", "high", "p", "p_holm"), float("nan"))
    return row


def scores_of(task, model="layer swap b=5 u=2 t_b=2 t_u=2"):
    row = {
        **{"model": model, "task": task, "language": "sw", "value": 0.33, "cells": 1},
        **{"min": 0.2, "max": 0.4, "pairs": 9, "above": 8, "is_primary": True},
        **{"is_below": True, "floor": 0.3, "floor_name": "the last number"},
    }
    return pd.DataFrame([row, {**row, "language": "de"}])


@pytest.mark.parametrize("family", ["primary", ""])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_no_sentence_of_a_comparison_has_over_25_words(verdict, family):
    assert len(STUDIES) > 15
    assert sum(len(found) for found, _ in STUDIES) > 300
    for found, task in STUDIES:
        for contrast in found:
            row = row_of(contrast, task, verdict, family=family)
            # With another language of experts, so that a sentence names the language.
            frame = pd.DataFrame([row, {**row, "language": "de"}])
            text = answer(row, frame, 2.5)
            assert max(words(text)) <= MOST_WORDS, text


@pytest.mark.parametrize("number", [0, 1, 2, MOST_SENTENCES, MOST_SENTENCES + 2])
def test_no_sentence_of_an_answer_has_over_25_words(number):
    every = [(contrast, task) for found, task in STUDIES for contrast in found]
    contrast, task = max(every, key=lambda pair: len(f"{pair[0].first} {pair[0].second}".split()))
    means = [
        {"language": "all", "task": "mean of 4 languages"},
        {"first": "layer swap b=5 u=2", "second": "weighted soup, mean of 4 bases"},
    ]
    rivals = ("better_expert", "setting", "base", "first_setting", "soup", "weighted_soup")
    for rival, verdict in itertools.product(rivals, VERDICTS):
        several = VERDICTS if number > MOST_SENTENCES else [verdict] * number
        rows = [
            row_of(contrast, task, each, rival=rival, language=f"x{at // 2}")
            for at, each in enumerate(several)
        ]
        rows += [row_of(contrast, task, verdict, family="", clusters=4) | mean for mean in means]
        lines = sentences(pd.DataFrame(rows), scores_of(task), 2.0)
        assert len(lines) >= 5
        for line in lines:
            assert max(words(line)) <= MOST_WORDS, line


@pytest.mark.parametrize("verdict", VERDICTS)
def test_no_difference_is_claimed_only_inside_the_margin(verdict):
    row = row_of(Contrast("swap", "soup", (), ()), "mgsm_sw", verdict)
    text = answer(row, pd.DataFrame([row]), 2.0)
    assert ("no relevant difference" in text) == (verdict == SAME)
    assert ("±2" in text) == (verdict == SAME)
    assert ("23.0 points are possible" in text) == (verdict == UNCLEAR)
    assert ("p <0.001" in text) == (verdict in (BETTER, WORSE))
    assert not re.search(r"\b(level|equal|as good|keeps)\b", text)


def test_both_experts_must_be_beaten():
    both = [Contrast("swap", name, (), ()) for name in ("task expert", "language expert")]
    for one, other in itertools.product(VERDICTS, repeat=2):
        rows = [
            row_of(contrast, "mgsm_sw", verdict, rival="better_expert")
            for contrast, verdict in zip(both, (one, other), strict=True)
        ]
        text = " ".join(sentences(pd.DataFrame(rows), scores_of("mgsm_sw"), 2.0))
        assert ("beats both experts" in text) == ({one, other} == {BETTER})
        many = [{**row, "language": f"x{at}"} for at in range(3) for row in rows]
        text = " ".join(sentences(pd.DataFrame(many), scores_of("mgsm_sw"), 2.0))
        assert ("against both experts: 3 better" in text) == ({one, other} == {BETTER})
