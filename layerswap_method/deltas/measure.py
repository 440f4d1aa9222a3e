"""How far fine-tuning moved the weights: one loop over the tensors of an expert and its base."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from layerswap_method.deltas.pair import DeltaPair, not_finite, read_deltas
from layerswap_method.errors import InputError

T = TypeVar("T")
NameProgress = Callable[[Sequence[str]], Iterable[str]]
"""Yields the names it is given, and may count them for a bar."""

_CACHED = 32
"""Number of results that are cached. The largest, the features of an 8B model, take 5 MB."""

_cache: dict[Hashable, Any] = {}


def cached(key: Hashable, compute: Callable[[], T]) -> T:
    """Return the result under `key`, computed where it is not cached; the oldest one used goes.

    A study measures the same changes with many thresholds and weights, and each pass reads two
    whole checkpoints. The key has the name of what is measured and all that it depends on.
    """
    result: T = _cache.pop(key) if key in _cache else compute()
    _cache[key] = result
    while len(_cache) > _CACHED:
        del _cache[next(iter(_cache))]
    return result


def for_each_tensor(names: Iterable[str], compute: Callable[[str], T]) -> Iterator[tuple[str, T]]:
    """Yield every name with what `compute` makes of it in a thread, in order.

    As many tensors are worked on at a time as torch uses threads; each of them has one.
    """
    threads = torch.get_num_threads()
    waiting: deque[tuple[str, Future[T]]] = deque()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for name in names:
            waiting.append((name, pool.submit(compute, name)))
            if len(waiting) > threads:
                done, result = waiting.popleft()
                yield done, result.result()
        while waiting:
            done, result = waiting.popleft()
            yield done, result.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # new threads take over what the last one to set it said


def feature_mav(pair: DeltaPair, name: str) -> torch.Tensor:
    """Return the mean absolute change of every feature of a tensor, flat, float32.

    ``MAV_i = mean_o |expert[o, i] - base[o, i]|`` (arXiv 2410.01335, section 3.2), in the order of
    `features.FeatureLayout`; summed in float32 in a block of rows and in float64 between blocks.
    """
    layout = pair.layout(name)
    totals = torch.zeros(layout.features, dtype=torch.float64)
    for block in read_deltas(pair, name):
        sums = block.delta.abs_().sum(0 if layout.across else 1)
        first = block.first // layout.rows * layout.columns if layout.across else block.first
        totals[first : first + len(sums)] += sums
    return (totals / max(1, layout.width)).float()


def feature_mavs(pair: DeltaPair) -> Mapping[str, torch.Tensor]:
    """Return tensor -> `feature_mav`; both checkpoints are read once in a process."""

    def compute() -> dict[str, torch.Tensor]:
        return dict(for_each_tensor(pair.names, lambda name: feature_mav(pair, name)))

    return cached(("features", pair.identity), compute)


def mean_feature_mav(pair: DeltaPair, progress: NameProgress = iter) -> float:
    """Return the average MAV for all features in all deltas of an expert (section 5.1).

    "The resulting weight of each expert is the inverse of the average MAV for all rows in all
    W_delta for that expert." Pooled are all features (the paper's rows) of all parameters, one-
    and two-dimensional, inside and outside the decoder layers, each one once whatever its length;
    buffers are left out, a tied embedding counts once.
    """

    def compute() -> float:
        total, count = 0.0, 0
        sums = for_each_tensor(progress(pair.names), lambda name: _absolute_sum(pair, name))
        for name, absolute in sums:
            # A tensor's features are equally long, so the sum of their means is that of all its
            # values over that length.
            layout = pair.layout(name)
            total += absolute / max(1, layout.width)
            count += layout.features
        if not count:
            raise InputError(f"{pair.expert} and {pair.base} hold no weights in common")
        return total / count

    return cached(("mean change", pair.identity), compute)


def relative_norms(
    experts: Sequence[tuple[DeltaPair, float]], names: Sequence[str], progress: NameProgress = iter
) -> dict[str, float]:
    """Return tensor -> ``||sum_i(share_i W_delta_i)|| / ||W_base||``, Frobenius, in float64.

    `experts` are of one base, with their shares of a soup. A tensor that is all zero in the base
    counts with the norm of its change.
    """

    def squares(name: str) -> tuple[float, float]:
        change = weight = 0.0
        for blocks in zip(*(read_deltas(pair, name) for pair, _ in experts), strict=True):
            shares = zip(blocks, (share for _, share in experts), strict=True)
            delta = sum(block.delta.double() * share for block, share in shares)
            change += float(torch.as_tensor(delta).square().sum())
            weight += float(blocks[0].base.double().square().sum())
        if not math.isfinite(change + weight):
            for pair, _ in experts:
                _absolute_sum(pair, name)
            raise not_finite(experts[0][0], name)
        return change, weight

    def compute() -> dict[str, float]:
        return {
            name: math.sqrt(change) / (math.sqrt(weight) if weight > 0 else 1.0)
            for name, (change, weight) in for_each_tensor(progress(names), squares)
        }

    identities = tuple((pair.identity, share) for pair, share in experts)
    return cached(("norms", tuple(names), identities), compute)


def _absolute_sum(pair: DeltaPair, name: str) -> float:
    total = math.fsum(float(block.delta.abs_().sum()) for block in read_deltas(pair, name))
    if not math.isfinite(total):
        raise not_finite(pair, name)
    return total
