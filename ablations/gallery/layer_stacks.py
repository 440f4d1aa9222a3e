"""Draws models as stacks of layers, coloured by where each comes from (the paper's Figures 1, 3).

Knows boxes and colours; not what a merge is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ablations.drawing.canvas import COLORS, drawing, images_of, new_canvas

_LOOKS = {
    "task": (COLORS[0], ""),
    "language": (COLORS[1], "///"),
    "average": (COLORS[2], "..."),
    "base": ("#999999", "xxx"),
    "": ("#ffffff", ""),
}
"""Source -> colour and hatch, so that a print in grey can be read; "" is not used."""


@dataclass(frozen=True)
class Stack:
    """One model."""

    title: str
    """Stands above it."""

    columns: tuple[tuple[str, tuple[str, ...]], ...]
    """(part, source of it in every layer, layer 0 first); sources as `task`, "" for not used."""

    outside: str
    """Source of embeddings, final norm and head."""

    labels: tuple[str, ...]
    """Names of the columns below the stack, where there are several; () for none."""


def draw_stacks(
    stacks: Sequence[Stack], title: str, kinds: Sequence[str] = ("svg", "png")
) -> dict[str, bytes]:
    """Return models side by side as images, by kind; the output side is above.

    Args:
        stacks: of one depth.
        title: of the figure.
        kinds: file name extensions.

    Raises:
        LayerSwapError: without matplotlib; see `ablations.drawing.canvas.can_draw`.
    """
    layers = len(stacks[0].columns[0][1])
    with drawing("layer stacks"):
        canvas = new_canvas(1.0 + 1.5 * len(stacks), 1.6 + 0.16 * layers)
        axes = canvas.subplots(1, len(stacks), sharey=True, squeeze=False)[0]
        for each, stack in zip(axes, stacks, strict=True):
            _draw(each, stack, layers)
        ticks = [layer for layer in range(layers) if layer % 5 == 0 or layer == layers - 1]
        if layers > 1 and (layers - 1) % 5 == 1:  # would touch the last label
            ticks.remove(layers - 2)
        axes[0].set_yticks(
            [-1.5, *ticks, layers + 0.5], ["embeddings", *map(str, ticks), "norm, head"]
        )
        canvas.suptitle(title, fontsize=9)
        _legend(canvas, axes[0], stacks)
        return images_of(canvas, kinds)


def _draw(axes: Any, stack: Stack, layers: int) -> None:
    width = 1 / len(stack.columns)
    for column, (_, sources) in enumerate(stack.columns):
        for layer, source in enumerate(sources):
            _box(axes, column * width, layer - 0.5, width, source)
    for bottom in (-2.0, layers):
        _box(axes, 0, bottom, 1, stack.outside)
    axes.set_xlim(-0.05, 1.05)
    axes.set_ylim(-2.2, layers + 1.2)
    axes.set_title(stack.title, fontweight="bold")
    several = len(stack.labels) > 1
    axes.set_xticks(
        [(i + 0.5) * width for i in range(len(stack.labels))] if several else [],
        stack.labels if several else [],
        rotation=30,
    )
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _box(axes: Any, left: float, bottom: float, width: float, source: str) -> None:
    color, hatch = _LOOKS[source]
    axes.bar(
        left,
        1,
        width,
        bottom,
        align="edge",
        color=color,
        hatch=hatch,
        edgecolor="#ffffff" if source else "#cccccc",
        lw=0.6,
    )


def _legend(canvas: Any, axes: Any, stacks: Sequence[Stack]) -> None:
    used = {source for stack in stacks for _, column in stack.columns for source in column}
    used |= {stack.outside for stack in stacks}
    shown = [source for source in _LOOKS if source and source in used]
    for source in shown:  # boxes outside the view, for their looks
        color, hatch = _LOOKS[source]
        label = "average of both" if source == "average" else source
        axes.bar([-9], [0], color=color, hatch=hatch, edgecolor="#ffffff", label=label)
    canvas.legend(loc="outside lower center", ncols=len(shown), frameon=False)
