"""A cell of a study: a model, what it is called, and the tasks that it is evaluated on.

It has a type for each of its stages: `ExpandedCell`, as `ablations.study.expansion` makes it,
`MadeCell` once its experts are open, and `PlannedCell` of a plan, which can be evaluated. `Cell` is
what is stored of that in `run.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    PlainValidator,
)

from ablations.requests.resolve import ResolvedTasks
from ablations.study.made_by import MadeBy
from ablations.study.schema import Kind, Value
from layerswap_method.errors import InputError, nearest
from layerswap_method.frozen import Frozen
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.methods.read import read_recipe
from layerswap_method.recipe.document import Recipe

_Plan = Annotated[
    LayerPlan,
    BeforeValidator(
        lambda value: LayerPlan(tuple(value)) if isinstance(value, list | tuple) else value
    ),
    PlainSerializer(lambda plan: plan.sources),
]


def _read(value: Any) -> Recipe:
    if isinstance(value, Recipe):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("merge_method"), str):
        raise ValueError("is not a recipe; it has no merge_method")
    try:
        return read_recipe(value)
    except InputError as error:  # whoever reads the cell says where
        raise ValueError(error.message) from error


_Recipe = Annotated[
    Recipe,
    PlainValidator(_read),
    PlainSerializer(lambda recipe: recipe.document),
]


class ExpandedCell(Frozen):
    """One point of a study: a model, merged or not, as the study's files describe it."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    label: str
    """Its name in words, unique in the study and the same wherever the cell is shown."""

    kind: Kind
    """The study's recipe, or a baseline."""

    values: dict[str, Value]
    """The varied values as the study gives them (before scaling to the model's depth)."""

    experts: dict[str, str]
    """Role (``task``, ``language``, ``base``) -> name; the roles that the weights come from."""

    language: str | None = None
    """Code of the language expert's language, where the study names one."""

    recipe: _Recipe = Field(alias="merge")
    """The recipe of the weights, ``passthrough`` for an unmerged model. Folders are absolute, and
    as seen from the run folder in `run.json`, which has the written form as ``merge``."""

    plan: _Plan | None = None
    """Source of every layer, embedding side first; None where no layer is swapped, or where it is
    measured at the merge."""

    def facts(self) -> dict[str, str]:
        """Return the cell's properties for ``--only``, as text."""
        facts = {name: value_text(value) for name, value in self.values.items()}
        facts |= self.experts
        if self.language is not None:
            facts["language_code"] = self.language
        return {**facts, "kind": self.kind, "label": self.label}

    def expanded(self) -> dict[str, Any]:
        """Return by name the fields of every stage, for the cell of a later one."""
        return {name: getattr(self, name) for name in ExpandedCell.model_fields}

    def with_keys(self, weights_key: str, record_keys: Mapping[str, str]) -> Cell:
        """Return what is stored of the cell, with these keys."""
        return Cell(**self.expanded(), weights_key=weights_key, record_keys=dict(record_keys))


class MadeCell(ExpandedCell):
    """A cell with what the headers of its experts say; none of their weights are read."""

    made_by: MadeBy = Field(exclude=True)
    """Who makes the weights."""

    donor: Path | None = Field(exclude=True)
    """The folder whose config and tokenizer the model has; None where only its merge tells."""


class Cell(ExpandedCell):
    """A cell with the keys of its weights and records, as `run.json` has it."""

    weights_key: str
    """Hash of the weights, equal where two cells are one model; see `ablations.study.identity`."""

    record_keys: dict[str, str] = Field(alias="records")
    """Task -> key of its record, in the order of the request."""

    skipped: dict[str, str] = Field(default_factory=dict)
    """Task of the study that is not evaluated -> why."""


class PlannedCell(Cell, MadeCell):
    """A cell that can be evaluated."""

    resolved: InstanceOf[ResolvedTasks] = Field(exclude=True)
    """The tasks and how they are evaluated."""


AnyCell = TypeVar("AnyCell", bound=ExpandedCell)
"""A cell of one of the stages."""


def missing_tasks(
    cells: Sequence[PlannedCell], missing: Collection[str]
) -> dict[str, ResolvedTasks]:
    """Return the tasks that lack a record of a key in `missing`, each alone by its name."""
    return {
        task: cell.resolved.only(task)
        for cell in cells
        for task, key in cell.record_keys.items()
        if key in missing
    }


def selected(cells: Sequence[AnyCell], only: Sequence[str]) -> list[AnyCell]:
    """Return the cells that fit every condition; all of them where there is none.

    Conditions are NAME=VALUE, in any case. Values of one name are alternatives, and every name must
    fit: ``kind=recipe``, ``bottom_layers=0`` and ``bottom_layers=3`` are the recipe with either
    count.

    Raises:
        InputError: for a condition that no cell fits, or conditions that none fits together.
    """
    facts = [[f"{name}={value}" for name, value in cell.facts().items()] for cell in cells]
    texts = {text.lower(): text for fact in facts for text in fact}
    wanted: dict[str, set[str]] = {}
    for condition in only:
        name, _, value = (part.strip() for part in condition.lower().partition("="))
        if (text := f"{name}={value}") not in texts:
            shown = list(texts.values())
            hint = nearest(text, shown) or f"; they have {', '.join(shown[:12])}"
            raise InputError(f"--only {condition}: no cell has this NAME=VALUE{hint}")
        wanted.setdefault(name, set()).add(text)
    chosen = [
        cell
        for cell, fact in zip(cells, facts, strict=True)
        if all(values & set(map(str.lower, fact)) for values in wanted.values())
    ]
    if cells and not chosen:
        raise InputError(
            f"--only {' --only '.join(only)}: some cells fit each condition, but none fits all"
        )
    return chosen


def value_text(value: Value) -> str:
    """Return a value as ``--only`` has it; names joined by commas."""
    return ",".join(value) if isinstance(value, tuple) else str(value)
