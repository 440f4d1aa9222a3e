"""Whether a checkpoint was trained from another one. Reads a few rows of their weights."""

from __future__ import annotations

from layerswap_method.checkpoints.headers import Checkpoint
from layerswap_method.checkpoints.stored import FLOATS

_TENSORS = 5
"""Matrices that are compared, spread over the depth."""

_ROWS = 64
"""Rows of each that are read."""

RELATED = 0.5
"""From this cosine on, weights have a common origin: unrelated ones of thousands of values have
one near 0, and a fine-tuned model and its base one near 1."""


def likeness(one: Checkpoint, other: Checkpoint) -> float | None:
    """Return the mean cosine of the same rows of both, in [-1, 1]; None where no matrix fits.

    Only matrices inside the layers are compared, since norms are alike in unrelated models, too.

    Raises:
        InputError: if a file is gone, cut short, or was written anew.
    """
    import torch

    from layerswap_method.algorithm.tensor_names import decoder_layer
    from layerswap_method.checkpoints.spans import read_rows

    names = [
        name
        for name, tensor in one.tensors.items()
        if decoder_layer(name) is not None
        and len(tensor.shape) == 2
        and tensor.dtype in FLOATS
        and name in other.tensors
        and other.tensors[name].dtype in FLOATS
        and other.shapes[name] == tensor.shape
    ]
    if not names:
        return None
    chosen = dict.fromkeys(
        names[i * (len(names) - 1) // max(1, _TENSORS - 1)] for i in range(_TENSORS)
    )
    found = []
    for name in chosen:
        left, right = (
            read_rows(each.tensors[name], slice(0, _ROWS)).double().flatten()
            for each in (one, other)
        )
        found.append(torch.nn.functional.cosine_similarity(left, right, dim=0).item())
    return sum(found) / len(found)
