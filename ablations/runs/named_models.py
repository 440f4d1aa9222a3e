"""A model of a run as the command line names it: a run folder, or RUN:MODEL."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from ablations.runs.run import Run, load_run, run_folder
from ablations.study.grouping import StudyModel
from layerswap_method.errors import InputError, nearest, with_valid
from layerswap_method.recipe.references import is_folder

_SHOWN_CELLS = 12


def model_of_run(name: str) -> tuple[Run, StudyModel]:
    """Return the run of a folder or ``RUN:MODEL`` with its latest records, and the model in it.

    The model has its name in the run, or the one of its cell that was named.
    """
    folder, label = run_and_model(name)
    run = load_run(folder)
    cells_by_label: dict[str, tuple[str, ...]] = {
        **{cell.label: (cell.label,) for cell in run.head.cells},
        **{model.label: model.cells for model in run.models},
    }
    if label is None and len(run.head.cells) > 1:
        names = list(dict.fromkeys(label for model in run.models for label in model.cells))
        lines = [f"\n  {shlex.quote(f'{folder}:{name}')}" for name in names[:_SHOWN_CELLS]]
        if len(names) > _SHOWN_CELLS:
            lines.append(f"\n  and {len(names) - _SHOWN_CELLS} more")
        raise InputError(
            f"{folder} has {len(run.head.cells)} cells; name one of them:{''.join(lines)}"
        )
    if label is None:
        label = next((model.label for model in run.models), run.head.cells[0].label)
    if label not in cells_by_label:
        models = list(dict.fromkeys(model.label for model in run.models))
        shown = models[:_SHOWN_CELLS]
        if len(models) > len(shown):
            shown.append(f"and {len(models) - len(shown)} more")
        hint = with_valid(nearest(label, cells_by_label), shown)
        raise InputError(f"{folder} has no cell or model {label!r}{hint}")
    labels = cells_by_label[label]
    cells = tuple(cell for cell in run.cells if cell.label in labels)
    if not cells:
        raise InputError(f"{name}: nothing is evaluated yet; run its command again first")
    pools = {role: (expert,) for role, expert in cells[0].experts.items()}
    model = StudyModel(label=label, kind=cells[0].kind, setting={}, pools=pools, cells=labels)
    head_cells = tuple(cell for cell in run.head.cells if cell.label in labels)
    head = run.head.model_copy(update={"cells": head_cells, "models": (model,)})
    return replace(run, head=head, cells=cells), model


def run_and_model(name: str) -> tuple[Path, str | None]:
    """Return run folder and model; a folder may have colons in its name."""
    if is_folder(name):
        return run_folder(Path(name)), None
    colons = [position for position, sign in enumerate(name) if sign == ":"]
    for position in colons:
        if is_folder(name[:position]):
            return run_folder(Path(name[:position])), name[position + 1 :]
    folder, colon, model = name.partition(":")
    return Path(folder), model if colon else None
