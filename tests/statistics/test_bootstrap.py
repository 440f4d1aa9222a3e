"""Against plain loops, sacrebleu's own tests and simulations with known truth."""

import itertools
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from ablations.statistics.bootstrap import (
    bootstrap,
    bootstrap_p_value,
    draw,
    percentile_interval,
    resampled_scores,
)
from ablations.statistics.corpus import bleu_of_sums, corpus_metric
from ablations.statistics.intervals import mean_stderr


def _mean(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def _rows(values: np.ndarray) -> np.ndarray:
    return np.column_stack([values, np.ones_like(values)])


def test_bootstrap_of_a_mean_has_its_standard_error_and_normal_interval() -> None:
    values = np.random.default_rng(1).normal(0.4, 0.2, size=400)
    interval, drawn = bootstrap(_rows(values), _mean, seed=0, resamples=4000)
    stderr = mean_stderr(values)
    assert stderr is not None
    assert drawn == pytest.approx(stderr, rel=0.05)
    assert interval.low == pytest.approx(values.mean() - 1.96 * stderr, abs=0.1 * stderr)
    assert interval.high == pytest.approx(values.mean() + 1.96 * stderr, abs=0.1 * stderr)


def test_bootstrap_repeats_with_its_seed_and_draws_the_same_items_for_every_model() -> None:
    values = np.random.default_rng(3).random(50)
    once = bootstrap(_rows(values), _mean, seed=7)
    again = bootstrap(_rows(values), _mean, seed=7)
    other = bootstrap(_rows(values), _mean, seed=8)
    shifted = bootstrap(_rows(values + 1), _mean, seed=7)
    assert once == again
    assert once != other
    assert shifted[0].low == pytest.approx(once[0].low + 1)
    assert shifted[0].high == pytest.approx(once[0].high + 1)


def _block(values: np.ndarray) -> np.ndarray:
    """Shape [task, language, items] to a block with one setting."""
    return np.stack([values, np.ones_like(values)], axis=-1)[None]


def test_resampled_scores_equal_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    block = _block(rng.random((3, 2, 11)))
    present = np.array([[[True, True], [True, False], [True, True]]])
    draws = draw(block.shape, seed=5, resamples=40)
    found = resampled_scores(block, present, _mean, draws)
    expected = []
    for items, task, language in zip(draws.items, draws.task, draws.language, strict=True):
        scores, weights = [], []
        for t, s in itertools.product(range(3), range(2)):
            if present[0, t, s]:
                scores.append((items * block[0, t, s, :, 0]).sum() / 11)
                weights.append(task[t] * language[s])
        if sum(weights):
            expected.append(np.average(scores, weights=weights))
    assert len(expected) < 40  # some resamples drew the missing cell alone
    assert found == pytest.approx(np.array(expected))


def test_one_expert_is_no_sample_of_experts() -> None:
    draws = draw((1, 1, 1, 20, 2), seed=0, resamples=10)
    assert (draws.task == 1).all()
    assert (draws.language == 1).all()
    assert (draws.items.sum(axis=1) == 20).all()
    assert (draw((1, 3, 2, 20, 2), seed=0, resamples=10).task.sum(axis=1) == 2).all()
    assert (draw((1, 3, 2, 20, 2), seed=0, resamples=10, experts=False).task == 1).all()


def test_paired_bootstrap_of_bleu_agrees_with_sacrebleus_randomization() -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    rng = np.random.default_rng(7)
    words = np.array(
        ["mtu", "watu", "kitu", "vitu", "mti", "miti", "nyumba", "jina", "mahali", "siku"]
    )
    references = [list(rng.choice(words, size=9)) for _ in range(120)]

    def translate(quality: float) -> list[str]:
        kept = rng.random((120, 9)) < quality
        return [
            " ".join(np.where(mask, words_of, rng.choice(words, size=9)))
            for mask, words_of in zip(kept, references, strict=True)
        ]

    systems = [translate(0.80), translate(0.77)]
    gold = [" ".join(each) for each in references]
    metric = BLEU(references=[gold])
    named = [("baseline", systems[0]), ("other", systems[1])]

    def theirs(kind: str) -> Any:
        test = PairedTest(named, {"BLEU": metric}, None, test_type=kind, n_samples=2000)
        return test()[1]["BLEU"][1]

    bleu = corpus_metric("bleu")
    assert bleu is not None
    blocks = [bleu.counts(each, gold).astype(float)[None, None, None] for each in systems]
    draws = draw(blocks[0].shape, seed=0)
    present = np.ones((1, 1, 1), dtype=bool)
    first, second = (resampled_scores(each, present, bleu_of_sums, draws) for each in blocks)
    whole = [float(bleu_of_sums(each.sum(axis=(0, 1, 2, 3)))) for each in blocks]
    observed = whole[0] - whole[1]
    randomized = theirs("ar").p_value
    assert 0.03 < randomized < 0.5
    assert bootstrap_p_value(first - second, observed) == pytest.approx(randomized, abs=0.03)
    # Its own bootstrap gives the same interval, but half the p: see the docstring.
    bootstrapped = theirs("bs")
    assert np.std(second) * 1.96 * 100 == pytest.approx(bootstrapped.ci, rel=0.1)
    assert bootstrapped.p_value == pytest.approx(randomized / 2, abs=0.03)


def test_coverage_of_the_interval_over_experts_and_items() -> None:
    """3 x 3 pairs whose experts differ: drawing items only is far too sure, drawing both is not."""
    rng = np.random.default_rng(13)
    normal = NormalDist()
    items, trials, spread = 100, 250, 0.25
    covered = {"items": 0, "both": 0}
    for trial in range(trials):
        task, language = rng.normal(0, spread, 3), rng.normal(0, spread, 3)
        difficulty = rng.normal(0, 1, items)
        ability = task[:, None, None] + language[None, :, None] + difficulty
        values = (ability + rng.normal(0, 1, (3, 3, items)) > 0.6).astype(float)
        truth = 1 - normal.cdf(0.6 / (2 + 2 * spread**2) ** 0.5)
        block = _block(values)
        for name, experts in (("items", False), ("both", True)):
            draws = draw(block.shape, seed=trial, experts=experts, resamples=300)
            present = np.ones((1, 3, 3), dtype=bool)
            scores = resampled_scores(block, present, _mean, draws)
            low, high = percentile_interval(scores, 0.95)
            covered[name] += low <= truth <= high
    assert covered["items"] / trials < 0.80, covered
    assert 0.85 <= covered["both"] / trials <= 0.99, covered
