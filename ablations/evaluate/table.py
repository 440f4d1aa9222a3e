"""Scores as text: percent with intervals. Knows layout; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablations.scoring.records import Evaluation, TaskScore

_GAP = "  "


def format_score(score: TaskScore) -> str:
    """Return ``62.3 [56.7, 67.6]`` (percent) or, for what is no share, the plain number."""
    if not score.is_share:
        return f"{score.value:.3f}"
    text = f"{100 * score.value:.1f}"
    if score.interval is None:
        return text
    return f"{text} [{100 * score.interval.low:.1f}, {100 * score.interval.high:.1f}]"


def render_table(
    evaluations: Mapping[str, Evaluation],
    tasks: Sequence[str],
    *,
    strip_prefix: str = "",
    width: int = 100,
) -> str:
    """Return a text table: a row per evaluation, a column per task, the first metric of each.

    Columns that do not fit in `width` go into further blocks below, each with the row names.

    Args:
        evaluations: row name to evaluation.
        tasks: the columns, in order.
        strip_prefix: what to leave out at the beginning of task names.
        width: characters a line may have; a block holds at least one column.

    Raises:
        InputError: when an evaluation lacks one of the tasks.
    """
    names = ["", "", *evaluations]
    columns = [_column(evaluations, task, strip_prefix) for task in tasks]
    name_width = max(len(name) for name in names)
    blocks: list[list[list[str]]] = []
    used = 0
    for column in columns:
        needed = len(_GAP) + max(len(cell) for cell in column)
        if not blocks or used + needed > width:
            blocks.append([])
            used = name_width
        blocks[-1].append(column)
        used += needed
    return "\n\n".join(_block(names, block) for block in blocks)


def _column(evaluations: Mapping[str, Evaluation], task: str, strip_prefix: str) -> list[str]:
    scores = [evaluation.score(task) for evaluation in evaluations.values()]
    counts = sorted({score.n for score in scores})
    items = "-".join(
        str(count) for count in (counts if len(counts) == 1 else counts[:: len(counts) - 1])
    )
    metrics = "/".join(dict.fromkeys(score.metric for score in scores))
    return [
        task.removeprefix(strip_prefix),
        f"{metrics}, n={items}",
        *(format_score(score) for score in scores),
    ]


def _block(names: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in columns]
    name_width = max(len(name) for name in names)
    lines = [
        _GAP.join(
            [
                name.ljust(name_width),
                *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)),
            ]
        ).rstrip()
        for name, cells in zip(names, zip(*columns, strict=True), strict=True)
    ]
    rule = "-" * max(len(line) for line in lines)
    return "\n".join([*lines[:2], rule, *lines[2:]])
