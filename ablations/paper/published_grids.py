"""The six grids of the paper's Figures 4 to 9. Knows `published.json`; no profile of a user."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from ablations.drawing.grid import Grid, scientific
from layerswap_method.errors import InputError, nearest


def published_names() -> tuple[str, ...]:
    """Return the names of the published experts, in the order of their figures."""
    return tuple(_document()["experts"])


def published_grid(name: str) -> Grid:
    """Return the published grid of an expert, such as ``Swahili expert #1``.

    Its values are the share of input features with a MAV above the threshold, in [0, 1], of
    Llama 3.1 8B: 32 layers and 7 parameters, named as transformers names them. Six values are
    probably slips of the scanned figures; they are kept as printed and named in the note.

    Raises:
        InputError: for a name that there is not, with the nearest one.
    """
    document = _document()
    found = {each.casefold(): each for each in document["experts"]}.get(name.casefold())
    if found is None:
        known = published_names()
        raise InputError(
            f"no published expert {name!r}{nearest(name, known)}; known are {', '.join(known)}"
        )
    expert = document["experts"][found]
    figure = expert["figure"].replace("Figure", "Fig.")
    threshold = document["thresholds"][expert["threshold"]]
    return Grid(
        title=found,
        columns=tuple(column["name"] for column in document["columns"]),
        values=tuple(tuple(row) for row in expert["bottom_layer_first"]),
        label=LABEL,
        note=f"arXiv 2410.01335, {figure}; MAV > {scientific(threshold)}",
        limits=(0.0, 1.0),
    )


LABEL = "share of input features with MAV above the threshold"
"""What the published numbers are."""


def _document() -> dict[str, Any]:
    text = (files("ablations.paper") / "grids.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
