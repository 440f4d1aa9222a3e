"""``--only NAME=VALUE``: which cells of a study to run. Knows names and values of cells.

Values of one name are alternatives, and every name must fit: ``--only kind=recipe
--only bottom_layers=0 --only bottom_layers=3`` is the recipe with either count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ablations.study.cells import Cell
from layerswap_method.errors import InputError, nearest

_SHOWN = 12
"""Values at most that an error lists."""


def selected(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Return the cells that fit every condition; all of them where there is none.

    Args:
        cells: of a study.
        only: conditions NAME=VALUE; small and capital letters count as the same.

    Raises:
        InputError: for what is no condition, a name or value that no cell has, or conditions that
            no cell fits together.
    """
    known: dict[str, dict[str, str]] = {}
    for cell in cells:
        for name, value in cell.facts().items():
            known.setdefault(name, {})[value.lower()] = value
    wanted: dict[str, set[str]] = {}
    for condition in only:
        name, sign, value = (part.strip() for part in condition.partition("="))
        if not sign:
            raise InputError(f"--only {condition}: write NAME=VALUE; {_listed('names', known)}")
        if name not in known:
            hint = nearest(name, known) or ";"
            raise InputError(
                f"--only {condition}: no cell has {name!r}{hint} {_listed('names', known)}"
            )
        values = known[name].values()
        if value.lower() not in known[name]:
            hint = nearest(value, values) or ";"
            raise InputError(
                f"--only {condition}: no cell has this value{hint} {_listed(name, values)}"
            )
        wanted.setdefault(name, set()).add(value.lower())
    found = [
        cell
        for cell in cells
        if all(cell.facts().get(name, "").lower() in values for name, values in wanted.items())
    ]
    if cells and not found:
        raise InputError(
            f"--only {' --only '.join(only)}: some cells fit each condition, but none fits all"
        )
    return found


def _listed(name: str, values: Iterable[str]) -> str:
    shown = list(values)
    more = f" or one of {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"{name}: {', '.join(shown[:_SHOWN])}{more}"
