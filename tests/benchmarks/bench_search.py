"""What a search finds and reports, in simulated studies.

    python -m tests.benchmarks.bench_search --draws 2000

The logit of an answer is an item's ease, plus what the model adds to this item, plus the model's
own ability; the sizes are those of `bench_coverage`. The soup is one more model. First, all
settings and the soup are equally able: what is reported must be 0 on average. Then settings differ:
how often the best is found, how far the setting that is taken is below the best, and with how many
answers. "Flattered" is the error of the setting with the highest score of all on all items that
choose, if that score is reported; "by all" is what this setting is worth.
"""

import json
from pathlib import Path
from statistics import NormalDist

import click
import numpy as np

from ablations.search.rounds import Size, best_first, bounds, halving, total
from tests.benchmarks.bench_coverage import EASE

EASES = (EASE, 4.0, 8.0)
"""Standard deviations of the ease of items, in logits: the larger, the more models agree."""

SPREADS = (0.0, 1.0, 2.0, 4.0)
"""Standard deviation of the true scores of settings, in points near a score of one half."""

OWN = 0.7
"""Standard deviation of items for one model, in logits."""

POINT = 0.06
"""Logits of ability that are about one point of the score, at this spread of items."""


def answers(rng, abilities, items, ease):
    """Return right (1) and wrong (0) answers, shape [models, items]."""
    eases = rng.normal(0, ease, items)
    own = rng.normal(0, OWN, (len(abilities), items))
    chance = 1 / (1 + np.exp(-(eases + own + abilities[:, None])))
    return (rng.random(chance.shape) < chance).astype(float)


def true_scores(abilities, ease):
    """Return the mean scores over all items that could be drawn, in points."""
    normal = NormalDist(0, np.hypot(ease, OWN))
    logits = np.array([normal.inv_cdf((n + 0.5) / 2000) for n in range(2000)])
    return 100 * (1 / (1 + np.exp(-(logits[None] + abilities[:, None])))).mean(axis=1)


def winner(choosing, rounds):
    """Return the setting that a search takes; `choosing` has a row for each."""
    left = [str(number) for number in range(len(choosing))]
    for one in rounds:
        scores = {name: float(choosing[int(name), : one.items].mean()) for name in left}
        left = best_first(scores)[: one.kept]
    return int(left[0])


def study(rng, settings, spread, choose, report, ease=EASE):
    """Return what a search and what the best of all on the same items gives, in one study."""
    abilities = POINT * np.array([*rng.normal(0, spread, settings), 0.0])
    choosing = answers(rng, abilities, choose, ease)
    reporting = answers(rng, abilities, report, ease)
    found = winner(choosing[:-1], halving(settings, choose))
    true = true_scores(abilities, ease)
    best = int(np.argmax(true[:-1]))
    highest = int(np.argmax(choosing[:-1].mean(axis=1)))

    def gain(matrix, model):
        return 100 * float(matrix[model].mean() - matrix[-1].mean())

    return {
        "reported": gain(reporting, found),
        "bias": gain(reporting, found) - (true[found] - true[-1]),
        "flattered": gain(choosing, highest) - (true[highest] - true[-1]),
        "disagree": float((choosing[:-1] != choosing[-1]).mean()),
        "found": found == best,
        "found by all": highest == best,
        "below": true[best] - true[found],
        "below by all": true[best] - true[highest],
    }


def row(rng, settings, spread, choose, report, draws, ease=EASE):
    """Return the means over `draws` studies, with the standard error of what is reported."""
    studies = [study(rng, settings, spread, choose, report, ease) for _ in range(draws)]
    means = {name: float(np.mean([one[name] for one in studies])) for name in studies[0]}
    biases = [one["bias"] for one in studies]
    size, rounds = Size(pairs=1, comparators=1), halving(settings, choose)
    new_items = [*np.diff([0, *(one.items for one in rounds)]).tolist(), report]
    parts = bounds(rounds, size, size, new_items)
    return {
        "settings": settings,
        "spread": spread,
        "choose": choose,
        "report": report,
        **means,
        "error": float(np.std(biases, ddof=1) / np.sqrt(draws)),
        "answers": total(parts[:-1]).answers,
        "answers of all": (settings + 1) * choose,
    }


@click.command()
@click.option("--draws", default=2000, show_default=True, help="Simulated studies of each kind.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "path", type=click.Path(), help="Write the rows to this file, too.")
def main(draws, seed, path):
    """Print the table."""
    rng = np.random.default_rng(seed)
    print(f"{draws} studies of each kind, seed {seed}; differences to the soup, in points")
    heads = (
        "settings spread choose report | reported  bias (s.e.) flattered | best found  by all | "
    )
    print(f"{heads}below best  by all | answers    all")
    rows = []
    situations = [
        (settings, spread, size, EASE)
        for settings in (16, 24)
        for size in (125, 250, 400)
        for spread in SPREADS
    ]
    situations += [(16, 0.0, 250, ease) for ease in EASES[1:]]
    for settings, spread, size, ease in situations:
        one = row(rng, settings, spread, size, size, draws, ease)
        rows.append(one)
        found = (one["found"], one["found by all"])
        shares = "         -       -" if not spread else "{:10.2f} {:7.2f}".format(*found)
        print(
            f"{settings:8} {spread:6.1f} {size:6} {size:6} {one['disagree']:8.2f} | "
            f"{one['reported']:+8.2f} {one['bias']:+5.2f} ({one['error']:.2f}) "
            f"{one['flattered']:+9.2f} | {shares} | "
            f"{one['below']:10.2f} {one['below by all']:7.2f} | "
            f"{one['answers']:7} {one['answers of all']:6}",
            flush=True,
        )
    if path:
        text = json.dumps({"draws": draws, "seed": seed, "rows": rows}, indent=1)
        Path(path).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
