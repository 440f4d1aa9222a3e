"""How far a stated power is from how often tests reject, in simulated studies.

    python -m tests.benchmarks.bench_power --draws 2000

The studies are those of `bench_coverage`. What differences vary by is taken from large studies of
the same kind, so only the statement is tested and not what a small run says of its experts. One
pair of experts is stated for all scores, several are for those from 3 to 97 %.
"""

import dataclasses
import functools
import itertools

import click
import numpy as np

from ablations.statistics.mcnemar import mcnemar_p
from ablations.statistics.means_and_p_values import estimate, least_variance
from ablations.statistics.power import Design, Spread, power, spread_of
from tests.benchmarks.bench_coverage import SPREADS, draw, true_difference

MEANS = {"0.6 %": -6.5, "3 %": -4.65, "50 %": 0.0, "97 %": 4.65, "99.4 %": 6.5}
"""Score of the second model -> mean logit."""

PAIRS = ((1, 1), (2, 2), (3, 1), (3, 3), (5, 5))
GAINS = (0.4, 0.8, 1.6)
"""Differences of the two models, in logits."""

MANY, LARGE, TIMES = 60, 300, 8
"""Experts of a role, and items, of the studies that say what differences vary by; their number."""


def rejects(answers, alpha):
    """Return whether the report's test of a difference has a p of `alpha` or less."""
    _, tasks, languages, items = answers.shape
    first, second = answers.reshape(2, tasks * languages, items)
    if tasks * languages == 1:
        return mcnemar_p(int((first > second).sum()), int((first < second).sum())) <= alpha
    axes = [[f"t{n // languages}" for n in range(tasks * languages)]]
    axes.append([f"l{n % languages}" for n in range(tasks * languages)])
    weights = np.full(tasks * languages, 1 / (tasks * languages))
    values = np.vstack([first, second])
    axes = [axis * 2 for axis in axes]
    signed = np.array([*weights, *-weights])
    return estimate(values, signed, axes, least_variance(items)).p_value() <= alpha


@functools.cache
def measured(mean, gain, spread, has_task, has_language):
    """Return what differences vary by in large studies, with several experts of these roles."""
    rng = np.random.default_rng(1)
    shape = (MANY if has_task else 1, MANY if has_language else 1, LARGE)
    times = TIMES * (1 if has_task and has_language else 30)
    found = []
    for _ in range(times):
        first, second = draw(rng, mean, gain, spread, shape).reshape(2, *shape)
        found.append(dataclasses.astuple(spread_of(first - second, float(second.mean()))))
    return Spread(*np.mean(found, axis=0))


def situation(rng, mean, gain, spread, design, alpha, draws):
    """Return the true difference in points, the stated power and the share of rejections."""
    shape = (design.task_experts, design.language_experts, design.items)
    has = (shape[0] > 1, shape[1] > 1)
    difference = true_difference(mean, gain, spread, *shape[:2])
    stated = power(difference, measured(mean, gain, spread, *has), design, alpha)
    rejected = [
        rejects(draw(rng, mean, gain, spread, shape).reshape(2, *shape), alpha)
        for _ in range(draws)
    ]
    return 100 * difference, stated, float(np.mean(rejected))


@click.command()
@click.option("--draws", default=2000, show_default=True, help="Simulated studies of each kind.")
@click.option("--items", default=250, show_default=True)
@click.option("--alpha", default=0.05, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(draws, items, alpha, seed):
    """Print the table."""
    rng = np.random.default_rng(seed)
    print(f"{draws} studies of each kind, {items} items, alpha {alpha}, seed {seed}")
    print(
        f"{'scores':8} {'experts':7} {'spread':7} {'points':>6} {'stated':>6} {'rejected':>8} off"
    )
    off = []
    for (where, mean), (name, spread), pairs, gain in itertools.product(
        MEANS.items(), SPREADS.items(), PAIRS, GAINS
    ):
        is_single = pairs == (1, 1)
        if (name != "little") if is_single else abs(mean) > 5:
            continue  # one pair has no spread; several are not stated there
        design = Design(items, *pairs)
        points, stated, rejected = situation(rng, mean, gain, spread, design, alpha, draws)
        off.append(abs(stated - rejected))
        print(
            f"{where:8} {pairs[0]} x {pairs[1]:<3} {'-' if is_single else name:7} {points:6.1f} "
            f"{stated:6.2f} {rejected:8.2f} {stated - rejected:+5.2f}",
            flush=True,
        )
    print(f"{len(off)} situations; off by {max(off):.3f} at most, {np.mean(off):.3f} on average")


if __name__ == "__main__":
    main()
