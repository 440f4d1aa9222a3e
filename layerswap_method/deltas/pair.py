"""An expert and its base, tensor by tensor: delta = expert - base. Knows files and adapters.

Not what is made of the deltas (profiles, weights, reverts). Only headers are read when a pair is
opened, and a small sample of the weights that tells whether the base is the base. Everything is
computed in float32 (float64 where a file holds that, then rounded). An adapter's change is added
in float32 and not rounded to the checkpoint's dtype: a merged bf16 copy would have lost much of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from layerswap_method.checkpoints.lora import LowRankChange
from layerswap_method.checkpoints.spans import read_rows, torch_dtype
from layerswap_method.checkpoints.stored import StoredTensor, stored_tensor
from layerswap_method.deltas.rows import RowLayout, input_axis, row_layout
from layerswap_method.errors import InputError


@dataclass(frozen=True)
class DeltaPair:
    """An expert and its base that hold the same tensors."""

    expert: str
    """For messages."""

    base: str
    """For messages."""

    model_type: str
    """Of the base's config, the text model's where there are several."""

    architecture: str
    """Class name in the base's config."""

    folder: Path
    """The base's checkpoint."""

    num_layers: int | None
    """Decoder layers; None where the config does not say."""

    names: tuple[str, ...]
    """Every weight that both hold, in the order of the base's files; buffers are left out."""

    expert_tensors: Mapping[str, StoredTensor]
    """Name -> place in the expert's checkpoint."""

    base_tensors: Mapping[str, StoredTensor]
    """Name -> place in the base."""

    changes: Mapping[str, LowRankChange]
    """Name -> what the expert's adapter adds; empty without one."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.base_tensors[name].shape

    def expert_dtype(self, name: str) -> torch.dtype | None:
        """Return the dtype that the expert was rounded to; None where an adapter is added."""
        if name in self.changes:
            return None
        return torch_dtype(self.expert_tensors[name].torch_name)

    def grid_dtype(self, name: str) -> torch.dtype | None:
        """Return the 16-bit dtype that the expert was rounded to; None for a wider one."""
        dtype = self.expert_dtype(name)
        return dtype if dtype in (torch.bfloat16, torch.float16) else None

    def axis(self, name: str) -> int | None:
        """Return the tensor's `input_axis`."""
        return input_axis(name, len(self.shape(name)), self.model_type)

    def layout(self, name: str) -> RowLayout:
        """Return how the tensor's rows run."""
        return row_layout(self.shape(name), self.axis(name))

    def change_factors(self, name: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return an adapter's change of a tensor as (left, right), float32; None for no change.

        ``left @ right`` is the change in the order of the file.
        """
        change = self.changes.get(name)
        if change is None:
            return None
        down, up = (
            read_rows(stored_tensor(change.file, change.stamp, key)).float()
            for key in (change.down, change.up)
        )
        up = up * change.scaling
        return (down.T, up.T.contiguous()) if change.transposed else (up, down)

    @cached_property
    def identity(self) -> object:
        """Return what tells the pair from every other: files with their dates, and their rows."""
        sides = (self.expert_tensors.values(), self.base_tensors.values())
        stored = (frozenset((each.file, each.stamp) for each in side) for side in sides)
        # Names and rows follow from the configs as well, and files may be links of several models.
        return (self.model_type, self.names, *stored, frozenset(self.changes.items()))


def not_finite(pair: DeltaPair, name: str) -> InputError:
    """Return the error for a tensor whose delta is not finite: whose fault it is and how much."""
    for side, tensor in ((pair.expert, pair.expert_tensors), (pair.base, pair.base_tensors)):
        values = read_rows(tensor[name])
        if bad := int((~torch.isfinite(values)).sum()):
            return InputError(
                f"{side}: {bad} of {values.numel()} values of {name} are NaN or infinite; the "
                "checkpoint is damaged or its training diverged"
            )
    if name in pair.changes:
        return InputError(f"{pair.expert}: the change of {name} is not finite; check its adapter")
    return InputError(
        f"{pair.expert}: {name} holds values whose squares leave float32's range; the checkpoint "
        "is damaged or its training diverged"
    )
