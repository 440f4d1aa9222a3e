"""Several models of one shape put into the coordinates of the first one, pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.tokens import read_vocabulary
from layerswap_method.harmonize.align import Neurons, align
from layerswap_method.harmonize.coordinates import fold_norms
from layerswap_method.harmonize.model import Model
from layerswap_method.harmonize.pairs import pair_tokens, read_text

_ROUNDED = ("F16", "BF16")


def align_to_first(
    models: Sequence[Model],
    checkpoints: Sequence[Checkpoint],
    *,
    neurons: Neurons,
    probe: Path | None,
    bar: Callable[[str, int], AbstractContextManager[Callable[[int], object]]],
) -> tuple[list[Model], list[Mapping[str, Any]], list[str]]:
    """Return the models in the first one's coordinates, a record of each, and lines for the log.

    The orders of neurons and heads are found here; the tensors are made when they are written.

    Args:
        models: of one shape.
        checkpoints: where they come from, in the same order.
        neurons: by what neurons are paired.
        probe: a text that both models of a pair read; None for random shared tokens.
        bar: shows the layers that are done.

    Raises:
        InputError: for models that share no tokens, or a text that is of no use.
    """
    text = None if probe is None else read_text(probe)
    tokens = [read_vocabulary(each.name, each.path) for each in checkpoints]
    first = fold_norms(models[0])
    done, lines = [first], []
    records: list[Mapping[str, Any]] = [{"align": "procrustes", "reference": True}]
    for model, known in zip(models[1:], tokens[1:], strict=True):
        pairs = pair_tokens((models[0], model), (tokens[0], known), text)
        lines.append(
            f"{model.name} aligned to {first.name}: a rotation fitted on {pairs.shared[0].numel()} "
            f"shared tokens, neurons by {neurons}; mean cosines after each step:"
        )
        if pairs.shared[0].numel() < model.shape.hidden:
            lines.append(
                f"  fewer shared tokens than the hidden size ({model.shape.hidden}): the rest of "
                "the rotation is arbitrary"
            )
        with bar(f"aligning {model.name}", model.shape.layers) as advance:
            aligned = align(models[0], model, pairs, neurons, advance)
        lines += [f"  {line}" for line in aligned.similarities.lines()]
        done.append(aligned.theirs)
        records.append({**aligned.record, "reference": first.name})
    if any(tensor.dtype in _ROUNDED for model in done for tensor in model.tensors.values()):
        lines.append(
            "the new weights are rounded to 16 bits once; --dtype float32 keeps the functions "
            "closer"
        )
    return done, records, lines
