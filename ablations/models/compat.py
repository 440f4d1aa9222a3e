"""What of several models matches, as a table, and whether they were trained from a base."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablations.drawing.text_table import text_table
from ablations.models.find import find_checkpoint
from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.compatible import merge_problems
from layerswap_method.checkpoint.differences import Row, differences, obstacles
from layerswap_method.checkpoint.stored import FLOATS, read_rows
from layerswap_method.errors import InputError
from layerswap_method.tensor_names import decoder_layer

_TENSORS, _ROWS = 5, 64
"""Number of matrices that are compared, spread over the depth, and of their rows that are read."""

SAME_ORIGIN = 0.5
"""From this cosine on, weights have a common origin: unrelated ones of thousands of values have
one near 0, and a fine-tuned model and its base one near 1."""


@dataclass(frozen=True)
class Compatibility:
    """What is known of several models."""

    names: tuple[str, ...]
    """The models, as the user wrote them."""

    rows: tuple[Row, ...]
    """Every field, compared."""

    problems: tuple[str, ...]
    """Why a merge method refuses them as they are; empty where it takes them."""

    base: str | None = None
    """What they may descend from."""

    cosines: tuple[float | None, ...] = ()
    """For each model, how alike its weights are to the base's; None where no shape fits."""

    def table(self) -> str:
        """Return the rows as text: field, models, what to do; and a last line that sums up."""
        rows = [line for row in self.rows for line in _lines(row)]
        if self.base is not None:
            rows.append([f"descends from {self.base}", *map(_descends, self.cosines), "-"])
        head = ["", *self.names, "what can be done"]
        return f"{text_table(head, rows, sides='l' * len(head))}\n\n{self.verdict()}"

    def verdict(self) -> str:
        """Return what to do with the models, in one sentence."""
        if not self.problems:
            differing = [row.field for row in self.rows if not row.same]
            more = f" They differ in {', '.join(differing)}." if differing else ""
            how = "as they are"
            if "tokens" in differing:
                how = "with the tokenizer of base_model, if the merge's log names no other"
            return f"The merge methods take these models {how}.{more}"
        blocked = [row.field for row in obstacles(self.rows)]
        if blocked:
            return f"These models cannot be merged: nothing reconciles {', '.join(blocked)}."
        sized = [row for row in self.rows if row.remedy in ("harmonize", "force")]
        if not sized:
            needs = [row.field for row in self.rows if "in the recipe" in row.advice]
            if not needs:
                return "\n".join(self.problems)
            return f"Write into the recipe what the last column says of {', '.join(needs)}."
        force = " --force" if any(row.remedy == "force" for row in sized) else ""
        return f"Run: layerswap harmonize {shlex.join(self.names)} --out DIR{force}"


def compare_models(references: Sequence[str], base: str | None = None) -> Compatibility:
    """Return what of several models matches.

    Configs, headers and tokenizers are read, and with `base` a few rows of the weights.

    Args:
        references: two or more folders or hub ids.
        base: the folder or hub id of what they may descend from.

    Raises:
        InputError: for a model that is missing or not readable, fewer than two, one with an
            adapter, or a base that none descends from.
    """
    if len(references) < 2:
        raise InputError("compat compares models: give two or more")
    checkpoints = [find_checkpoint(reference) for reference in references]
    problems = tuple(merge_problems(checkpoints))
    cosines: tuple[float | None, ...] = ()
    if base is not None:
        parent = find_checkpoint(base)
        cosines = tuple(weight_cosine(checkpoint, parent) for checkpoint in checkpoints)
        if not any(cosine is not None and cosine >= SAME_ORIGIN for cosine in cosines):
            raise InputError(
                f"--base {base}: none of {', '.join(references)} descends from it (cosine of the "
                f"weights: {', '.join(map(_descends, cosines))}); give their pretrained parent, or "
                "leave --base out"
            )
    return Compatibility(tuple(references), differences(checkpoints), problems, base, cosines)


def _descends(cosine: float | None) -> str:
    if cosine is None:
        return "no (other shapes)"
    return f"{'yes' if cosine >= SAME_ORIGIN else 'no'} ({cosine:.3f})"


def _lines(row: Row) -> Iterator[list[str]]:
    """Yield the lines of a field: one, or for a setting of several parts (RoPE scaling) one each.

    All parts in one cell would make the table wider than any screen.
    """
    parts = [value if isinstance(value, Mapping) else {} for value in row.values]
    keys = dict.fromkeys(key for part in parts for key in part)
    if not keys:
        yield [row.field, *map(_text, row.values), row.advice or "-"]
    for key in keys:
        values = [part.get(key) for part in parts]
        same = all(value == values[0] for value in values)
        yield [f"{row.field}: {key}", *map(_text, values), "-" if same else row.advice]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"{value:g}" if isinstance(value, float) else str(value)


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
