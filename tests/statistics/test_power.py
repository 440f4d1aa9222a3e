import numpy as np
import pytest

from ablations.statistics.paired import mcnemar_exact
from ablations.statistics.power import (
    detectable_difference,
    independent_psi,
    items_needed,
    noise_threshold,
)


def test_two_points_on_the_250_items_of_mgsm_are_noise() -> None:
    # Llama 3.1's Swahili MGSM and its best merges: 24.8 to 37.2 %.
    psi = independent_psi(0.324)
    assert noise_threshold(250, psi) == pytest.approx(0.0820, abs=5e-5)
    # Models that disagree on one item in ten only.
    assert noise_threshold(250, 0.10) == pytest.approx(0.0392, abs=5e-5)
    assert noise_threshold(250, 0.10) > 0.02


def test_connors_sample_size_for_mcnemar() -> None:
    # By hand for psi = 0.3, d = 0.1: (1.959964 sqrt(.3) + .841621 sqrt(.29))^2 / .01
    assert items_needed(0.1, 0.3) == 234
    assert detectable_difference(234, 0.3) == pytest.approx(0.1, abs=3e-4)


@pytest.mark.parametrize("n", [50, 250, 4000])
@pytest.mark.parametrize("psi", [0.05, 0.2, 0.5])
def test_items_and_difference_are_each_others_inverse(n: int, psi: float) -> None:
    found = detectable_difference(n, psi)
    assert noise_threshold(n, psi) < found
    if found**2 <= psi:
        assert items_needed(found, psi) in (n, n + 1)


def test_the_power_that_is_promised_is_there() -> None:
    n, psi = 500, 0.2
    difference = detectable_difference(n, psi)
    rng = np.random.default_rng(0)
    chances = [(psi + difference) / 2, (psi - difference) / 2, 1 - psi]
    tables = rng.multinomial(n, chances, size=1500)
    found = np.mean([mcnemar_exact(int(a), int(b)) < 0.05 for a, b, _ in tables])
    # The exact test is a little more careful than the formula's normal one.
    assert 0.74 <= found <= 0.83
