"""Against hand-made tables, brute force, published examples and simulations with known truth."""

import itertools
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablations.statistics.bleu import bleu_counts, bleu_of, bleu_of_sums
from ablations.statistics.paired import (
    bootstrap_p_value,
    draw,
    holm,
    mcnemar_exact,
    newcombe_interval,
    percentile_interval,
    permutation_test,
    resampled_scores,
)

COUNTS = st.integers(0, 8)


def _fair_coins(first: int, second: int) -> Fraction:
    """Count, among all outcomes of `first + second` coins, those at least as lopsided."""
    trials = first + second
    outcomes = list(itertools.product((0, 1), repeat=trials))
    far = [heads for heads in map(sum, outcomes) if abs(2 * heads - trials) >= abs(first - second)]
    return Fraction(len(far), len(outcomes))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 2 / 32),  # 2 * C(5,0) / 2^5
        (7, 1, 2 * (1 + 8) / 256),  # C(8,0) + C(8,1)
        (6, 6, 1.0),
        (16, 6, 2 * (1 + 22 + 231 + 1540 + 7315 + 26334 + 74613) / 2**22),
    ],
)
def test_mcnemar_equals_the_table_of_the_binomial(first: int, second: int, expected: float) -> None:
    assert mcnemar_exact(first, second) == pytest.approx(expected, rel=1e-12)
    assert mcnemar_exact(second, first) == mcnemar_exact(first, second)


@pytest.mark.parametrize("first", range(7))
@pytest.mark.parametrize("second", range(7))
def test_mcnemar_equals_all_outcomes_of_fair_coins(first: int, second: int) -> None:
    assert mcnemar_exact(first, second) == pytest.approx(float(_fair_coins(first, second)))


def test_mcnemar_has_no_limit_of_size_and_refuses_nonsense() -> None:
    assert mcnemar_exact(2000, 2000) == 1.0
    assert 0 < mcnemar_exact(1000, 1200) < 1e-4
    with pytest.raises(ValueError, match="negative"):
        mcnemar_exact(-1, 3)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        # Cavo et al. 2012, as in Fagerland, Lydersen, Laake, "Statistical Analysis of Contingency
        # Tables" (2017), chapter 8; digits as the authors' R package contingencytables tests them.
        ((59, 6, 16, 80), -0.1186, -0.0046),
        # Bentur et al. 2009, same chapter.
        ((1, 1, 7, 12), -0.507, -0.026),
    ],
)
def test_newcombe_equals_published_intervals(
    table: tuple[int, int, int, int], low: float, high: float
) -> None:
    digits = 4 if abs(low * 1e4 % 10) > 0.5 else 3
    found = newcombe_interval(*table)
    assert [round(end, digits) for end in found] == [low, high]


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_newcombe_turns_with_the_models_and_holds_the_difference(
    both: int, first: int, second: int, neither: int
) -> None:
    n = both + first + second + neither
    if n == 0:
        with pytest.raises(ValueError, match="sum > 0"):
            newcombe_interval(both, first, second, neither)
        return
    low, high = newcombe_interval(both, first, second, neither)
    turned = newcombe_interval(both, second, first, neither)
    assert turned == pytest.approx((-high, -low), abs=1e-12)
    assert -1 - 1e-9 <= low <= (first - second) / n + 1e-9
    assert (first - second) / n - 1e-9 <= high <= 1 + 1e-9


def test_newcombe_has_a_width_where_the_models_never_disagree() -> None:
    low, high = newcombe_interval(30, 0, 0, 220)
    assert -0.02 < low < 0 < high < 0.02


def _all_sign_patterns(differences: list[float]) -> float:
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * each for sign, each in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return sum(each >= observed - 1e-9 for each in sums) / len(sums)


@given(st.lists(st.integers(-6, 6).map(lambda tenths: tenths / 6), min_size=1, max_size=9))
@settings(max_examples=60)
def test_permutation_test_equals_all_sign_patterns(differences: list[float]) -> None:
    expected = _all_sign_patterns(differences)
    assert permutation_test(np.array(differences), seed=0) == pytest.approx(expected)


def test_random_permutations_come_near_all_of_them() -> None:
    rng = np.random.default_rng(3)
    differences = rng.normal(0.4, 0.6, size=12)
    exact = permutation_test(differences, seed=0, permutations=2**12)
    assert exact == pytest.approx(_all_sign_patterns(list(differences)))
    drawn = permutation_test(differences, seed=0, permutations=4000)
    assert 0.05 < exact < 0.5
    # Three standard errors of a share of 4000.
    assert abs(drawn - exact) < 3 * (exact * (1 - exact) / 4000) ** 0.5
    assert drawn != exact
    assert drawn == permutation_test(differences, seed=0, permutations=4000)
    assert drawn != permutation_test(differences, seed=1, permutations=4000)


def test_on_right_and_wrong_the_permutation_test_is_mcnemars() -> None:
    differences = np.repeat([1.0, -1.0, 0.0], [9, 3, 40])
    assert permutation_test(differences, seed=0) == pytest.approx(mcnemar_exact(9, 3))


