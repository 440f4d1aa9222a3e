"""A table of the fields in which several models match, and whether they descend from a base."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablations.drawing.text_table import text_table
from ablations.harmonize.differences import ComparedField, compare_fields, obstacles
from ablations.models.find import open_model
from layerswap_method.checkpoint.compatible import COMPAT, merge_problems
from layerswap_method.checkpoint.origin import is_far, sampled_change
from layerswap_method.errors import InputError
from layerswap_method.hub.downloads import Downloads


@dataclass(frozen=True)
class Compatibility:
    """The comparison of several models."""

    names: tuple[str, ...]
    """The models, as the user wrote them."""

    rows: tuple[ComparedField, ...]
    """Every field, compared."""

    problems: tuple[str, ...]
    """Reasons for which a merge method refuses them as they are; empty where it takes them."""

    base: str | None = None
    """The model that they may descend from."""

    changes: tuple[float | None, ...] = ()
    """For each model, `sampled_change` from the base; None where no shape fits."""

    def table(self) -> str:
        """Return the rows as text: field, models, what to do; and a last line that sums up."""
        rows = [line for row in self.rows for line in _lines(row)]
        if self.base is not None:
            rows.append([f"descends from {self.base}", *map(_descends, self.changes), "-"])
        columns = ["", *self.names, "what can be done"]
        return f"{text_table(columns, rows, sides='l' * len(columns))}\n\n{self.verdict()}"

    def verdict(self) -> str:
        """Return what to do with the models, in one sentence."""
        if not self.problems:
            differing = [row.field for row in self.rows if not row.same]
            verdict = "The merge methods take these models as they are."
            if "tokens" in differing:
                verdict = (
                    "The merge methods take these models with the tokenizer of base_model, if the "
                    "merge's log names no other."
                )
            if differing:
                verdict += f" They differ in {', '.join(differing)}."
            return verdict
        blocked = [row.field for row in obstacles(self.rows)]
        if blocked:
            return f"These models cannot be merged: nothing reconciles {', '.join(blocked)}."
        harmonized = [row for row in self.rows if row.remedy in ("harmonize", "force")]
        if not harmonized:
            fields = [row.field for row in self.rows if "in the recipe" in row.advice]
            if not fields:
                return "\n".join(self.problems)
            return f"Write into the recipe what the last column says of {', '.join(fields)}."
        force = " --force" if any(row.remedy == "force" for row in harmonized) else ""
        return f"Run: layerswap harmonize {shlex.join(self.names)} --out DIR{force}"


def check_compatibility(references: Sequence[str], base: str | None = None) -> Compatibility:
    """Return in which fields several models match.

    Configs, headers and tokenizers are read, and with `base` a few rows of the weights.

    Args:
        references: two or more folders or hub ids, or either with a LoRA: BASE+ADAPTER.
        base: the folder or hub id of what they may descend from.

    Raises:
        InputError: for a model that is missing or not readable, fewer than two, or a base that none
            descends from.
    """
    if len(references) < 2:
        raise InputError("compat compares models: give two or more")
    hub = Downloads("ranges")  # a few rows
    with hub.fetching():
        models = [open_model(reference, hub) for reference in references]
        checkpoints = [model.checkpoint for model in models]
        differing = list(merge_problems(checkpoints))
    problems = tuple(problem.removesuffix(f"; {COMPAT}") for problem in differing)
    changes: tuple[float | None, ...] = ()
    if base is not None:
        with hub.fetching():
            parent = open_model(base, hub).checkpoint
            changes = tuple(
                sampled_change(model.checkpoint.tensors, parent.tensors, model.changes)
                for model in models
            )
        if all(change is None or is_far(change) for change in changes):
            raise InputError(
                f"--base {base}: none of {', '.join(references)} descends from it (||delta|| / "
                f"||weights|| in a sample: {', '.join(map(_descends, changes))}; of a fine-tune it "
                "is far below 0.5); give their pretrained parent, or leave --base out"
            )
    return Compatibility(tuple(references), compare_fields(checkpoints), problems, base, changes)


def _descends(change: float | None) -> str:
    if change is None:
        return "no (other shapes)"
    return f"{'no' if is_far(change) else 'yes'} ({change:.3f})"


def _lines(row: ComparedField) -> Iterator[list[str]]:
    """Yield the lines of a field: one, or for a setting of several parts (RoPE scaling) one each.

    All parts in one cell would make the table wider than any screen.
    """
    parts = [value if isinstance(value, Mapping) else {} for value in row.values]
    keys = dict.fromkeys(key for part in parts for key in part)
    if not keys:
        yield [row.field, *map(_text, row.values), row.advice or "-"]
    for key in keys:
        values = [part.get(key) for part in parts]
        is_same = all(value == values[0] for value in values)
        yield [f"{row.field}: {key}", *map(_text, values), "-" if is_same else row.advice]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"{value:g}" if isinstance(value, float) else str(value)
