"""From what two experts changed to a swap: the rule of `layerswap suggest`. Numbers only.

The paper chose its layers by eye, from heatmaps of one math and one language expert (arXiv
2410.01335, sections 3.2 and 3.3). This rule reads the same off numbers: which expert wins a layer
is decided as in arXiv 2601.22620 (`layerswap_method.methods.delta_share`), and the runs at both
ends that the language expert wins are the swap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layerswap_method.layer_lists import format_layers
from layerswap_method.methods.delta_share import THRESHOLD, choose_sources
from layerswap_method.plan import Source

MOST_TRANSITION = 2
"""Averaged layers proposed beside each run at most; the paper tries 0, 1 and 2 (section 4.1)."""


@dataclass(frozen=True)
class Suggestion:
    """A swap with ``placement: outer``, or why there is none to propose."""

    winners: tuple[Source, ...]
    """Who wins each layer; `average` is a tie within the threshold."""

    counts: dict[str, int]
    """b, u, t_b and t_u under the names that a recipe gives them; 0 where none is proposed."""

    refusal: str | None = None
    """Why no swap is proposed; None where one is."""

    remarks: tuple[str, ...] = ()
    """What the counts leave out of what the deltas say."""


def suggest_swap(
    task_shares: Sequence[float],
    language_shares: Sequence[float],
    threshold: float = THRESHOLD,
) -> Suggestion:
    """Return the outer swap that the experts' shares of change point to.

    With the winner w(l) of layer l from `shares.choose_sources` (language where its share of the
    language expert's change exceeds the task expert's by more than tau, average within tau)::

        b   = the largest n with w(0) = ... = w(n-1) = language
        u   = the largest n with w(L-1) = ... = w(L-n) = language
        t_b = min(2, the largest n with w(b) = ... = w(b+n-1) = average)
        t_u = min(2, the largest n with w(L-u-1) = ... = w(L-u-n) = average)

    None is proposed (`refusal` says why) where the language expert wins neither end (b = u = 0),
    where the task expert wins no layer (there is no middle to keep), or where the shares say
    nothing at all (every layer within the threshold).

    Args:
        task_shares: of the task expert's change, one a layer from the embedding side on; sum to 1.
        language_shares: likewise of the language expert's.
        threshold: tau, 0 or more.

    Raises:
        ValueError: for sides of different lengths, or a negative threshold.
    """
    winners = choose_sources(task_shares, language_shares, threshold)
    turned = winners[::-1]
    bottom, top = (_leading(side, "language") for side in (winners, turned))
    names = ("bottom_layers", "top_layers", "bottom_transition", "top_transition")
    refusal = _refusal(winners, bottom, top, threshold)
    if refusal is not None:
        return Suggestion(winners, dict.fromkeys(names, 0), refusal)
    transitions = (
        min(MOST_TRANSITION, _leading(side[count:], "average"))
        for side, count in ((winners, bottom), (turned, top))
    )
    counts = dict(zip(names, (bottom, top, *transitions), strict=True))
    return Suggestion(winners, counts, remarks=tuple(_remarks(winners, *counts.values())))


def _leading(winners: Sequence[Source], source: Source) -> int:
    """Return how many of the first layers `source` wins."""
    return sum(1 for _ in itertools.takewhile(lambda winner: winner == source, winners))


def _won(winners: Sequence[Source], source: Source, start: int = 0, stop: int | None = None) -> str:
    """Return the layers from `start` to `stop` that `source` wins, in words; "" for none."""
    layers = range(len(winners))[start:stop]
    return format_layers([layer for layer in layers if winners[layer] == source])


def _layers(listed: str) -> str:
    return f"layer {listed}" if listed.isdigit() else f"layers {listed}"


def _refusal(winners: Sequence[Source], bottom: int, top: int, threshold: float) -> str | None:
    language = _won(winners, "language")
    if "task" not in winners and not language:
        return (
            f"no layer's shares differ by more than {threshold:g}: the experts changed the same "
            "layers, so their changes do not say which layers to swap"
        )
    if "task" not in winners:
        return (
            "the task expert wins no layer, so there is no middle to keep: the result would be the "
            "language expert with averaged layers"
        )
    if bottom == 0 and top == 0:
        inside = f"; it wins only layers {language}, inside"
        return (
            "the language expert wins neither the first nor the last layer, so there are no outer "
            f"run to swap{inside if language else ', and no layer at all'}"
        )
    return None


def _remarks(
    winners: Sequence[Source], bottom: int, top: int, above: int, below: int
) -> Iterator[str]:
    """Yield what the outer swap does otherwise than the winners of the single layers say."""
    total = len(winners)
    middle = bottom + above, total - top - below
    if language := _won(winners, "language", *middle):
        yield (
            f"the language expert also wins {_layers(language)} in the middle, which the proposal "
            "leaves to the task expert; placement: delta_share would take them"
        )
    if average := _won(winners, "average", *middle):
        yield (
            f"neither expert wins {_layers(average)} (within the threshold), which the proposal "
            "leaves to the task expert"
        )
    if 2 * (bottom + top) > total:
        yield (
            f"{bottom + top} of {total} layers would be the language expert's and "
            f"{winners.count('task')} the task expert's; the paper swaps 7 of 32"
        )
