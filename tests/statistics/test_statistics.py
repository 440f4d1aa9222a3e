"""Intervals and tests against scipy or by hand; corpus metrics as sums against sacrebleu."""

import math

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from ablations.statistics.corpus import CORPUS_METRICS, corpus_metric
from ablations.statistics.holm import holm
from ablations.statistics.intervals import bootstrap, score_interval
from ablations.statistics.mcnemar import (
    mcnemar_p,
    paired_interval,
    paired_p_outside,
    paired_score,
)
from ablations.statistics.means_and_p_values import (
    Estimate,
    alpha_of,
    estimate,
    estimate_over_clusters,
)

RNG = np.random.default_rng(5)
TWO = np.array([1.0, -1.0])


def crossed(tasks, languages, names=""):
    """Return the units of both axes for the cells of a grid of experts."""
    task = [f"{names}t{i}" for i in range(tasks) for _ in range(languages)]
    language = [f"{names}l{i}" for _ in range(tasks) for i in range(languages)]
    return [task, language]


def test_two_single_cells_are_the_paired_t_test():
    values = RNG.normal(size=(2, 40))
    found = estimate(values, TWO, [["a", "a"], ["b", "b"]])
    expected = stats.ttest_rel(*values)
    assert found.mean == pytest.approx(float(np.mean(values[0] - values[1])))
    assert found.p_value() == pytest.approx(expected.pvalue)
    half = found.half_width(0.95)
    low, high = expected.confidence_interval(0.95)
    assert (found.mean - half, found.mean + half) == pytest.approx((low, high))
    assert (found.df, found.items) == (39, 40)


@pytest.mark.parametrize("is_paired", [True, False])
def test_experts_of_one_name_are_paired_and_the_parts_of_others_add_up(is_paired):
    scores = RNG.normal(size=(2, 4))
    values = np.repeat(scores.reshape(8, 1), 500, axis=1)  # all uncertainty is between experts
    names = [f"math_{i}" for i in range(4)]
    others = names if is_paired else [f"lora_{i}" for i in range(4)]
    found = estimate(values, np.repeat([0.25, -0.25], 4), [[*names, *others]])
    test = stats.ttest_rel(*scores) if is_paired else stats.ttest_ind(*scores, equal_var=False)
    assert found.p_value() == pytest.approx(test.pvalue)
    assert found.df == pytest.approx(test.df)


def test_a_side_without_a_role_is_compared_with_the_mean_over_that_role():
    merged = RNG.normal(size=(6, 30))  # 2 task x 3 language experts
    alone = RNG.normal(size=(2, 30))
    task, language = crossed(2, 3)
    found = estimate(
        np.vstack([merged, alone]),
        np.array([1 / 6] * 6 + [-1 / 2] * 2),
        [[*task, "t0", "t1"], [*language, "", ""]],
    )
    means = merged.reshape(2, 3, 30).mean(axis=1) - alone
    assert found.mean == pytest.approx(means.mean())
    by_task = means.mean(axis=1)
    by_language = merged.reshape(2, 3, 30).mean(axis=(0, 2))
    parts = [
        np.var(by_task, ddof=1) / 2,
        np.var(by_language, ddof=1) / 3,
        np.var(means.mean(axis=0), ddof=1) / 30,
    ]
    assert 0.999 * max(parts) <= found.variance <= sum(parts)
    assert found.df == pytest.approx(
        sum(parts) ** 2 / sum(v**2 / d for v, d in zip(parts, (1, 2, 29), strict=True))
    )


@pytest.mark.parametrize(
    ("experts", "noise"), [(0.0, 1.0), (0.3, 1.0), (0.3, 0.0)], ids=["noise", "both", "experts"]
)
def test_the_variance_is_that_of_repeated_studies(experts, noise):
    rng = np.random.default_rng(1)
    axes = crossed(3, 3)
    means, variances = [], []
    for _ in range(1500):
        task, language = rng.normal(0, experts, (2, 3)) if experts else np.zeros((2, 3))
        cells = task[:, None, None] + language[None, :, None] + rng.normal(0, 0.5, 20)
        values = (cells + rng.normal(0, noise, (3, 3, 20))).reshape(9, 20)
        found = estimate(values, np.full(9, 1 / 9), axes)
        means.append(found.mean)
        variances.append(found.variance)
    ratio = float(np.mean(variances) / np.var(means))
    assert 0.93 < ratio < 1.25, ratio  # the sum over the axes alone has 1.6 where all is noise


def test_one_expert_adds_nothing_and_one_item_has_no_variance():
    values = RNG.random((1, 25))
    found = estimate(values, np.ones(1), [["math"], ["swahili"]])
    assert math.sqrt(found.variance) == pytest.approx(stats.sem(values[0]))
    of_two = [[["math"]], [["math_1", "math_2"]]]
    for axes in of_two:  # however the experts differ on it
        one = np.arange(len(axes[0]), dtype=float)[:, None]
        alone = estimate(one, np.full(len(one), 1 / len(one)), axes)
        assert (alone.variance, alone.df, alone.p_value()) == (0.0, math.inf, 1.0)


