"""How often 95 % intervals of a comparison hold the true difference, in simulated studies.

    python -m tests.benchmarks.bench_coverage --draws 2000

Two merges answer the same items. The logit of an item is a mean, plus the item's ease, plus what
each expert, pair and model adds, and what this item is to all pairs of one model and to each pair;
all of these are drawn anew in every study, as other experts and items would be. The true difference
is over all experts and items that could be drawn. A role with one expert has no spread between
experts, of which one expert tells nothing.
"""

import math

import click
import numpy as np
import pandas as pd

from ablations.report.comparisons import compare_sides
from ablations.runs.observations import CELL_ROLES

PAIRS = {1: (1, 1), 2: (1, 2), 3: (1, 3), 9: (3, 3)}
"""Number of pairs -> task experts and language experts."""

MEANS = {"near 0": -6.5, "near .5": 0.0, "near 1": 6.5}
"""Where the scores lie -> mean logit: scores of about 0.6 %, 50 % and 99.4 %."""

SPREADS = {"little": 0.05, "some": 0.12, "much": 0.25}
"""How experts differ -> standard deviation, in logits, of what each expert adds to each model."""

GAIN, EASE, ALIKE, MODEL, CELL = 0.5, 1.5, 0.25, 0.5, 0.5
"""In logits: the difference of the two models, and standard deviations of items for both models, of
experts for both models, of items for all pairs of one model, and of items for one pair."""


def true_difference(mean, gain, spread, tasks, languages):
    """Return the difference of expected scores, by Gauss-Hermite quadrature over all effects."""
    roles = (tasks > 1) + (languages > 1)
    pair = spread**2 if tasks * languages > 1 else 0.0
    deviation = math.sqrt(EASE**2 + MODEL**2 + CELL**2 + roles * (ALIKE**2 + spread**2) + pair)
    nodes, weights = np.polynomial.hermite_e.hermegauss(101)

    def score(logit):
        return float((weights / (1 + np.exp(-(logit + deviation * nodes)))).sum() / weights.sum())

    return score(mean + gain) - score(mean)


def draw(rng, mean, gain, spread, shape):
    """Return right and wrong answers of both models, shape [2, cells, items]."""
    tasks, languages, items = shape

    def experts(deviation):
        task = rng.normal(0, deviation, (tasks, 1, 1)) * (tasks > 1)
        return task + rng.normal(0, deviation, (1, languages, 1)) * (languages > 1)

    shared = mean + rng.normal(0, EASE, items) + experts(ALIKE)
    answers = []
    for own in (gain, 0.0):
        pair = rng.normal(0, spread, (tasks, languages, 1)) * (tasks * languages > 1)
        items_of_model = rng.normal(0, MODEL, items)
        logits = shared + own + experts(spread) + pair + items_of_model
        logits = logits + rng.normal(0, CELL, shape)
        answers.append(rng.random(shape) < 1 / (1 + np.exp(-logits)))
    return np.array(answers, dtype=np.float64).reshape(2, -1, items)


def coverage(pairs, mean, spread, *, draws, items, seed=0):
    """Return the share of intervals that hold the true difference, and their mean half width."""
    tasks, languages = PAIRS[pairs]
    rng = np.random.default_rng(seed)
    gain = GAIN if mean <= 0 else -GAIN
    truth = true_difference(mean, gain, spread, tasks, languages)
    cells = pd.DataFrame(
        {
            "task_expert": [f"t{t}" for t in range(tasks) for _ in range(languages)],
            "language_expert": [f"l{at}" for _ in range(tasks) for at in range(languages)],
        }
    ).assign(seed="")[list(CELL_ROLES)]
    sides = [
        pd.MultiIndex.from_frame(cells.assign(model=name, weights=name)) for name in ("a", "b")
    ]
    hits, widths = 0, []
    for _ in range(draws):
        answers = draw(rng, mean, gain, spread, (tasks, languages, items))
        first, second = map(pd.DataFrame, answers, sides)
        found = compare_sides(first, second, level=0.95, margin=0.02)
        hits += found.low <= truth <= found.high
        widths.append((found.high - found.low) / 2)
    return hits / draws, float(np.mean(widths))


@click.command()
@click.option("--draws", default=2000, show_default=True, help="Simulated studies a row.")
@click.option("--items", default=250, show_default=True, help="Items of a study.")
def main(draws, items):
    """Print the coverage of 95 % intervals by pairs, scores and spread of experts."""
    error = math.sqrt(0.95 * 0.05 / draws)
    click.echo(f"{draws} studies a row of {items} items; standard error of 95 %: {error:.2%}")
    for pairs in PAIRS:
        for where, mean in MEANS.items():
            for name, spread in SPREADS.items() if pairs > 1 else [("-", 0.0)]:
                share, width = coverage(pairs, mean, spread, draws=draws, items=items)
                text = f"{pairs} pairs, scores {where}, experts differ {name}"
                click.echo(f"{text:52}{share:7.1%}   ± {100 * width:.1f} points")


if __name__ == "__main__":
    main()
