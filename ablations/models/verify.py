"""Two checkpoints that the user names, compared tensor by tensor."""

from __future__ import annotations

from ablations.machine.progress import byte_progress
from ablations.models.find import find_checkpoint
from layerswap_method.verify import Comparison, compare, weight_bytes


def verify_models(merged: str, published: str) -> Comparison:
    """Compare every tensor of two checkpoints, folders or hub ids, showing the progress.

    Raises:
        InputError: for a checkpoint that does not exist or cannot be read, or for an adapter.
    """
    first, second = find_checkpoint(merged), find_checkpoint(published)
    with byte_progress("comparing", weight_bytes(first)) as advance:
        return compare(first, second, advance)