def test_the_least_variance_counts_where_items_hardly_differ():
    found = estimate(np.ones((2, 30)), TWO, [], least=0.01)
    assert (found.mean, found.variance) == (0.0, 0.01)


@pytest.mark.parametrize("mean", [-0.01, 0.0, 0.015, 0.03])
def test_the_margin_is_tested_from_both_sides(mean):
    found = Estimate(mean, 0.004**2, 11.0, 100)
    sides = [(mean + 0.02) / 0.004, (0.02 - mean) / 0.004]
    assert found.p_outside(0.02) == pytest.approx(max(float(stats.t.sf(s, 11)) for s in sides))
    at_90 = found.half_width(0.90)
    inside = mean - at_90 > -0.02 and mean + at_90 < 0.02
    assert (found.p_outside(0.02) < 0.05) == inside


def test_estimates_without_variance():
    for mean, items, p in ((0.0, 3, 1.0), (0.5, 3, 0.25), (0.5, 1, 1.0), (0.01, 500, 2.0**-499)):
        found = Estimate(mean, 0.0, math.inf, items)  # the sign test: one item shows nothing
        assert found.p_value() == p
        assert math.isnan(found.half_width(0.95))
        # Where one item in fifty differs by 1, so many are without it by chance.
        unseen = float(stats.binom.pmf(0, items, 0.02 - mean)) if mean < 0.02 else 1.0
        assert found.p_outside(0.02) == pytest.approx(unseen)
    assert estimate_over_clusters([0.1] * 3).p_value() == 0.25
    assert sum(paired_interval(0, 0, 1)) == pytest.approx(0)


@pytest.mark.parametrize("items", range(1, 60))
def test_items_that_differ_by_rounding_only_have_the_sign_test(items):
    found = estimate(np.array([[0.3] * items, [0.1] * items]), TWO, [["a", "a"], ["b", "b"]])
    assert (found.p_value(), found.df) == (2.0 ** (1 - items), math.inf)
    # One item of a large task that differs by a thousandth is more than rounding.
    values = np.array([[0.5] * 100_000, [0.5] * 99_999 + [0.501]])
    assert items > 1 or estimate(values, TWO, []).p_value() == pytest.approx(0.317, abs=0.001)
    if items > 1:
        sums = [sum([0.1] * 3) / 3 + number * 1e-17 for number in range(items)]
        assert estimate_over_clusters(sums).p_value() == 2.0 ** (1 - items)


def test_clusters_are_students_t_with_their_number():
    means = [-0.019, -0.066, -0.115, -0.005]  # of the withdrawn claim: four bases
    found = estimate_over_clusters(means)
    expected = stats.ttest_1samp(means, 0)
    assert found.p_value() == pytest.approx(expected.pvalue)
    assert expected.pvalue > 0.1  # a percentile bootstrap of the four called it significant
    low, high = expected.confidence_interval(0.95)
    assert found.mean - found.half_width(0.95) == pytest.approx(low)
    assert found.mean + found.half_width(0.95) == pytest.approx(high)
    with pytest.raises(ValueError, match="one cluster"):
        estimate_over_clusters(means[:1])


def _likelihood_score(won, lost, items, difference):
    """Return Tango's score with the nuisance share found by maximising the likelihood."""

    def loss(share):  # of items that only the second gets right
        first = share + difference
        rest = 1 - share - first
        if min(first, rest) <= 0:
            return math.inf
        return -(
            won * math.log(first) + lost * math.log(share) + (items - won - lost) * math.log(rest)
        )

    low, high = max(0.0, -difference), (1 - difference) / 2
    share = optimize.minimize_scalar(
        loss, bounds=(low + 1e-9, high - 1e-9), method="bounded", options={"xatol": 1e-12}
    ).x
    variance = items * (2 * share + difference - difference**2)
    return float((won - lost - items * difference) / math.sqrt(variance))


@pytest.mark.parametrize("counts", [(12, 5, 60), (3, 1, 200), (30, 22, 90)])
def test_the_paired_score_is_that_of_the_likelihood(counts):
    for difference in (-0.2, -0.03, 0.02, 0.15):
        expected = _likelihood_score(*counts, difference)
        assert paired_score(*counts, difference) == pytest.approx(expected, rel=1e-4)
    won, lost, items = counts
    low, high = paired_interval(won, lost, items)
    for end, sign in ((low, 1), (high, -1)):
        if end:
            assert paired_score(won, lost, items, end) == pytest.approx(sign * 1.959964, abs=1e-4)
    expected = max(
        float(stats.norm.sf(_likelihood_score(won, lost, items, -0.1))),
        float(stats.norm.cdf(_likelihood_score(won, lost, items, 0.1))),
    )
    assert paired_p_outside(won, lost, items, 0.1) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("level", [0.8, 0.9375, 0.95, 0.99])  # 1 - 0.9375 is p of 1 of 5
