"""How alike the deltas of several experts are. Knows what one pass found of all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ablations.delta.grids import pearson
from ablations.delta.measure import Change, cosine, matrices_of
from ablations.delta.parameters import places_of
from layerswap_method.frozen import Frozen


class PairComparison(Frozen):
    """The deltas of two experts of one base."""

    first: str
    """An expert."""

    second: str
    """Another."""

    cosine: float | None
    """Cosine between the two deltas, all weights as one vector: what souping the two meets. 1 is
    the same direction, 0 none in common, below 0 they undo each other; None without a change."""

    correlation: float | None
    """Pearson's correlation of the MAVs of all rows of the layers' matrices."""

    layer_cosine: tuple[float | None, ...]
    """Per layer, layer 0 first: all parameters of the layer as one vector."""

    layer_correlation: tuple[float | None, ...]
    """Per layer: over the rows of its matrices; None where one expert changed none of them or
    all alike."""


class Comparison(Frozen):
    """Several experts of one base."""

    schema_version: int = 1
    """Of this format."""

    base: str
    """As it was given."""

    experts: tuple[str, ...]
    """Their names in the figures."""

    pairs: tuple[PairComparison, ...]
    """Every two of them."""


def compare(changes: Sequence[Change], labels: Sequence[str], num_layers: int) -> Comparison:
    """Return how alike every two of the experts are.

    Args:
        changes: of one pass (`read_changes`), two or more.
        labels: their names in the figures.
        num_layers: decoder layers of the base.
    """
    places = places_of(list(changes[0].sums))
    matrices = matrices_of(changes[0].pair, places)
    return Comparison(
        base=changes[0].pair.base,
        experts=tuple(labels),
        pairs=tuple(
            _pair(one, other, (name, second), places, matrices, num_layers)
            for (one, name), (other, second) in itertools.combinations(
                zip(changes, labels, strict=True), 2
            )
        ),
    )


def _pair(
    one: Change,
    other: Change,
    labels: tuple[str, str],
    places: Mapping[str, tuple[int | None, str]],
    matrices: Sequence[str],
    num_layers: int,
) -> PairComparison:
    by_layer: list[list[str]] = [[] for _ in range(num_layers)]
    for name, (layer, _) in places.items():
        if layer is not None and layer < num_layers:
            by_layer[layer].append(name)
    shown = frozenset(matrices)
    return PairComparison(
        first=labels[0],
        second=labels[1],
        cosine=_cosine(one, other, list(places)),
        correlation=_correlation(one, other, matrices),
        layer_cosine=tuple(_cosine(one, other, names) for names in by_layer),
        layer_correlation=tuple(
            _correlation(one, other, [name for name in names if name in shown])
            for names in by_layer
        ),
    )


def _cosine(one: Change, other: Change, names: Sequence[str]) -> float | None:
    i, j = one.number, other.number
    grams = [one.sums[name].gram for name in names]
    product, first, second = (
        math.fsum(gram[k] for gram in grams) for k in ((i, j), (i, i), (j, j))
    )
    return cosine(product, first, second)


def _correlation(one: Change, other: Change, names: Sequence[str]) -> float | None:
    if not names:
        return None
    rows = [np.concatenate([change.rows[name] for name in names]) for change in (one, other)]
    found = pearson(rows[0], rows[1])
    return None if math.isnan(found) else found
