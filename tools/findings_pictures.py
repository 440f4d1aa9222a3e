"""Draw the pictures of `docs/findings.md`, and the map of `docs/report.md`, from shipped results.

python -m tools.findings_pictures           draw them anew in `.github/pictures`

The numbers of the page are recomputed by `tests/test_findings.py`, which draws every picture again
and compares it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from ablations.drawing.canvas import drawing, images_of, new_canvas
from ablations.drawing.colors import COLORS, ZERO_COLOR
from ablations.machine.whole_files import write_bytes
from ablations.report.analysis import analyse
from ablations.report.grid_figures import grid_figures
from ablations.runs.run import load_run
from layerswap_method.command_line import shown_errors

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "findings.md"
PICTURES = ROOT / ".github" / "pictures"
RESULTS = ROOT / "ablations" / "results"

_ROW = re.compile(r"^\| (.+) \| ([+-]?\d+\.\d \[[^]]+\]) \|$", re.MULTILINE)
_TASK = "smol_math_twins_es"
_SPANISH = "SmolLM2-135M, math in Spanish"
_RATES = {
    "× 0.1": ("real_model_lr_tenth", "layer swap"),
    "usual": ("real_model_layers", "layer swap b=5 u=2"),
    "× 3": ("real_model_lr_x3", "layer swap"),
    "× 10": ("real_model_far", "layer swap"),
}
"""Learning rate -> run, and its swap."""


class Section(NamedTuple):
    """The answer to one question."""

    text: str
    numbers: Mapping[str, str]
    """Row of the table -> number with its interval, as on the page."""


def read_sections() -> dict[str, Section]:
    """Return the sections of the page by their headings, those that answer a question."""
    _, *parts = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = {}
    for part in parts:
        heading, _, text = part.partition("\n")
        text = re.split(r"^## ", text, flags=re.MULTILINE)[0]
        sections[heading] = Section(text, dict(_ROW.findall(text)))
    return sections


def draw(name: str) -> bytes:
    """Return a picture, by its file name."""
    return DRAWN[name]()


def _comparisons(panels: Mapping[str, str]) -> bytes:
    """Draw the tables of some sections without the pocket's rows, one panel each.

    Args:
        panels: title of a panel -> heading of its section.
    """
    sections = read_sections()
    rows = [
        [row for row in sections[heading].numbers.items() if not row[0].startswith("pocket")]
        for heading in panels.values()
    ]
    with drawing("findings"):
        canvas = new_canvas(6.4, sum(0.36 * len(part) + 0.55 for part in rows))
        grid = canvas.subplots(
            len(rows),
            1,
            squeeze=False,
            sharex=True,
            height_ratios=[len(part) + 0.8 for part in rows],
        )
        for axes, title, part in zip(grid[:, 0], panels, rows, strict=True):
            axes.axvline(0, color=ZERO_COLOR, lw=0.8)
            for at, (_, text) in enumerate(part):
                value, low, high = map(float, re.findall(r"[+-]?\d+\.\d", text))
                axes.plot([low, high], [at, at], color=COLORS[0], lw=1.6)
                axes.plot(value, at, "o", color=COLORS[0], ms=5)
            labels = [textwrap.fill(label, 44) for label, _ in part]
            axes.set_yticks(range(len(part)), labels)
            axes.set_ylim(len(part) - 0.4, -0.6)
            axes.set_title(title, loc="left", fontweight="bold")
        grid[-1, 0].set_xlabel("difference in points, with 95 % intervals (not corrected)")
        return images_of(canvas, ["png"])["png"]


def _scores(folder: str, metric: str = "operation") -> dict[str, tuple[float, float, float]]:
    """Return the score of every model on the minimal pairs in Spanish, with its interval."""
    frame = analyse(load_run(RESULTS / folder), metric=metric).score_frame
    rows = frame[frame["task"] == _TASK]
    assert {*rows["metric"]} == {metric}
    percents = 100 * rows.set_index("model")[["value", "low", "high"]]
    return {model: (value, low, high) for model, value, low, high in percents.itertuples()}


def _line(
    axes: Any, at: Sequence[float], scores: Sequence[tuple[float, float, float]], **style: Any
) -> None:
    """Draw scores with their intervals."""
    values = [value for value, _, _ in scores]
    below = [value - low for value, low, _ in scores]
    above = [high - value for value, _, high in scores]
    axes.errorbar(at, values, [below, above], capsize=2, lw=1.2, ms=4.5, **style)


def _layer_counts() -> bytes:
    """Draw the score over the number of layers from the language expert."""
    usual, more = _scores("real_model_layers"), _scores("real_model_more_layers")
    settings = {"b=0 u=0": usual, "b=3 u=1": usual, "b=5 u=2": usual, "b=8 u=4": usual}
    settings |= {"b=11 u=6": more, "b=15 u=8": more}
    counts = [sum(map(int, re.findall(r"\d+", setting))) for setting in settings]
    with drawing("findings"):
        canvas = new_canvas(6.4, 2.8)
        axes = canvas.subplots()
        swaps = [scores[f"layer swap {setting}"] for setting, scores in settings.items()]
        _line(axes, counts, swaps, fmt="o-", color=COLORS[2], label="swap")
        axes.axhline(usual["soup"][0], color=COLORS[1], ls="--", lw=1.2, label="soup")
        axes.set_xticks(
            counts, [f"{n}\n({text})" for n, text in zip(counts, settings, strict=True)]
        )
        axes.set_xlabel("layers of 30 from the language expert (b at the bottom, u at the top)")
        axes.set_ylabel("pairs with both\noperations right, %")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, loc="upper left")
        return images_of(canvas, ["png"])["png"]


def _learning_rates() -> bytes:
    """Draw the scores over the learning rate of both experts."""
    models = {"swap": ("o-", 2), "soup": ("s--", 1), "task expert": ("^:", 0)}
    panels = {"both operations right": "operation", "both results right": "both_right"}
    with drawing("findings"):
        canvas = new_canvas(6.4, 2.8)
        grid = canvas.subplots(1, 2, sharey=True)
        for axes, (title, metric) in zip(grid, panels.items(), strict=True):
            runs = [(_scores(folder, metric), swap) for folder, swap in _RATES.values()]
            for shift, (model, (form, color)) in enumerate(models.items()):
                scores = [run[swap if model == "swap" else model] for run, swap in runs]
                at = [place + 0.08 * (shift - 1) for place in range(len(runs))]
                label = model.replace("task", "math")
                _line(axes, at, scores, fmt=form, color=COLORS[color], label=label)
            axes.set_xticks(range(len(_RATES)), list(_RATES))
            axes.set_title(title, loc="left", fontweight="bold")
            axes.set_xlabel("learning rate of both experts")
            axes.set_ylim(0, 100)
        grid[0].set_ylabel("pairs, %")
        grid[0].legend(frameon=False, loc="upper left")
        return images_of(canvas, ["png"])["png"]


def _map() -> bytes:
    """Draw the map of the report of `swap_map`, math and translation."""
    analysis = analyse(load_run(RESULTS / "swap_map"))
    scores = analysis.score_frame
    scores = scores[scores["task"].isin(["pocket_math_sw", "pocket_translate_en_sw"])]
    (figure,) = grid_figures(analysis, scores)
    return figure.images["png"]


DRAWN: dict[str, Callable[[], bytes]] = {
    "map.png": _map,
    "real_model.png": lambda: _comparisons(
        {
            _SPANISH: "Does a swap beat both experts and their average, in Spanish?",
            "SmolLM2-135M, math in French": "Does it do so in French, too?",
        }
    ),
    "language_expert.png": lambda: _comparisons(
        {_SPANISH: "Is it the language expert's knowledge that helps?"}
    ),
    "learning_rates.png": _learning_rates,
    "layer_counts.png": _layer_counts,
    "places.png": lambda: _comparisons({_SPANISH: "Does it matter which layers are swapped?"}),
}
"""File name -> what draws it."""


@click.command()
@shown_errors()
def main() -> None:
    """Draw the pictures of the pages."""
    for name in DRAWN:
        write_bytes(PICTURES / name, draw(name))
        click.echo(PICTURES / name)


if __name__ == "__main__":
    main()
