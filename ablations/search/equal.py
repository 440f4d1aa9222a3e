"""Which cells of a search have equal tensors, where their recipes do not say so.

An average of two experts is each of them where both are equal: of experts whose embeddings were not
trained, a swap of no layer is the task expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablations.machine.progress import track
from ablations.study.cells import PlannedCell
from layerswap_method.mix_reader import MixReader
from layerswap_method.tensors import Merge, TensorMix


def with_equal_keys(cells: Sequence[PlannedCell], merges: Mapping[str, Merge]) -> list[PlannedCell]:
    """Return cells of which those with equal tensors have the `weights_key` of the first.

    Of tensors that may differ the smallest are read first, up to the first value that differs.
    Merges that are measured or made by mergekit, are known by their recipes alone.

    Args:
        cells: with their keys, baselines first.
        merges: those of the plan by `weights_key`, whose weights are on this machine.
    """
    mixes = _Mixes()
    tensors = {key: mixes.numbers(merge.tensors) for key, merge in merges.items()}
    keyed: list[PlannedCell] = []
    for cell in track("comparing weights", cells, unit="cells"):
        earlier = [
            other
            for other in keyed
            if other.experts.items() <= cell.experts.items() and other.weights_key in tensors
        ]
        if (own := tensors.get(cell.weights_key)) is not None:
            key = next(
                (
                    other.weights_key
                    for other in earlier
                    if mixes.are_equal(tensors[other.weights_key], own)
                ),
                cell.weights_key,
            )
            cell = cell.model_copy(update={"weights_key": key})
        keyed.append(cell)
    return keyed


class _Mixes:
    """Tensors of merges by a number each, and which of them have equal content."""

    def __init__(self) -> None:
        self._numbers: dict[TensorMix, int] = {}
        self._equal: dict[tuple[int, int], bool] = {}

    def numbers(self, tensors: Mapping[str, TensorMix]) -> dict[str, int]:
        """Return name -> number of a model's tensors, the smallest first."""
        sized = sorted(tensors.items(), key=lambda item: item[1].terms[0].stored.nbytes)
        return {name: self._numbers.setdefault(mix, len(self._numbers)) for name, mix in sized}

    def are_equal(self, first: Mapping[str, int], second: Mapping[str, int]) -> bool:
        """Return whether two models have equal tensors, by their `numbers`."""
        return first.keys() == second.keys() and all(
            number == second[name] or self._is_equal(*sorted((number, second[name])))
            for name, number in first.items()
        )

    def _is_equal(self, first: int, second: int) -> bool:
        if (first, second) not in self._equal:
            mixes = [*self._numbers]
            self._equal[first, second] = _has_equal_content(mixes[first], mixes[second])
        return self._equal[first, second]


def _has_equal_content(first: TensorMix, second: TensorMix) -> bool:
    import torch

    one, two = MixReader(first), MixReader(second)
    if (one.shape, one.dtype) != (two.shape, two.dtype):
        return False
    blocks = zip(one.blocks(), two.blocks(), strict=True)
    return all(torch.equal(values, others) for (_, values), (_, others) in blocks)
