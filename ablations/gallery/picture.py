"""A layer plan as a picture: models as stacks of layers (the paper's Figures 1 and 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ablations.drawing.canvas import COLORS, KINDS, drawing, images_of, new_canvas
from ablations.gallery.plan import Supply
from ablations.machine.whole_files import check_place, told_if_unwritable, write_bytes
from layerswap_method.errors import InputError

_LOOKS = {
    "task": (COLORS[0], ""),
    "language": (COLORS[1], "///"),
    "average": (COLORS[2], "..."),
    "base": ("#999999", "xxx"),
    "": ("#ffffff", ""),
}
"""Source -> colour and hatch, so that a print in grey can be read; "" is not used."""


class Stack(NamedTuple):
    """One model: part -> its source in every layer, layer 0 first; "" where it is not used."""

    title: str
    columns: Mapping[str, Sequence[str]]
    outside: str
    """Source of embeddings, final norm and head."""


def draw(supply: Supply, name: str, out: Path) -> None:
    """Write the plan as a picture, whose kind is the ending of `out`.

    Raises:
        InputError: for another ending.
        LayerSwapError: without matplotlib.
    """
    kind = out.suffix.removeprefix(".")
    if kind not in KINDS:
        raise InputError(f"{out}: write a name that ends in .{', .'.join(KINDS)}")
    check_place(out)
    stacks, layers = stacks_of(supply), supply.num_layers
    with drawing("layer stacks"):
        canvas = new_canvas(1.0 + 1.5 * len(stacks), 1.6 + 0.16 * layers)
        axes = canvas.subplots(1, len(stacks), sharey=True, squeeze=False)[0]
        for each, stack in zip(axes, stacks, strict=True):
            _draw_stack(each, stack, layers)
        ticks = [*range(0, max(layers - 2, 1), 5), *([layers - 1] if layers > 1 else [])]
        axes[0].set_yticks(
            [-1.5, *ticks, layers + 0.5], ["embeddings", *map(str, ticks), "norm, head"]
        )
        canvas.suptitle(name, fontsize=9)
        shown = [source for source in _LOOKS if source and source in _used(supply)]
        for source in shown:  # boxes outside the view, for their looks
            _box(axes[0], -9, 0, 0.8, source, "average of both" if source == "average" else source)
        canvas.legend(loc="outside lower center", ncols=len(shown), frameon=False)
        image = images_of(canvas, (kind,))[kind]
    with told_if_unwritable(out):
        write_bytes(out, image)


def stacks_of(supply: Supply) -> list[Stack]:
    """Return what the figure shows: each supplier with the layers it gives, the merge between."""
    used, sides = _used(supply), []
    for giver in ("task", "language", "base"):
        given = {giver} if giver == "base" else {giver, "average"}
        if used & given:
            columns = {
                name: tuple(giver if source in given else "" for source in sources)
                for name, sources in supply.columns.items()
            }
            title = giver if giver == "base" else f"{giver} expert"
            sides.append(Stack(title, columns, giver if supply.outside in given else ""))
    merged = Stack("merged model", supply.columns, supply.outside)
    return [sides[0], merged, *sides[1:]]


def _used(supply: Supply) -> set[str]:
    return {supply.outside, *(s for sources in supply.columns.values() for s in sources)}


def _draw_stack(axes: Any, stack: Stack, layers: int) -> None:
    width = 1 / len(stack.columns)
    for column, sources in enumerate(stack.columns.values()):
        for layer, source in enumerate(sources):
            _box(axes, column * width, layer - 0.5, width, source)
    for bottom in (-2.0, layers):
        _box(axes, 0, bottom, 1, stack.outside)
    axes.set_xlim(-0.05, 1.05)
    axes.set_ylim(-2.2, layers + 1.2)
    axes.set_title(stack.title, fontweight="bold")
    labels = list(stack.columns) if len(stack.columns) > 1 else []
    axes.set_xticks([(i + 0.5) * width for i in range(len(labels))], labels, rotation=30)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _box(
    axes: Any, left: float, bottom: float, width: float, source: str, label: str | None = None
) -> None:
    color, hatch = _LOOKS[source]
    edge = "#ffffff" if source else "#cccccc"
    looks = {"color": color, "hatch": hatch, "edgecolor": edge, "lw": 0.6, "label": label}
    axes.bar(left, 1, width, bottom, align="edge", **looks)
