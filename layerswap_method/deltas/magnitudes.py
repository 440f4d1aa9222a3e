"""The mean absolute change of every row, the same bits whoever reads the weights. Knows no recipe.

A threshold among these values parts rows, so a value must not depend on who computes it: the pass
over files, mergekit's kernel, which holds whole tensors, or a machine with more threads. torch's
own sums depend on the shape of what they are given and on the threads. Here every addition is one
of two tensors, element by element, and their order is set by the tensor's shape alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

import torch

from layerswap_method.deltas.pair import DeltaPair, not_finite
from layerswap_method.deltas.passes import (
    Segment,
    blocks_of,
    lines_of_block,
    run_pass,
    runs_of,
    segments_of,
)
from layerswap_method.deltas.rows import RowLayout, row_layout
from layerswap_method.errors import InputError


def row_mav(expert: torch.Tensor, base: torch.Tensor, axis: int | None) -> torch.Tensor:
    """Return the MAV of every row of a tensor (`rows.RowLayout`'s order), flat, float32.

    ``MAV_i = mean_o |expert[o, i] - base[o, i]|``, the difference rounded to float32 once; source:
    arXiv 2410.01335, section 3.2.

    Args:
        expert: floating; not modified.
        base: of its shape; not modified.
        axis: what `rows.input_axis` says of the tensor.
    """
    layout = row_layout(expert.shape, axis)
    if not layout.columns:
        return _means([], layout)
    ours, theirs = (side.reshape(-1, layout.columns) for side in (expert, base))

    def deltas(start: int, stop: int) -> Iterator[torch.Tensor]:
        step = lines_of_block(layout.columns, start, stop)
        for first in range(start, stop, step):
            lines = slice(first, min(first + step, stop))
            yield _delta(ours[lines], theirs[lines])

    runs = runs_of(layout)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # to wake more costs more than so small a block takes
    try:
        return _means(((start, _sums(deltas(start, stop), layout)) for start, stop in runs), layout)
    finally:
        torch.set_num_threads(threads)


def row_mavs(pair: DeltaPair, names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and `row_mav` of tensors, read once in blocks, by all of torch's threads.

    An adapter's change is added in float32: of a copy that it was merged into, the values would
    be others.

    Raises:
        InputError: for files that are gone, cut short, or were written anew.
    """

    def sums(segment: Segment) -> torch.Tensor:
        return _sums((block.delta for block in blocks_of(pair, segment)), pair.layout(segment.name))

    parts: list[tuple[int, torch.Tensor]] = []
    with closing(run_pass((pair,), names, sums)) as results:
        for segment, found in results:
            parts.append((segment.start, found))
            layout = pair.layout(segment.name)
            if segment.stop == layout.matrices * layout.lines:
                yield segment.name, _means(parts, layout)
                parts = []
    for name in names:
        if not segments_of(pair, name):
            yield name, _means([], pair.layout(name))


def _sums(deltas: Iterable[torch.Tensor], layout: RowLayout) -> torch.Tensor:
    """Return the sum of |delta| of each row in a run of lines, float64; `deltas` are used up.

    In float32 by halves within a block, in float64 from block to block.
    """
    dim = 0 if layout.across else 1
    found = [_halved(delta.abs_(), dim).double() for delta in deltas]
    if not layout.across:
        return torch.cat(found)
    total = found[0]
    for part in found[1:]:
        total.add_(part)
    return total


def _halved(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the sum over one of two dimensions; `values` is used up."""
    while (count := values.shape[dim]) > 1:
        half = count // 2
        values.narrow(dim, 0, half).add_(values.narrow(dim, count - half, half))
        values = values.narrow(dim, 0, count - half)
    return values.select(dim, 0)


def _means(parts: Iterable[tuple[int, torch.Tensor]], layout: RowLayout) -> torch.Tensor:
    """Return the mean of every row from (first line, sums) of each run, in their order."""
    totals = torch.zeros(layout.features, dtype=torch.float64)
    for start, sums in parts:
        first = start // layout.lines * layout.columns if layout.across else start
        totals[first : first + len(sums)] += sums.cpu()
    return (totals / max(1, layout.width)).float()


def _delta(expert: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    if torch.float64 in (expert.dtype, base.dtype):
        return (expert.double() - base.double()).float()
    return expert.to(torch.float32, copy=True).sub_(base)


def mean_row_mav(
    pair: DeltaPair, progress: Callable[[Sequence[str]], Iterable[str]] = iter
) -> float:
    """Return the average MAV for all rows in all deltas of an expert (section 5.1).

    "The resulting weight of each expert is the inverse of the average MAV for all rows in all
    W_delta for that expert." Pooled are all rows (`layerswap_method.deltas.rows`) of all
    parameters, one- and two-dimensional, inside and outside the decoder layers, each row once
    whatever its length; buffers are left out, a tied embedding counts once. The sum runs in
    float64.

    Args:
        pair: the expert and its base.
        progress: yields the names it is given, and may count them for a bar.

    Raises:
        InputError: as `row_mavs`, or for weights that are not finite.
    """
    total, count = 0.0, 0

    def absolute(segment: Segment) -> float:
        # A tensor's rows are equally long, so the sum of their means is the sum of all its values
        # over the length of a row. `row_mavs` takes nearly twice the time.
        return math.fsum(float(block.delta.abs_().sum()) for block in blocks_of(pair, segment))

    with closing(run_pass((pair,), progress(pair.names), absolute)) as parts:
        for segment, values in parts:
            if not math.isfinite(values):
                raise not_finite(pair, segment.name)
            layout = pair.layout(segment.name)
            total += values / layout.width
            if segment.start == 0:
                count += layout.features
    if not count:
        raise InputError(f"{pair.expert} and {pair.base} hold no weights in common")
    return total / count
