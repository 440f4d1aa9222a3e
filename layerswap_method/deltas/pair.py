"""An expert and its base, tensor by tensor, and how far fine-tuning moved the weights.

delta = expert - base. Only headers are read when a pair is opened, and a small sample of the
weights that tells whether the base is the base. Everything is computed in float32 (float64 where a
file holds that, then rounded). An adapter's change is added in float32 and not rounded to the
checkpoint's dtype: a merged bf16 copy would have lost much of it.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from layerswap_method.checkpoint.checkpoint import is_buffer, is_head
from layerswap_method.checkpoint.compatible import own_problems, pair_problems
from layerswap_method.checkpoint.low_rank import LowRankChange
from layerswap_method.checkpoint.origin import sampled_change, wrong_base
from layerswap_method.checkpoint.stored import FLOATS, StoredTensor, read_floats, row_blocks
from layerswap_method.checkpoint.tied_heads import ties
from layerswap_method.deltas.features import FeatureLayout, feature_layout, input_axis
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import Model
from layerswap_method.tensor_names import Decoder
from layerswap_method.tensors import OpenModel
from layerswap_method.threads import one_core_threads, usable_cores

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_CACHED = 32
"""Number of results that are cached, as a study measures the same changes with many thresholds and
weights. The largest, the features of an 8B model, take 5 MB."""


class DeltaBlock(NamedTuple):
    """Consecutive rows of a tensor, as [rows, columns] of its `FeatureLayout`.

    `first` is the number of the first row, counted through all matrices of the tensor. `base` is
    float32, or float64 where its file is. `delta` is expert minus base, float32, an adapter's
    change included; the caller may change it.
    """

    first: int
    base: npt.NDArray[Any]
    delta: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class DeltaPair:
    """An expert and its base that hold the same tensors.

    `expert` and `base` are their names; (text) `model_type`, `architecture`, `folder` and
    `decoder` are the base's. `names` are the weights that both hold, in the order of the base's
    files, without buffers; `changes` are what the expert's adapter adds, by name.
    """

    expert: str
    base: str
    model_type: str
    architecture: str
    folder: Path
    decoder: Decoder
    names: tuple[str, ...]
    expert_tensors: Mapping[str, StoredTensor]
    base_tensors: Mapping[str, StoredTensor]
    changes: Mapping[str, LowRankChange]

    def axis(self, name: str) -> int | None:
        """Return the tensor's `input_axis`."""
        return input_axis(name, len(self.base_tensors[name].shape), self.model_type)

    def layout(self, name: str) -> FeatureLayout:
        """Return how the tensor's features run."""
        return feature_layout(self.base_tensors[name].shape, self.axis(name))

    @cached_property
    def identity(self) -> object:
        """Identity of the pair: files with their states, and their rows."""
        sides = (self.expert_tensors.values(), self.base_tensors.values())
        stored = (frozenset((stored.file, stored.stamp) for stored in side) for side in sides)
        # Names and rows follow from the configs as well, and files may be links of several models.
        return (self.model_type, self.names, *stored, frozenset(self.changes.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeltaPair) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def read_pair(expert: Model, base: Model, *, is_its_base: bool = False) -> DeltaPair:
    """Open an expert and its base, and return them as `open_pair` does."""
    return open_pair(OpenModel.read(expert), OpenModel.read(base), is_its_base=is_its_base)


def open_pair(expert: OpenModel, base: OpenModel, *, is_its_base: bool = False) -> DeltaPair:
    """Return an expert (a checkpoint, or an adapter on one) and its base, a checkpoint.

    `is_its_base`: the expert is known to be trained from it, however far it is. Raises `InputError`
    with every problem of the first kind found, and for another model's base.
    """
    if base.adapter is not None:
        raise InputError(f"{base.name}: the base has an adapter; merge it into a folder first")
    expert_checkpoint, base_checkpoint = expert.checkpoint, base.checkpoint
    problems = [*own_problems(base_checkpoint), *own_problems(expert_checkpoint)]
    problems += pair_problems(base_checkpoint, expert_checkpoint, is_revert=True)
    InputError.raise_any("delta", problems)
    # The copy that an adapter is merged into is saved without a tied output embedding.
    without_head = expert.adapter is not None and ties(expert_checkpoint, base_checkpoint)
    pair = DeltaPair(
        expert=expert.name,
        base=base.name,
        folder=base_checkpoint.path,
        model_type=base_checkpoint.config.text_type,
        architecture=base_checkpoint.config.architecture,
        decoder=base_checkpoint.decoder,
        names=tuple(
            name
            for name, tensor in base_checkpoint.tensors.items()
            if name in expert_checkpoint.tensors
            and not is_buffer(name)
            and not (without_head and is_head(name))
            and tensor.dtype in FLOATS
        ),
        expert_tensors=expert_checkpoint.tensors,
        base_tensors=base_checkpoint.tensors,
        changes=expert.changes,
    )
    if not is_its_base:
        change = sampled_change(expert_checkpoint.tensors, base_checkpoint.tensors, expert.changes)
        if (problem := wrong_base(pair.expert, pair.base, change)) is not None:
            raise InputError(problem)
    return pair


def read_deltas(pair: DeltaPair, name: str, values: int | None = None) -> Iterator[DeltaBlock]:
    """Yield the blocks of one tensor, never of two of its matrices at once.

    It ends after about so many `values`; None reads the whole tensor.
    """
    layout = pair.layout(name)
    shape = (layout.matrices * layout.rows, layout.columns)
    expert_tensor = replace(pair.expert_tensors[name], shape=shape)
    base_tensor = replace(pair.base_tensors[name], shape=shape)
    change = pair.changes.get(name)
    factors = None if change is None else change.factors()
    stop = shape[0] if values is None else min(shape[0], values // max(1, layout.columns) + 1)
    for start in range(0, stop, max(1, layout.rows)):
        for block in row_blocks(shape, slice(start, min(start + layout.rows, stop))):
            expert, base = read_floats(expert_tensor, block), read_floats(base_tensor, block)
            with np.errstate(all="ignore"):  # the caller finds values that are not finite
                delta = (expert - base).astype(np.float32, copy=False)
            if factors is not None:
                import torch

                torch.from_numpy(delta).addmm_(factors[0][block], factors[1])
            yield DeltaBlock(block.start, base, delta)


def sum_squares(lines: npt.NDArray[Any]) -> float:
    """Return the sum of squares: of a row in its dtype, over the rows in float64."""
    return float(np.einsum("ij,ij->i", lines, lines).sum(dtype=np.float64))


def not_finite(pair: DeltaPair, name: str) -> InputError:
    """Return the error for a tensor whose delta is not finite: in which checkpoint, how much."""
    for model, tensors in (
        (pair.expert, pair.expert_tensors),
        (pair.base, pair.base_tensors),
    ):
        stored = tensors[name]
        count = sum(
            np.count_nonzero(~np.isfinite(read_floats(stored, block)))
            for block in row_blocks(stored.shape)
        )
        if count:
            return InputError(
                f"{model}: {count} of {math.prod(stored.shape)} values of {name} are NaN or "
                "infinite; the checkpoint is damaged or its training diverged"
            )
    return InputError(
        f"{pair.expert}: the change of {name} leaves float32's range; it is damaged or its "
        "training diverged"
    )


def for_each_tensor(
    names: Iterable[str], compute: Callable[[str], T], *, uses_torch: bool = True
) -> Iterator[tuple[str, T]]:
    """Yield every name with what `compute` makes of it in a thread, in order.

    As many tensors are worked on at a time as torch uses threads, and each of them has one; where
    `compute` does not use it, as many as there are cores, at most 8: what one disk can feed.
    """
    waiting: deque[tuple[str, Future[T]]] = deque()
    if uses_torch:
        import torch

        threads = torch.get_num_threads()
        pool = one_core_threads(threads)
    else:
        threads = min(8, usable_cores())
        pool = ThreadPoolExecutor(threads)
    try:
        for name in names:
            waiting.append((name, pool.submit(compute, name)))
            if len(waiting) > threads:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def feature_mav(pair: DeltaPair, name: str) -> torch.Tensor:
    """Return the mean absolute change of every feature of a tensor, flat, float32.

    ``MAV_i = mean_o |expert[o, i] - base[o, i]|`` (arXiv 2410.01335, section 3.2), in the order of
    `features.FeatureLayout`; summed in float32 in a block of rows and in float64 between blocks.
    """
    import torch

    layout = pair.layout(name)
    totals = torch.zeros(layout.features, dtype=torch.float64)
    for block in read_deltas(pair, name):
        sums = torch.from_numpy(block.delta).abs_().sum(0 if layout.across else 1)
        first = block.first // layout.rows * layout.columns if layout.across else block.first
        totals[first : first + len(sums)] += sums
    return (totals / max(1, layout.width)).float()


@functools.lru_cache(_CACHED)
def feature_mavs(pair: DeltaPair) -> Mapping[str, torch.Tensor]:
    """Return tensor -> `feature_mav`; both checkpoints are read once in a process.

    Raises `InputError` for a change that is not finite.
    """
    mavs = dict(for_each_tensor(pair.names, lambda name: feature_mav(pair, name)))
    for name, mav in mavs.items():
        if not bool(mav.isfinite().all()):
            raise not_finite(pair, name)
    return mavs


def mean_feature_mav(pair: DeltaPair) -> float:
    """Return the average MAV for all features in all deltas of an expert (section 5.1).

    Pooled are all features (the paper's rows) of all parameters, inside and outside the decoder
    layers, each one once whatever its length; a tied embedding counts once.
    """
    mavs = feature_mavs(pair).values()
    if not (count := sum(mav.numel() for mav in mavs)):
        raise InputError(f"{pair.expert} and {pair.base} hold no weights in common")
    return math.fsum(float(mav.double().sum()) for mav in mavs) / count


def _has_finite_delta(pair: DeltaPair, name: str) -> bool:
    return all(bool(np.isfinite(block.delta).all()) for block in read_deltas(pair, name))


@functools.lru_cache(_CACHED)
def relative_norms(
    experts: tuple[tuple[DeltaPair, float], ...], names: tuple[str, ...]
) -> Mapping[str, float]:
    """Return tensor -> ``||sum_i(share_i W_delta_i)|| / ||W_base||``, Frobenius, in float64.

    `experts` are of one base, with their shares of a soup. A tensor that is all zero in the base
    counts with the norm of its change.
    """
    import torch

    def squares(name: str) -> tuple[float, float]:
        change = weight = 0.0
        for blocks in zip(*(read_deltas(pair, name) for pair, _ in experts), strict=True):
            shares = zip(blocks, (share for _, share in experts), strict=True)
            delta = sum(torch.from_numpy(block.delta).double() * share for block, share in shares)
            change += float(torch.as_tensor(delta).square().sum())
            weight += float(torch.from_numpy(blocks[0].base).double().square().sum())
        if not math.isfinite(change + weight):
            pairs = (pair for pair, _ in experts if not _has_finite_delta(pair, name))
            raise not_finite(next(pairs, experts[0][0]), name)
        return change, weight

    return {
        name: math.sqrt(change) / (math.sqrt(weight) if weight > 0 else 1.0)
        for name, (change, weight) in for_each_tensor(names, squares)
    }
