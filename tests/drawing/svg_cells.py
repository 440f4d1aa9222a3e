"""Reads a heatmap back from its SVG: numbers from comments, colours from the mesh."""

import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Any


def cells_of(svg: str) -> tuple[list[list[str]], list[list[tuple[int, ...]]]]:
    """Return the numbers and the colours of the first mesh in an SVG, from the top left."""
    root = ElementTree.fromstring(svg, ElementTree.XMLParser(target=_with_comments()))
    space = "{http://www.w3.org/2000/svg}"
    (first, *_) = (g for g in root.iter(f"{space}g") if g.get("id") == "QuadMesh_1")
    fills, corners = {}, set()
    for path in first.iter(f"{space}path"):
        where = re.match(r"M ([\d.]+) ([\d.]+)", path.get("d", ""))
        color = re.search(r"fill: #(\w{6})", path.get("style", ""))
        assert where is not None
        assert color is not None
        x, y = (float(each) for each in where.groups())
        corners.add((x, y))
        fills[x, y] = tuple(bytes.fromhex(color[1]))
    # A path begins at the lower left corner of its cell, a text in the middle of it.
    xs, ys = (sorted({corner[axis] for corner in corners}) for axis in (0, 1))
    wide, tall = xs[1] - xs[0], ys[1] - ys[0]
    numbers = {}
    for group in root.iter(f"{space}g"):
        text = next((each.text for each in group if each.tag is ElementTree.Comment), None)
        inner = group.find(f"{space}g")
        if text is None or inner is None:
            continue
        moved = re.match(r"translate\(([\d.]+) ([\d.]+)\)", inner.get("transform", ""))
        if moved is None:
            continue
        x, y = (float(each) for each in moved.groups())
        column, row = math.floor((x - xs[0]) / wide), math.ceil((y - ys[0]) / tall)
        if 0 <= column < len(xs) and 0 <= row < len(ys):
            numbers[column, row] = text.strip()
    assert len(numbers) == len(fills) == len(xs) * len(ys)
    rows = range(len(ys))
    return (
        [[numbers[column, row] for column in range(len(xs))] for row in rows],
        [[fills[x, ys[row]] for x in xs] for row in rows],
    )


def _with_comments() -> Any:
    return ElementTree.TreeBuilder(insert_comments=True)
