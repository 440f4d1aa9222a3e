"""The numbers that the paper (arXiv 2410.01335) printed: Tables 1, 2 and 6, Figures 4 to 9.

They are other models, items and engines than ours.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, NamedTuple

from layerswap_method.errors import InputError, nearest_of

LABEL = "share of input features with MAV above the threshold"
"""The meaning of the numbers of a published grid."""

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Grid(NamedTuple):
    """Shares in [0, 1] by layer and parameter, as a heatmap of an expert shows them."""

    title: str
    """Name of the expert."""

    columns: tuple[str, ...]
    """Parameters within a layer, such as ``self_attn.q_proj``, in the order of the figure."""

    values: tuple[tuple[float, ...], ...]
    """Per layer, layer 0 (embedding side) first, a number per column; NaN for no such parameter."""

    note: str
    """Source and threshold."""


def published_tables() -> Any:
    """Return ``tables.json``: the protocol, and layout -> Table 1, 2 or 6 in percent."""
    return _document("tables.json")


def published_names() -> tuple[str, ...]:
    """Return the names of the published experts, in the order of their figures."""
    return tuple(_document("grids.json")["experts"])


def published_grid(name: str) -> Grid:
    """Return the published grid of an expert, such as ``Swahili expert #1``.

    Its values are the share of input features with a MAV above the threshold, in [0, 1], of
    Llama 3.1 8B: 32 layers and 7 parameters, named as transformers names them. Six values are
    probably misprints in the figures; they stay as printed, and `grids.json` names them.

    Raises:
        InputError: for a name that there is not, with the nearest one.
    """
    document = _document("grids.json")
    title = {title.casefold(): title for title in document["experts"]}.get(name.casefold())
    if title is None:
        raise InputError(f"no published expert {name!r}{nearest_of(name, published_names())}")
    expert = document["experts"][title]
    figure = expert["figure"].replace("Figure", "Fig.")
    threshold = document["thresholds"][expert["threshold"]]
    return Grid(
        title=title,
        columns=tuple(column["name"] for column in document["columns"]),
        values=tuple(tuple(row) for row in expert["bottom_layer_first"]),
        note=f"arXiv 2410.01335, {figure}; MAV > {scientific(threshold)}",
    )


def scientific(value: float) -> str:
    """Return ``1.9×10⁻⁵`` for 0.000019, with two digits."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}×10{str(int(exponent)).translate(_RAISED)}"


def _document(name: str) -> Any:
    return json.loads((files("ablations.paper") / name).read_text(encoding="utf-8"))