def test_holm_equals_the_example_of_its_paper_and_of_r() -> None:
    # Wikipedia's worked example of Holm-Bonferroni (alpha 0.05: H1 and H4 fall).
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    # R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm")
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx((0.05, 0.08, 0.09, 0.09, 0.09))
    assert holm([]) == ()
    assert holm([0.7]) == (0.7,)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.999))
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float], alpha: float) -> None:
    rejected = set()
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] * (len(p_values) - step) > alpha:
            break
        rejected.add(index)
    assert {i for i, adjusted in enumerate(holm(p_values)) if adjusted <= alpha} == rejected


TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=0, max_size=7).map(" ".join)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
@settings(max_examples=100)
def test_bleu_of_many_rows_is_sacrebleus_of_each(pairs: list[tuple[str, str]]) -> None:
    counts = bleu_counts([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    rows = np.vstack([counts, counts.sum(axis=0, keepdims=True)]).astype(np.float64)
    expected = [bleu_of(row) for row in rows]
    assert bleu_of_sums(rows) == pytest.approx(expected, abs=1e-12)
    assert bleu_of_sums(rows.reshape(1, -1, 1, 10)).shape == (1, len(rows), 1)


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

    blocks = [bleu_counts(each, gold).astype(float)[None, None, None] for each in systems]
    draws = draw(blocks[0].shape, seed=0)
    present = np.ones((1, 1, 1), dtype=bool)
    first, second = (resampled_scores(each, present, bleu_of_sums, draws) for each in blocks)
    whole = [bleu_of(each.sum(axis=(0, 1, 2, 3))) for each in blocks]
    observed = whole[0] - whole[1]
    randomized = theirs("ar").p_value
    assert 0.03 < randomized < 0.5
    assert bootstrap_p_value(first - second, observed) == pytest.approx(randomized, abs=0.03)
    # Its own bootstrap gives the same interval, but half the p: see the docstring.
    bootstrapped = theirs("bs")
    assert np.std(second) * 1.96 * 100 == pytest.approx(bootstrapped.ci, rel=0.1)
    assert bootstrapped.p_value == pytest.approx(randomized / 2, abs=0.03)


def _mean(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


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


def test_coverage_of_the_interval_of_a_difference_of_shares() -> None:
    rng = np.random.default_rng(11)
    covered = dict.fromkeys((40, 250), 0)
    # right in both, first only, second only, neither
    chances = [0.22, 0.12, 0.08, 0.58]
    for n in covered:
        for table in rng.multinomial(n, chances, size=1500):
            low, high = newcombe_interval(*map(int, table))
            covered[n] += low <= chances[1] - chances[2] <= high
    # 0.95 within four standard errors of 1500 draws, and not beyond 0.98: not wide for nothing.
    assert all(0.93 <= hits / 1500 <= 0.98 for hits in covered.values()), covered


def test_p_values_keep_their_level_and_find_what_is_there() -> None:
    rng = np.random.default_rng(12)
    same, other = [], []
    for chances, found in (([0.2, 0.1, 0.1, 0.6], same), ([0.2, 0.15, 0.05, 0.6], other)):
        for table in rng.multinomial(250, chances, size=600):
            differences = np.repeat([0.0, 1.0, -1.0, 0.0], table)
            found.append(
                (
                    mcnemar_exact(int(table[1]), int(table[2])),
                    permutation_test(differences, seed=1, permutations=400),
                )
            )
    false_alarms, power = ((np.array(each) < 0.05).mean(axis=0) for each in (same, other))
    assert (false_alarms < 0.05 + 4 * (0.05 * 0.95 / 600) ** 0.5).all()
    assert (false_alarms > 0.01).all()
    assert (power > 0.8).all()


def test_the_bootstrap_of_bleu_keeps_its_level() -> None:
    rng = np.random.default_rng(14)
    alarms = 0
    for trial in range(200):
        # Two systems of the same quality on 80 sentences: matches of 1- to 4-grams of 10 words.
        kept = rng.binomial(10, 0.8, size=(2, 80))
        matches = np.maximum(kept[..., None] - np.arange(4) - rng.integers(0, 3, (2, 80, 1)), 0)
        totals = np.broadcast_to(10 - np.arange(4), matches.shape)
        lengths = np.full((2, 80, 2), 10)
        blocks = np.concatenate([matches, totals, lengths], axis=-1).astype(float)
        blocks = blocks[:, None, None, None]
        draws = draw(blocks[0].shape, seed=trial, resamples=300)
        present = np.ones((1, 1, 1), dtype=bool)
        first, second = (resampled_scores(each, present, bleu_of_sums, draws) for each in blocks)
        whole = bleu_of_sums(blocks.sum(axis=4)).ravel()
        alarms += bootstrap_p_value(first - second, float(whole[0] - whole[1])) < 0.05
    assert 1 <= alarms <= 200 * (0.05 + 4 * (0.05 * 0.95 / 200) ** 0.5)


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
