"""A low-rank change of one stored tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerswap_method.checkpoint.stored import StoredTensor, read_tensor
from layerswap_method.frozen import Frozen

if TYPE_CHECKING:
    import torch


class LowRankChange(Frozen):
    """A LoRA adapter's change of one tensor: ``scaling * (up @ down)``.

    `down` is ``lora_A`` (rank x inputs), `up` is ``lora_B`` (outputs x rank), `scaling` is alpha/r,
    or alpha/sqrt(r) with rank-stabilised LoRA. `transposed`: the tensor is stored inputs x outputs
    (embeddings, GPT-2's Conv1D). `module` is its name in a loaded model.
    """

    down: StoredTensor
    up: StoredTensor
    scaling: float
    transposed: bool
    module: str

    def read(self, dtype: torch.dtype, memory: torch.Tensor) -> torch.Tensor:
        """Return the whole change, computed in `dtype` as peft's ``merge_and_unload`` does.

        peft rounds that of an embedding to the base's dtype before it adds it; we do not. It is a
        view of `memory`, a flat tensor of that dtype.
        """
        import torch

        down, up = (read_tensor(factor).to(dtype) for factor in (self.down, self.up))
        change = torch.mm(up, down, out=memory.view(len(up), down.shape[1])).mul_(self.scaling)
        return change.T if self.transposed else change

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (left, right), float32: ``left @ right`` is the change in the file's order."""
        down, up = (read_tensor(factor).float() for factor in (self.down, self.up))
        up = up * self.scaling
        return (down.T, up.T.contiguous()) if self.transposed else (up, down)
