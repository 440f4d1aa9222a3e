"""Which coordinates bring one model's matrices closest to another's. Knows matrices only.

A basis of the residual stream is fitted on embeddings. Any order of an MLP's neurons, of the groups
of heads that share a key head, and of the heads in a group computes the same; the order is chosen
by similarity (for neurons: git re-basin, arXiv 2209.04836, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_ROWS = 8192
"""Rows that are multiplied at a time."""


def fit_rotation(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the orthogonal Q that makes ``|source @ Q - target|`` smallest, float64.

    It is ``U @ Vt`` of the singular value decomposition of ``source.T @ target`` (orthogonal
    Procrustes problem, Schönemann 1966, doi 10.1007/BF02289451). Directions in which no row stands
    are mapped on each other in some orthogonal way.

    Args:
        source: [rows, hidden], such as embeddings of tokens.
        target: [rows, hidden], of the same tokens in the other model.
    """
    product = torch.zeros(source.shape[1], target.shape[1], dtype=torch.float64)
    for start in range(0, len(source), _ROWS):
        rows = slice(start, start + _ROWS)
        product += source[rows].double().T @ target[rows].double()
    left, _, right = torch.linalg.svd(product)
    rotation: torch.Tensor = left @ right
    return rotation


def best_order(similarity: torch.Tensor) -> torch.Tensor:
    """Return for each of our units the unit of theirs that it is paired with.

    The pairs have the largest sum of similarities (linear assignment).

    Args:
        similarity: [ours, theirs], square.
    """
    if len(similarity) == 1:
        return torch.zeros(1, dtype=torch.long)
    from scipy.optimize import linear_sum_assignment

    _, columns = linear_sum_assignment(similarity.cpu().numpy(), maximize=True)
    return torch.from_numpy(columns.copy()).long()


def unit_cosines(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the cosine of every row of `ours` with every row of `theirs`; 0 where one is zero.

    Args:
        ours: [units, features].
        theirs: [units, features].
    """
    return _unit_rows(ours) @ _unit_rows(theirs).T


def correlations(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the correlation over tokens of every neuron with every neuron; 0 for constant ones.

    Args:
        ours: [tokens, neurons], what the neurons gave.
        theirs: [tokens, neurons], on the same tokens.
    """
    return unit_cosines((ours - ours.mean(0)).T, (theirs - theirs.mean(0)).T)


def neuron_similarity(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the cosines of two layers' neurons, [neurons, neurons].

    Args:
        ours: gate, up: [neurons, hidden]; down: [hidden, neurons].
        theirs: the same of the other model, in the same basis of the residual stream.
    """
    pairs = [*zip(ours[:2], theirs[:2], strict=True), (ours[2].T, theirs[2].T)]
    total = unit_cosines(*pairs[0])
    for one, other in pairs[1:]:
        total += unit_cosines(one, other)
    return total


def match_heads(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], heads: int, kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the orders of their query heads and of their key heads that are most like ours.

    Heads are paired within groups for every pair of groups, then groups by what that gave.

    Args:
        ours: q: [heads * head_dim, hidden]; k, v: [kv_heads * head_dim, hidden]; o: [hidden,
            heads * head_dim].
        theirs: the same of the other model, in the same basis of the residual stream.
        heads: query heads.
        kv_heads: key heads; each serves ``heads / kv_heads`` query heads that stand together.
    """
    counts = (heads, kv_heads, kv_heads, heads)
    q, k, v, o = (
        unit_cosines(one.reshape(count, -1), other.reshape(count, -1))
        for one, other, count in zip(_as_rows(ours), _as_rows(theirs), counts, strict=True)
    )
    size = heads // kv_heads
    within = (q + o).view(kv_heads, size, kv_heads, size).transpose(1, 2)
    orders = [[best_order(pair) for pair in row] for row in within]
    groups = k + v
    for one, row in enumerate(orders):
        for other, order in enumerate(row):
            groups[one, other] += within[one, other][torch.arange(size), order].sum()
    kv_order = best_order(groups)
    chosen = [other * size + orders[one][other] for one, other in enumerate(kv_order.tolist())]
    return torch.cat(chosen), kv_order


def _unit_rows(rows: torch.Tensor) -> torch.Tensor:
    norms = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(norms == 0, 1.0, norms)


def _as_rows(weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return q, k, v and o with the features of the heads as rows."""
    q, k, v, o = weights
    return q, k, v, o.T
