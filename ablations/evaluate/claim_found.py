"""What the claim test of the pocket found: gates, scores, differences. Runs no model.

The interval of a difference draws bases, pairs of experts and items again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

TARGET, SOURCE, TRANSLATION = "pocket_math_sw", "pocket_math_en", "pocket_translate_sw_en"
GATE: Mapping[str, float] = {SOURCE: 0.3, TRANSLATION: 0.3, "retrieval_common": 0.5}
"""What a base must reach to take part: exact match of two tasks, and the share of common words
whose translation it finds (see `retrieval`; written down before any base was measured, chance is
.02). Never a score of `TARGET`."""
RIVALS = ("task_expert", "language_expert", "soup")

Scores = dict[str, dict[str, npt.NDArray[np.float64]]]
"""Row -> task -> ``[pairs, items]``, 0 or 1; one base."""


@dataclass(frozen=True)
class Base:
    """One base with its experts and their merges; scores are shares."""

    seed: int
    """Of the base."""
    reached: Mapping[str, float]
    """What it is gated by -> its score; also its retrieval of rare words, which gates nothing."""
    takes_part: bool
    """Whether it passes the gate."""
    scores: Scores
    """Of the base, its experts and their merges."""


@dataclass(frozen=True)
class Claim:
    """What was found; scores and differences are shares."""

    bases: tuple[Base, ...]
    """All of them, also those that are gated out."""
    level: float = 0.95
    """Of the intervals."""
    resamples: int = 2000
    """Draws of bases, pairs and items."""

    @property
    def scores(self) -> tuple[Scores, ...]:
        """Return the scores of the bases that take part."""
        return tuple(base.scores for base in self.bases if base.takes_part)

    def gain(self, rows: Sequence[str] = RIVALS, task: str = TARGET) -> tuple[float, float, float]:
        """Return the swap's mean score minus the best mean of `rows`, with its interval.

        The best of `rows` is chosen anew in every draw.
        """
        rng = np.random.default_rng(0)
        names = ("swap", *rows)
        values = np.stack([np.stack([one[name][task] for name in names]) for one in self.scores])
        bases, _, pairs, items = values.shape  # [bases, rows, pairs, items]
        draws = np.empty(self.resamples)
        for draw in range(self.resamples):
            weights = rng.multinomial(items, np.full(items, 1 / items)) / items
            means = values[rng.integers(bases, size=bases)] @ weights
            chosen = rng.integers(pairs, size=(bases, 1, pairs))
            drawn = np.take_along_axis(means, chosen, axis=2).mean(axis=(0, 2))
            draws[draw] = drawn[0] - drawn[1:].max()
        means = values.mean(axis=(0, 2, 3))
        low, high = np.quantile(draws, [(1 - self.level) / 2, (1 + self.level) / 2])
        return float(means[0] - means[1:].max()), float(low), float(high)

    def report(self) -> str:
        """Return the tables and the answer; at least one base must take part."""
        rows = list(self.scores[0])
        gated = list(self.bases[0].reached)
        pairs, items = self.scores[0]["swap"][TARGET].shape
        out = [str(base.seed) for base in self.bases if not base.takes_part]
        return "\n".join(
            (
                f"| base | {' | '.join(map(_words, gated))} | takes part |",
                f"|---|{'---|' * len(gated)}---|",
                *(
                    f"| {base.seed} | {' | '.join(f'{base.reached[each]:.3f}' for each in gated)}"
                    f" | {'yes' if base.takes_part else 'no'} |"
                    for base in self.bases
                ),
                "",
                "| model | target math | by base | English math |",
                "|---|---|---|---|",
                *(
                    f"| {_words(row)} | {_mean(self.scores, row, TARGET):.3f} | "
                    f"{' '.join(f'{one[row][TARGET].mean():.3f}' for one in self.scores)} | "
                    f"{_mean(self.scores, row, SOURCE):.3f} |"
                    for row in rows
                ),
                "",
                f"bases: {len(self.scores)}; pairs each: {pairs}; items: {items}; bases gated out: "
                f"{', '.join(out) or 'none'}. Target math, swap minus",
                *(
                    f"- {name}: {mean:+.3f} [{low:+.3f}, {high:+.3f}]"
                    for name, (mean, low, high) in self._gains(TARGET).items()
                ),
            )
        )

    def as_json(self) -> str:
        """Return all of it as JSON; differences only where a base takes part."""
        tasks = (TARGET, SOURCE)
        return json.dumps(
            {
                "gate": dict(GATE),
                "bases": [_base_document(base) for base in self.bases],
                "level": self.level,
                "resamples": self.resamples,
                "swap_minus": {task: self._gains(task) for task in tasks} if self.scores else {},
            },
            indent=2,
        )

    def _gains(self, task: str) -> dict[str, tuple[float, float, float]]:
        """Return the swap's difference to the best rival and to each row: mean, low, high."""
        found = {f"max({', '.join(map(_words, RIVALS))})": self.gain(task=task)}
        others = (row for row in self.scores[0] if row != "swap")
        return found | {_words(row): self.gain((row,), task) for row in others}


def _base_document(base: Base) -> dict[str, Any]:
    return {
        "seed": base.seed,
        "takes_part": base.takes_part,
        "reached": dict(base.reached),
        "items": len(next(iter(base.scores.values()))[TARGET][0]),
        "scores": {  # model -> task -> a score for each pair
            row: {task: values.mean(axis=1).tolist() for task, values in found.items()}
            for row, found in base.scores.items()
        },
    }


def _words(name: str) -> str:
    return name.removeprefix("pocket_").replace("_", " ")


def _mean(scores: Sequence[Scores], row: str, task: str) -> float:
    return float(np.mean([one[row][task].mean() for one in scores]))
