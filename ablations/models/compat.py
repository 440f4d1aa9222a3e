"""What of several models matches, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablations.drawing.text_table import text_table
from ablations.models.find import find_model
from ablations.models.lineage import SAME_ORIGIN, weight_cosine
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.compatible import own_problems, pair_problems
from layerswap_method.checkpoint.differences import Row, differences, obstacles
from layerswap_method.errors import InputError


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
            return f"The merge methods take these models as they are.{more}"
        blocked = [row.field for row in obstacles(self.rows)]
        if blocked:
            return f"These models cannot be merged: nothing reconciles {', '.join(blocked)}."
        sized = [row for row in self.rows if row.remedy in ("harmonize", "force")]
        if not sized:
            needs = [row.field for row in self.rows if row.remedy == "recipe"]
            if not needs:
                return "\n".join(self.problems)
            return f"Write into the recipe what the last column says of {', '.join(needs)}."
        force = " --force" if any(row.remedy == "force" for row in sized) else ""
        return f"Run: layerswap harmonize {' '.join(self.names)} --out DIR{force}"

    def as_json(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            "schema_version": 1,
            "models": list(self.names),
            "mergeable": not self.problems,
            "problems": list(self.problems),
            "fields": [row.model_dump(mode="json") for row in self.rows],
            "base": self.base,
            "base_cosines": list(self.cosines),
            "verdict": self.verdict(),
        }


def compare_models(references: Sequence[str], base: str | None = None) -> Compatibility:
    """Return what of several models matches.

    Configs, headers and tokenizers are read, and with `base` a few rows of the weights.

    Args:
        references: two or more folders or hub ids.
        base: the folder or hub id of what they may descend from.

    Raises:
        InputError: for a model that is not there or not readable, fewer than two, one with an
            adapter, or a base that none descends from.
    """
    if len(references) < 2:
        raise InputError("compat compares models: give two or more")
    checkpoints = [_read(reference) for reference in references]
    problems = [problem for each in checkpoints for problem in own_problems(each)]
    for other in checkpoints[1:]:
        problems += pair_problems(checkpoints[0], other)
    cosines: tuple[float | None, ...] = ()
    if base is not None:
        parent = _read(base)
        cosines = tuple(weight_cosine(each, parent) for each in checkpoints)
        if not any(cosine is not None and cosine >= SAME_ORIGIN for cosine in cosines):
            raise InputError(
                f"--base {base}: none of {', '.join(references)} descends from it (cosine of the "
                f"weights: {', '.join(map(_descends, cosines))}); give their pretrained parent, or "
                "leave --base out"
            )
    return Compatibility(
        tuple(references), differences(checkpoints), tuple(problems), base, cosines
    )


def _read(reference: str) -> Checkpoint:
    found = find_model(reference)
    if found.adapter is not None:
        raise InputError(f"{reference}: compat compares checkpoints; leave the adapter out")
    return read_checkpoint(reference, found.folder)


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
    return f"{value:g}" if isinstance(value, float) else str(value)
