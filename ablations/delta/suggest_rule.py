"""From what two experts changed to a swap: the rule of `layerswap suggest`. Numbers only.

The paper chose its layers by eye, from heatmaps of one math and one language expert (arXiv
2410.01335, sections 3.2 and 3.3). This rule reads the same off numbers: which expert wins a layer
is decided as in arXiv 2601.22620 (`layerswap_method.layer_swap.delta_share`), and the runs at both
ends that the language expert wins are the swap.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from layerswap_method.algorithm.layer_lists import format_layers
from layerswap_method.algorithm.plan import Source
from layerswap_method.layer_swap.delta_share import THRESHOLD, choose_sources

MOST_TRANSITION = 2
"""Averaged layers proposed beside each run at most; the paper tries 0, 1 and 2 (section 4.1)."""


@dataclass(frozen=True)
class Suggestion:
    """A swap with ``placement: outer``, or why there is none to propose."""

    winners: tuple[Source, ...]
    """Who wins each layer; `average` is a tie within the threshold."""

    bottom_layers: int = 0
    """b."""

    top_layers: int = 0
    """u."""

    bottom_transition: int = 0
    """t_b."""

    top_transition: int = 0
    """t_u."""

    refusal: str | None = None
    """Why no swap is proposed; None where one is. The counts are 0 then."""

    remarks: tuple[str, ...] = ()
    """What the counts leave out of what the deltas say."""

    def counts(self) -> dict[str, int]:
        """Return the four counts under the names that a recipe gives them."""
        return {
            "bottom_layers": self.bottom_layers,
            "top_layers": self.top_layers,
            "bottom_transition": self.bottom_transition,
            "top_transition": self.top_transition,
        }


def suggest_swap(
    task_shares: Sequence[float],
    language_shares: Sequence[float],
    threshold: float = THRESHOLD,
    most_transition: int = MOST_TRANSITION,
) -> Suggestion:
    """Return the outer swap that the experts' shares of change point to.

    With the winner w(l) of layer l from `shares.choose_sources` (language where its share of the
    language expert's change exceeds the task expert's by more than tau, average within tau)::

        b   = the largest n with w(0) = ... = w(n-1) = language
        u   = the largest n with w(L-1) = ... = w(L-n) = language
        t_b = min(most_transition, the largest n with w(b) = ... = w(b+n-1) = average)
        t_u = min(most_transition, the largest n with w(L-u-1) = ... = w(L-u-n) = average)

    None is proposed (`refusal` says why) where the language expert wins neither end (b = u = 0),
    where the task expert wins no layer (there is no middle to keep), or where the shares say
    nothing at all (every layer within the threshold).

    Args:
        task_shares: of the task expert's change, one a layer from the embedding side on; sum to 1.
        language_shares: likewise of the language expert's.
        threshold: tau, 0 or more.
        most_transition: 0 or more.

    Raises:
        ValueError: for no layer, sides of different lengths, or a negative threshold or bound.
    """
    if not task_shares:
        raise ValueError("there is no layer to choose")
    if most_transition < 0:
        raise ValueError(f"most_transition is {most_transition}; it must be 0 or more")
    winners = choose_sources(task_shares, language_shares, threshold)
    bottom, top = _leading(winners, "language"), _leading(winners[::-1], "language")
    refusal = _refusal(winners, bottom, top, threshold)
    if refusal is not None:
        return Suggestion(winners, refusal=refusal)
    above = _leading(winners[bottom:], "average")
    below = _leading(winners[::-1][top:], "average")
    suggestion = Suggestion(
        winners,
        bottom_layers=bottom,
        top_layers=top,
        bottom_transition=min(above, most_transition),
        top_transition=min(below, most_transition),
    )
    return replace(suggestion, remarks=tuple(_remarks(suggestion)))


def _leading(winners: Sequence[Source], source: Source) -> int:
    """Return how many of the first layers `source` wins."""
    return sum(1 for _ in itertools.takewhile(lambda winner: winner == source, winners))


def _refusal(winners: Sequence[Source], bottom: int, top: int, threshold: float) -> str | None:
    wins = {
        source: [layer for layer, winner in enumerate(winners) if winner == source]
        for source in ("task", "language")
    }
    if not wins["task"] and not wins["language"]:
        return (
            f"no layer's shares differ by more than {threshold:g}: by their deltas the experts "
            "changed the same layers, and nothing tells where to swap"
        )
    if not wins["task"]:
        return (
            "the task expert wins no layer, so no middle is left to keep: this would be the "
            "language expert with averages, no swap"
        )
    if bottom == 0 and top == 0:
        inside = f"; it wins only layers {format_layers(wins['language'])}, inside"
        return (
            "the language expert wins neither the first nor the last layer, so there is no outer "
            f"run to swap{inside if wins['language'] else ', and no layer at all'}"
        )
    return None


def _remarks(suggestion: Suggestion) -> list[str]:
    """Return what the outer swap does otherwise than the winners of the single layers say."""
    winners, total = suggestion.winners, len(suggestion.winners)
    first = suggestion.bottom_layers + suggestion.bottom_transition
    last = total - suggestion.top_layers - suggestion.top_transition
    inside = {
        source: [layer for layer in range(first, last) if winners[layer] == source]
        for source in ("language", "average")
    }
    found = []
    if inside["language"]:
        found.append(
            f"the language expert also wins layers {format_layers(inside['language'])}, which lie "
            "inside and stay the task expert's; placement: delta_share would take them"
        )
    if inside["average"]:
        found.append(
            f"layers {format_layers(inside['average'])} are within the threshold and stay the task "
            "expert's"
        )
    task = winners.count("task")
    if 2 * (suggestion.bottom_layers + suggestion.top_layers) > total:
        found.append(
            f"{suggestion.bottom_layers + suggestion.top_layers} of {total} layers would be the "
            f"language expert's and {task} the task expert's; the paper swaps 7 of 32"
        )
    return found
