"""Whether a checkpoint was trained from another one, from a few rows of their weights."""

from __future__ import annotations

from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.stored import FLOATS, read_rows
from layerswap_method.tensor_names import decoder_layer

_TENSORS, _ROWS = 5, 64
"""Number of matrices that are compared, spread over the depth, and of their rows that are read."""

SAME_ORIGIN = 0.5
"""From this cosine on, weights have a common origin: unrelated ones of thousands of values have
one near 0, and a fine-tuned model and its base one near 1."""


def weight_cosine(one: Checkpoint, other: Checkpoint) -> float | None:
    """Return the mean cosine of the same rows of both, in [-1, 1]; None where no matrix fits.

    Only matrices inside the layers are compared, since norms are alike in unrelated models, too.
    """
    import torch

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
    last = len(names) - 1
    chosen = dict.fromkeys(names[i * last // (_TENSORS - 1)] for i in range(_TENSORS))
    cosines = []
    for name in chosen:
        left, right = (
            read_rows(model.tensors[name], slice(0, _ROWS)).double().flatten()
            for model in (one, other)
        )
        cosines.append(torch.nn.functional.cosine_similarity(left, right, dim=0).item())
    return sum(cosines) / len(cosines)
