"""Against hand-made tables, brute force, published examples and simulations with known truth."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ablations.statistics.paired import holm, mcnemar_exact, newcombe_interval

COUNTS = st.integers(0, 8)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (0, 0, 1.0),
        (5, 0, 2 / 32),  # 2 * C(5,0) / 2^5
        (2000, 2000, 1.0),
        (16, 6, 2 * (1 + 22 + 231 + 1540 + 7315 + 26334 + 74613) / 2**22),
    ],
)
def test_mcnemar_equals_the_table_of_the_binomial(first: int, second: int, expected: float) -> None:
    assert mcnemar_exact(first, second) == pytest.approx(expected, rel=1e-12)
    assert mcnemar_exact(second, first) == mcnemar_exact(first, second)


@pytest.mark.parametrize(
    ("table", "low", "high", "digits"),
    [
        # Cavo et al. 2012, as in Fagerland, Lydersen, Laake, "Statistical Analysis of Contingency
        # Tables" (2017), chapter 8; digits as the authors' R package contingencytables tests them.
        ((59, 6, 16, 80), -0.1186, -0.0046, 4),
        # Bentur et al. 2009, same chapter.
        ((1, 1, 7, 12), -0.507, -0.026, 3),
    ],
)
def test_newcombe_equals_published_intervals(
    table: tuple[int, int, int, int], low: float, high: float, digits: int
) -> None:
    assert [round(end, digits) for end in newcombe_interval(*table)] == [low, high]


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_newcombe_turns_with_the_models_and_holds_the_difference(
    both: int, first: int, second: int, neither: int
) -> None:
    n = both + first + second + neither
    assume(n > 0)
    low, high = newcombe_interval(both, first, second, neither)
    turned = newcombe_interval(both, second, first, neither)
    assert turned == pytest.approx((-high, -low), abs=1e-12)
    assert -1 - 1e-9 <= low <= (first - second) / n + 1e-9
    assert (first - second) / n - 1e-9 <= high <= 1 + 1e-9


def test_newcombe_has_a_width_where_the_models_never_disagree() -> None:
    low, high = newcombe_interval(30, 0, 0, 220)
    assert -0.02 < low < 0 < high < 0.02


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


def test_coverage_of_the_interval_of_a_difference_of_shares() -> None:
    rng = np.random.default_rng(11)
    covered = dict.fromkeys((40, 250), 0)
    # right in both, first only, second only, neither
    chances = [0.22, 0.12, 0.08, 0.58]
    for n in covered:
        for table in rng.multinomial(n, chances, size=600):
            low, high = newcombe_interval(*map(int, table))
            covered[n] += low <= chances[1] - chances[2] <= high
    # 0.95 within three standard errors of 600 draws, and not beyond 0.98: not wide for nothing.
    assert all(0.923 <= hits / 600 <= 0.98 for hits in covered.values()), covered
