"""The bytes of a tensor: stored, or computed in numpy or in torch. Not where the bytes go."""

from __future__ import annotations

import os
from collections.abc import Iterator

from layerswap_method.checkpoints.stored import StoredTensor, open_stored
from layerswap_method.errors import InputError
from layerswap_method.stream.mix import TensorMix

CPU = "cpu"
"""Where tensors are computed unless the user asks for a GPU."""

_PIECE = 1 << 20
"""Bytes of a stored tensor that are read at a time."""


def stored_bytes(tensor: StoredTensor) -> Iterator[memoryview]:
    """Yield the bytes of a stored tensor, piece by piece; each is good until the next one.

    Raises:
        InputError: if the file is gone, cut short, or was written anew.
    """
    with open_stored(tensor) as opened:
        for done in range(0, tensor.nbytes, _PIECE):
            size = min(_PIECE, tensor.nbytes - done)
            piece = os.pread(opened.fileno(), size, tensor.offset + done)
            if len(piece) != size:
                raise InputError(f"{tensor.file}: is incomplete; download or copy it again")
            yield memoryview(piece)


def check_device(device: str) -> None:
    """Check that tensors can be computed on a device.

    Raises:
        InputError: where torch has no such device.
    """
    if device == CPU:
        return
    import torch

    if not torch.cuda.is_available():
        built = "sees none" if torch.version.cuda or torch.version.hip else "was built without GPUs"
        raise InputError(
            f"device {device}: there is no GPU here that torch can use (torch {torch.__version__} "
            f"{built}); leave it out, and the merge is computed on the processor"
        )


def form(mix: TensorMix) -> tuple[str, tuple[int, ...]]:
    """Return the torch dtype and the shape of a mix; reads no tensor.

    Raises:
        InputError: if a file is gone, or was written anew since the mix was made.
        LayerSwapError: if a tensor is not in its file.
    """
    from layerswap_method.stream.numpy_read import NeedsTorchError, NumpyReader

    try:
        reader = NumpyReader(mix)
        return reader.dtype, reader.shape
    except NeedsTorchError:
        from layerswap_method.stream.read import MixReader

        by_torch = MixReader(mix)
        return str(by_torch.dtype).removeprefix("torch."), tuple(by_torch.shape)


def pieces(mix: TensorMix, device: str = CPU) -> Iterator[memoryview]:
    """Yield the bytes of a mix, block by block; each is good until the next one.

    Args:
        mix: the content.
        device: where torch computes. On "cpu" numpy does where the bits are the same.

    Raises:
        InputError: if an input is gone, cut short, or was written anew.
        LayerSwapError: if a tensor is not in its file.
    """
    from layerswap_method.stream.numpy_read import NeedsTorchError, NumpyReader

    if device == CPU:
        try:
            yield from NumpyReader(mix).pieces()
            return
        except NeedsTorchError:
            pass
    from layerswap_method.stream.read import MixReader, as_bytes

    for _, block in MixReader(mix, device).blocks():
        yield as_bytes(block)
