"""How far a stated power is from how often tests reject, in simulated studies.

    python -m tests.benchmarks.bench_power --draws 400

The studies are those of `bench_coverage`. What differences vary by is taken from one large study of
the same kind, so only the statement is tested and not what a small run says of its experts.
"""

import click
import numpy as np

from ablations.statistics.mcnemar import mcnemar_p
from ablations.statistics.means_and_p_values import estimate
from ablations.statistics.power import Design, power, spread_of
from tests.benchmarks.bench_coverage import MEANS, SPREADS, draw, true_difference

PAIRS = ((1, 1), (2, 2), (3, 1), (3, 3), (5, 5))
GAINS = (0.4, 0.8, 1.6)
"""Differences of the two models, in logits."""

MANY, LARGE = 60, 1000
"""Experts of a role, and items, of the study that says what differences vary by."""


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
    least = 1 / (items + 2) ** 2 / (tasks * languages)
    return estimate(values, np.array([*weights, *-weights]), axes, least).p_value() <= alpha


def situation(rng, mean, gain, spread, design, alpha, draws):
    """Return the true difference in points, the stated power and the share of rejections."""
    shape = (design.task_experts, design.language_experts, design.items)
    large = (*(MANY if count > 1 else 1 for count in shape[:2]), LARGE)
    first, second = draw(rng, mean, gain, spread, large).reshape(2, *large)
    difference = true_difference(mean, gain, spread, *shape[:2])
    stated = power(difference, spread_of(first - second), design, alpha)
    rejected = [
        rejects(draw(rng, mean, gain, spread, shape).reshape(2, *shape), alpha)
        for _ in range(draws)
    ]
    return 100 * difference, stated, float(np.mean(rejected))


@click.command()
@click.option("--draws", default=400, show_default=True, help="Simulated studies of each kind.")
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
    for where, mean in MEANS.items():
        for name, spread in SPREADS.items():
            for tasks, languages in PAIRS:
                for gain in GAINS:
                    design = Design(items, tasks, languages)
                    points, stated, rejected = situation(
                        rng, mean, gain, spread, design, alpha, draws
                    )
                    off.append(abs(stated - rejected))
                    print(
                        f"{where:8} {tasks} x {languages:<3} {name:7} {points:6.1f} {stated:6.2f} "
                        f"{rejected:8.2f} {stated - rejected:+5.2f}",
                        flush=True,
                    )
    print(f"off by .05 or less: {np.mean(np.array(off) <= 0.05):.0%}; at most {max(off):.2f}")


if __name__ == "__main__":
    main()
