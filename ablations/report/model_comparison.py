"""The comparison of models as a value, and as it is read: text, and HTML for notebooks."""

from __future__ import annotations

import html
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ablations.drawing.text_table import text_table, wrapped
from ablations.report.analysis import Analysis
from ablations.report.comparisons import rows_of
from ablations.report.model_scores import ModelScore
from ablations.report.tables import (
    BELOW,
    GAP,
    column_name,
    floors_text,
    interval_text,
    sampled_text,
    task_text,
)
from ablations.scoring.observed import LANGUAGE_FIDELITY
from ablations.statistics.as_text import number, p_text, points
from layerswap_method.recipe.references import working_folder

_WIDTHS = ((22, 12, 14), (18, 12, 14), (16, 9, 14), (14, 8, 7))
"""Characters of a line of the columns with a task, a score and a verdict, the widest first."""


@dataclass(frozen=True)
class ModelComparison:
    """Models against each other; as text and in a notebook it has a line for each pair and task."""

    models: tuple[str, ...]
    """Their names: short ones where these are unique."""

    places: tuple[str, ...]
    """Where the scores are: a run folder, ``RUN:MODEL``, or an output of lm-eval."""

    warnings: tuple[str, ...]
    """Warnings that a reader must know before the scores."""

    analysis: Analysis
    """Of the models together; its study has the tasks that p is corrected over."""

    @property
    def scores(self) -> pd.DataFrame:
        """A row for each model and task: its score with its interval."""
        return self.analysis.score_frame

    @property
    def comparisons(self) -> pd.DataFrame:
        """A row for each pair of models and each task: difference, interval, p, verdict."""
        return self.analysis.comparison_frame

    def __repr__(self) -> str:
        return str(self)  # so a notebook shows it

    def __str__(self) -> str:
        return self.report()

    def report(self, tables: Sequence[str] = ()) -> str:
        """Return warnings, `tables` of single models, the comparisons, and notes."""
        parts = [*(wrapped(f"Warning: {warning}", 80) for warning in self.warnings), *tables]
        for (first, second), rows in self._tables():
            parts.append(_table_text([first, second], rows))
        parts += [wrapped(note, 80) for note in self._notes()]
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>Warning:</b> {html.escape(warning)}</p>" for warning in self.warnings]
        for (first, second), rows in self._tables():
            heads = ["task", first, second, "difference", "p", "verdict"]
            parts.append(pd.DataFrame(rows, columns=heads).to_html(index=False, border=0))
        return "\n".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in self._notes())])

    def _tables(self) -> Iterator[tuple[tuple[str, str], list[list[str]]]]:
        """Yield each two models with the rows of their table."""
        scores = {(score.model, score.task): score for score in self.analysis.scores}
        matrices, frame = self.analysis.shown.matrices, self.comparisons
        for pair in itertools.combinations(self.models, 2):
            of_pair = frame[frame["first"].eq(pair[0]) & frame["second"].eq(pair[1])]
            rows = []
            for row in of_pair.to_dict("records"):
                p = row["p_holm"] if row["family"] else row["p"]
                name = task_text if row["metric"] == LANGUAGE_FIDELITY else column_name
                rows.append(
                    [
                        name(row, frame),
                        *(
                            _score_text(scores[model, row["task"]], value)
                            for model, value in zip(
                                pair, _common_means(matrices[row["task"]], pair), strict=True
                            )
                        ),
                        ""
                        if pd.isna(row["difference"])
                        else f"{points(row['difference'])} {interval_text(row)}".rstrip(),
                        "" if pd.isna(p) else p_text(p),
                        row["verdict"],
                    ]
                )
            yield pair, rows

    def _notes(self) -> Iterator[str]:
        frame, level = self.comparisons, self.analysis.study.evaluate.level
        tested = int(((frame["family"] == "primary") & frame["p"].notna()).sum())
        over = f", corrected over {tested} comparisons by Holm's method" if tested > 1 else ""
        yield (
            f"Scores in percent (BLEU and chrF++ to 100); differences in points, first minus "
            f"second, with {level:.0%} intervals over {sampled_text(self.scores)}, which are not "
            f"corrected. p: of no difference{over}."
        )
        places = zip(self.models, map(_short_path, self.places), strict=True)
        shown = [f"{model}: {place}" for model, place in places if model != place]
        if shown:
            yield f"Scores of {'; '.join(shown)}."
        if floors := floors_text(self.scores):
            yield floors
        if (frame["family"] != "primary").any():
            yield "right language: the share of answers in the right language; p is not corrected."


def _common_means(matrix: pd.DataFrame, pair: Sequence[str]) -> list[float | None]:
    """Return the mean scores of two models on the items that both have; None for their own.

    Those of a model on its own items are the same where the other has all of them.
    """
    sides = [rows_of(matrix, [model], "").dropna(axis="columns") for model in pair]
    both = sides[0].columns.intersection(sides[1].columns)
    return [
        None if len(both) == len(side.columns) else float(side[both].to_numpy().mean())
        for side in sides
    ]


def _score_text(score: ModelScore, on_common: float | None = None) -> str:
    """Return a score; `on_common` takes its place where only some of its items are compared."""
    value = score.value if on_common is None else on_common
    text = GAP if value is None else number(value, score.is_share)
    if score.is_below:
        text += f" {BELOW}"
    if score.cells < score.cells_expected:
        text += f" ({score.cells} of {score.cells_expected} cells)"
    return text


def _table_text(models: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table of two models in lines of 80 characters, with the widest words that fit."""
    text = ""
    for task, head, verdict in _WIDTHS:
        widths = (task, head, head, 24, 8, verdict)
        cells = [
            [textwrap.fill(text, width) for text, width in zip(row, widths, strict=True)]
            for row in (["task", *models, "difference", "p", "verdict"], *rows)
        ]
        text = text_table(cells[0], cells[1:], sides="lrrrrl")
        if max(map(len, text.splitlines())) <= 80:
            break
    return text


def _short_path(place: str) -> str:
    """Return a path below the working directory as seen from there."""
    here = working_folder()
    path = Path(place)
    return str(path.relative_to(here)) if here is not None and path.is_relative_to(here) else place
