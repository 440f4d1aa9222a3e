"""The laws of fitted sums, on numbers alone."""

import numpy as np
import pytest
import torch

from ablations.explain.fit import fit_sum, half_steps, joined, simple_coefficients


def rounded(values, dtype):
    return torch.from_numpy(values).to(getattr(torch, dtype)).double().numpy()


def parents(number, dtype="bfloat16", size=1024, spread=0.05, seed=0):
    rng = np.random.default_rng(seed)
    base = rng.normal(size=size)
    models = {f"p{i}": base + spread * rng.normal(size=size) for i in range(number)}
    return {name: rounded(values, dtype) for name, values in models.items()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_half_a_step_is_the_largest_rounding(dtype):
    rng = np.random.default_rng(1)
    values = rng.normal(size=2000) * 10.0 ** rng.uniform(-6, 3, size=2000)
    steps = half_steps(rounded(values, dtype), dtype)
    # torch rounds to float16 by way of float32
    assert (np.abs(rounded(values, dtype) - values) <= steps * (1 + 1e-3)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "weights", [(0.5, 0.5), (0.3, 0.7), (1 / 3, 2 / 3), (1.3, -0.3), (0.25, 0.5, 0.25)]
)
def test_weights_of_a_rounded_sum_are_read_back(weights, dtype):
    models = parents(len(weights), dtype)
    merged = rounded(sum(w * m for w, m in zip(weights, models.values(), strict=True)), dtype)
    fitted = fit_sum(merged, models, dtype)
    assert fitted.is_rounding
    assert list(simple_coefficients(fitted, dtype).values()) == pytest.approx(weights, abs=1e-9)


def test_errors_of_coefficients_are_not_understated():
    fits = []
    for seed in range(300):
        models = parents(2, spread=0.02, size=256, seed=seed)
        merged = rounded(sum(models.values()) / 2, "bfloat16")
        fits.append(fit_sum(merged, models, "bfloat16"))
    scores = np.array([(fit.coefficients["p0"] - 0.5) / fit.errors["p0"] for fit in fits])
    assert 0.4 < scores.std() < 1.2  # never understated
    assert abs(scores.mean()) < 0.3


def test_several_tensors_are_surer_than_one():
    fits = []
    for seed in range(10):
        models = parents(2, spread=0.01, seed=seed)
        fits.append(fit_sum(rounded(sum(models.values()) / 2, "bfloat16"), models, "bfloat16"))
    together = joined(fits)
    assert together.errors["p0"] < 0.5 * min(fit.errors["p0"] for fit in fits)
    assert together.coefficients["p0"] == pytest.approx(0.5, abs=5 * together.errors["p0"])


def test_equal_parents_are_one():
    models = parents(2)
    merged = rounded(sum(models.values()) / 2, "bfloat16")
    fitted = fit_sum(merged, {**models, "copy": models["p1"].copy()}, "bfloat16")
    assert fitted.equal == {"copy": "p1"}
    assert list(fitted.coefficients) == ["p0", "p1"]


def test_a_missing_parent_is_more_than_rounding():
    models = parents(3)
    merged = rounded(sum(models.values()) / 3, "bfloat16")
    del models["p2"]
    fitted = fit_sum(merged, models, "bfloat16")
    assert not fitted.is_rounding
    assert fitted.residual > 0.3


def test_few_values_say_nothing():
    models = parents(2, size=10)
    assert fit_sum(models["p0"], models, "bfloat16") is None