def test_interval_and_p_of_single_cells_agree(level):
    tested = 0
    for items in (6, 25, 60):
        for discordant in range(items + 1):
            for won in range(discordant + 1):
                lost = discordant - won
                low, high = paired_interval(won, lost, items, level)
                assert -1 <= low <= (won - lost) / items <= high <= 1
                assert (not low <= 0 <= high) == (mcnemar_p(won, lost) < alpha_of(level))
                tested += 1
    assert tested > 2000
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(1, 7) == pytest.approx(2 * (1 + 8) / 2**8)


def test_models_that_never_differ_have_an_interval_that_shrinks_with_the_items():
    widths = [paired_interval(0, 0, items)[1] for items in (10, 100, 1000)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == pytest.approx(3.84 / 1003.84, abs=1e-4)  # Wilson's upper end of 0


def test_holm_is_the_step_down_procedure():
    p_values = RNG.random(12) ** 3
    adjusted = holm(list(p_values))
    order = np.argsort(p_values)
    for alpha in np.linspace(0.001, 0.999, 60):
        rejected = set()
        for rank, index in enumerate(order):
            if p_values[index] > alpha / (len(p_values) - rank):
                break
            rejected.add(int(index))
        assert {at for at, p in enumerate(adjusted) if p <= alpha} == rejected
    assert holm([]) == ()


def test_the_bootstrap_of_a_mean_is_near_its_standard_error():
    values = RNG.random((200, 1))
    interval, error = bootstrap(values, lambda sums: sums[..., 0] / 200, seed=3)
    assert error == pytest.approx(stats.sem(values[:, 0]), rel=0.15)
    assert interval.low < values.mean() < interval.high
    assert bootstrap(values, lambda sums: sums[..., 0] / 200, seed=3) == (interval, error)


def test_the_interval_of_a_score_is_wilsons_on_its_effective_number_of_items():
    score = Estimate(mean=0.4, variance=0.4 * 0.6 / 25, df=math.inf, items=100)
    expected = stats.binomtest(10, 25).proportion_ci(0.95, method="wilson")
    assert score_interval(score, 0.95) == pytest.approx((expected.low, expected.high), abs=1e-9)


WORDS = ["paka", "mbwa", "(ana)", "vikombe", "vitano", ",", ".", "5", "కుక్క", "犬が好き"]
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=6)


def _sacrebleu(metric, predictions, references):
    if metric == "bleu":
        return float(sacrebleu.corpus_bleu(predictions, [references], force=True).score)
    words = 2 if metric == "chrf++" else 0
    return float(sacrebleu.corpus_chrf(predictions, [references], word_order=words).score)


@pytest.mark.parametrize("name", CORPUS_METRICS)
@settings(max_examples=60)
@given(pairs=PAIRS, seed=st.integers(0, 9))
def test_sums_of_what_is_drawn_give_sacrebleus_score(name, pairs, seed):
    metric = corpus_metric(name)
    drawn = np.random.default_rng(seed).integers(0, len(pairs), size=len(pairs))
    counts = metric.counts([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    assert counts.shape[0] == len(pairs)
    chosen = [pairs[place] for place in drawn]
    expected = _sacrebleu(name, [pair[0] for pair in chosen], [pair[1] for pair in chosen]) / 100
    sums = counts[drawn].sum(axis=0).astype(np.float64)
    if name == "bleu":
        expected = min(expected, 1.0)
    assert float(metric.score(sums)) == pytest.approx(expected, abs=1e-12)


def test_the_signature_says_how_it_is_counted():
    said = sacrebleu.metrics.chrf.CHRF(char_order=4, word_order=1)
    said.corpus_score(["a b"], [["a c"]])
    metric = corpus_metric("chrf++", str(said.get_signature()))
    assert metric.counts(["a b"], ["a c"]).shape == (1, 3 * 5)
    intl = sacrebleu.metrics.bleu.BLEU(tokenize="intl")
    intl.corpus_score(["a b"], [["a c"]])
    assert corpus_metric("bleu", str(intl.get_signature())) is not None
    char = corpus_metric("bleu", "nrefs:1|case:mixed|eff:no|tok:char|smooth:exp|version:2.6.0")
    assert char.counts(["abc"], ["abd"])[0, 2:4].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("rouge", None),
        ("bleu", "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"),
        ("bleu", "nrefs:1|case:mixed|eff:no|tok:13a|smooth:floor[0.10]|version:2.6.0"),
        ("chrf", "nrefs:1|case:mixed|eff:no|nc:6|nw:0|space:no|version:2.6.0"),
        ("ter", None),
    ],
)
def test_what_is_counted_otherwise_is_not_known(name, signature):
    assert corpus_metric(name, signature) is None


def test_a_perfect_corpus_scores_exactly_one():
    lines = ["paka ana vikombe vitano sasa", "mbwa ana vikombe sita leo"] * 20
    metric = corpus_metric("bleu")
    assert metric.score(metric.counts(lines, lines).sum(axis=0).astype(float)) == 1.0
