"""Whether the files of experts are those that a study was planned with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.models.find import Expert, here
from ablations.study.describe import counted
from layerswap_method.errors import InputError, LayerSwapError

if TYPE_CHECKING:
    from ablations.runner.records import RunFile
    from ablations.study.planning import StudyPlan


def check_unchanged(experts: Iterable[Expert], states: Mapping[str, str]) -> None:
    """Check that experts are there and were not changed.

    Args:
        experts: those that are read.
        states: folder -> `folder_state` when the study was planned.

    Raises:
        LayerSwapError: where one is gone or was changed.
    """
    from ablations.study.identity import folder_state

    for expert in experts:
        for folder in (expert.folder, *([expert.adapter] if expert.adapter else [])):
            if not any(any(folder.glob(kind)) for kind in ("*.safetensors", "*.bin")):
                raise LayerSwapError(
                    f"expert {expert.name!r} has disappeared: no weights in {folder} any more; "
                    "put it back and run the study again"
                )
            if states.get(str(folder)) not in (None, folder_state(folder)):
                raise LayerSwapError(
                    f"expert {expert.name!r} has changed since the study began ({folder}); "
                    "run the study again"
                )


def here_or_there(expert: Expert) -> Expert:
    """Return an expert where it is here; one that is not fails its cells, which say so."""
    try:
        return here(expert)
    except InputError:
        return expert


def portable_source(source: str, out: Path) -> str:
    """Return where an expert is, its folders as seen from `out`: no place of this machine's."""
    parts = source.split("+")
    return "+".join(os.path.relpath(p, out) if Path(p).is_absolute() else p for p in parts)


def changed_cells(out: Path, known: RunFile, plan: StudyPlan) -> str | None:
    """Return how many cells of a run are made of something else now; None for none.

    Raises:
        InputError: where they are because experts of the same names are in other places.
    """
    before = {cell.label: cell for cell in known.cells}
    changed = [
        cell
        for cell in plan.cells
        if cell.label in before and before[cell.label].weights_key != cell.weights_key
    ]
    if not changed:
        return None
    places = [(name, name, name) for name in plan.experts]
    places += [  # by role, too: an expert that the study names by its place has no other name
        (role, before[cell.label].experts.get(role, ""), name)
        for cell in changed
        if plan.study.recipe is not None  # one folder of `evaluate` takes several models
        for role, name in cell.experts.items()
    ]
    for said, old, new in places:
        was, is_now = known.experts.get(old), portable_source(plan.experts[new].source, out)
        if was is not None and portable_source(was, out) != is_now:
            raise InputError(
                f"{out}: holds a run of other experts ({said} was {was} and is now {is_now}); "
                "choose another --out"
            )
    same = known.study.recipe == plan.study.recipe and known.versions == plan.versions
    what = "experts" if same else "recipe or versions"
    return f"{what} changed since the last run: {counted(len(changed), 'cell')} again"
