"""A run folder as an object whose tables are frames."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ablations.machine.progress import Step, show_step
from ablations.report.analysis import Analysis, analyse
from ablations.report.answers import select_answers
from ablations.report.write import (
    FORMATS,
    Report,
    answer_text,
    make_report,
    report_folder,
    scores_of,
    write_report,
)
from ablations.runs.observations import SCORE
from ablations.runs.records import as_input_errors
from ablations.runs.run import Run, load_run
from layerswap_method.errors import InputError, nearest_of


@dataclass(frozen=True)
class RunTables:
    """A run of a study, finished or not; as text it is the question and the answer.

    A notebook shows both, and the scores of the models. As a path it is the run folder. The tables
    have the names of the files that hold them.
    """

    run: Run

    @property
    def folder(self) -> Path:
        """The run folder, an absolute path."""
        return self.run.path.absolute()

    @property
    def study(self) -> str:
        """The study's name."""
        return self.run.study.name

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the study, baselines first; `compare` takes ``FOLDER:MODEL``."""
        return tuple(model.label for model in self.run.models)

    @property
    def failures(self) -> Mapping[str, str]:
        """Name of a cell -> why it failed the last time; empty where nothing did."""
        return self.run.errors

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The cells that lack a score, failed ones among them."""
        return tuple(cell.label for cell in self.run.unfinished)

    @property
    def scores(self) -> pd.DataFrame:
        """A row for every cell and task: its score, with its interval over items.

        It is of the metric that `means` has; scores.csv in the folder has all. Behind the columns
        of the file there is one for each key that the study varies, as in `means`.
        """
        return self._with_settings(self._of_shown_metrics(self.analysis.results.scores))

    @property
    def observations(self) -> pd.DataFrame:
        """A row for every cell, task and item: its ``value``.

        It is of the metric that `means` has; observations.parquet in the folder has all. The
        columns are those of the file and of the keys that the study varies, as in `scores`.
        """
        return self._with_settings(self._of_shown_metrics(self.analysis.results.observations))

    @property
    def comparisons(self) -> pd.DataFrame:
        """A row for each two models and each task: difference, interval, p, verdict."""
        with as_input_errors():
            return self.analysis.comparison_frame

    @property
    def means(self) -> pd.DataFrame:
        """A row for each model and task: the mean over its cells, with its interval.

        A column for each key that the study varies has the model's value, such as
        ``bottom_layers``; models without it, such as baselines, have a gap.
        """
        return self._with_settings(self.analysis.score_frame)

    def items(self, task: str) -> pd.DataFrame:
        """Return the values of a task: a row for each item, a column for each model.

        They are of the metric that `means` has of the task, averaged over the cells of a model; of
        a metric of a whole corpus, such as BLEU, they are jackknife pseudo-values.

        Raises:
            InputError: for a task that the run has no score of.
        """
        matrices = self.analysis.shown.matrices
        if task not in matrices:
            raise InputError(f"the run has no score of a task {task!r}{nearest_of(task, matrices)}")
        by_model = matrices[task].groupby(level="model").mean()
        return by_model.reindex([name for name in self.models if name in by_model.index]).T

    def answers(self, task: str, model: str) -> pd.DataFrame:
        """Return what a model, or a cell of it, answered to a task: a row for each item.

        ``prompt`` is as sent; ``answer`` is what was generated, or the likeliest choice. ``taken``
        is what the filter of `means` took of it. ``is_right`` is by the metric of `means`, None
        where an item alone is neither right nor wrong (BLEU). ``attrs["notes"]`` says what has no
        text any more.

        Raises:
            InputError: for a task or a model that the run has no score of, a model of several
                cells, and where no text is stored any more.
        """
        with as_input_errors():
            selected = select_answers(f"{self.folder}:{model}", task)
        shown = self.analysis.shown.metrics.loc[task, "filter"]
        rows = []
        for item in selected.items:
            (answer,) = item.answers
            first = answer.responses[answer.likeliest or 0] if answer.responses else None
            if answer.likeliest is not None:
                first = item.choices[answer.likeliest]
            rows.append(
                {
                    "item": item.item,
                    "repeat": item.repeat,
                    "prompt": "\n".join(item.prompts),
                    "target": item.target,
                    "answer": first,
                    "taken": next(iter(answer.taken.get(shown, ())), None),
                    "is_right": answer.is_right,
                    "is_cut": answer.is_cut,
                    "is_empty": answer.is_empty,
                }
            )
        frame = pd.DataFrame(rows)
        frame.attrs["notes"] = selected.notes
        return frame

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that a reader must know before the scores."""
        return tuple(self._report.problems)

    def report(
        self, out: str | os.PathLike[str] | None = None, formats: Sequence[str] = FORMATS
    ) -> tuple[Path, ...]:
        """Write the report, to the folder `report` in the run unless `out` is another.

        Returns its files, those to read first.
        """
        folder = report_folder(self.folder, None if out is None else Path(out))
        return _write(self.run, formats, folder).files

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"RunTables({str(self.folder)!r})"

    def __str__(self) -> str:
        return answer_text(self._report)

    def _repr_html_(self) -> str:
        try:
            report = self._report
        except InputError as error:  # no cell is finished
            return f"<p>{html.escape(str(error))}</p>"
        table = scores_of(report)
        parts = [*answer_html(report.question, report.problems, report.sentences)]
        if (first := report.tables[0]).attrs["key"] == "answers":  # the one that sentences name
            title = f"{first.attrs['title']} ({len(first)} rows)"
            parts += [
                f"<details><summary>{html.escape(title)}</summary>",
                *_table_html(first),
                "</details>",
            ]
        parts += _table_html(table)
        return "\n".join(parts)

    def _of_shown_metrics(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the metric and filter that the report shows, and of what failed."""
        shown = pd.MultiIndex.from_frame(self.analysis.shown.metrics[[*SCORE]])
        rows = pd.MultiIndex.from_frame(frame[[*SCORE]]).isin(shown) | frame["metric"].isna()
        return frame[rows].reset_index(drop=True)

    def _with_settings(self, frame: pd.DataFrame) -> pd.DataFrame:
        settings = {model.label: model.setting for model in self.run.models}
        keys = dict.fromkeys(key for setting in settings.values() for key in setting)
        columns = {}
        for key in (key for key in keys if key not in frame):
            values = {name: setting[key] for name, setting in settings.items() if key in setting}
            column = frame["model"].map(values)
            is_whole = all(type(value) is int for value in values.values())
            columns[key] = column.astype("Int64") if is_whole else column
        return frame.assign(**columns)

    @cached_property
    def analysis(self) -> Analysis:
        """The comparisons and the scores of the models as values; see `Analysis`."""
        with as_input_errors():
            return analyse(self.run)

    @cached_property
    def _report(self) -> Report:
        with as_input_errors():
            return make_report(self.run, draw=False, analysis=self.analysis)


def answer_html(question: str, warnings: Iterable[str], sentences: Iterable[str]) -> Iterator[str]:
    """Yield a question, warnings and an answer as paragraphs of HTML, for a notebook's cell."""
    yield f"<p><b>{html.escape(question)}</b></p>"
    yield from (f"<p><b>Warning:</b> {html.escape(line)}</p>" for line in warnings)
    yield from (f"<p>{html.escape(line)}</p>" for line in sentences)


def _table_html(frame: pd.DataFrame) -> list[str]:
    """Return a table of a report, and its notes, as HTML."""
    notes = [f"<p>{html.escape(note)}</p>" for note in frame.attrs["notes"]]
    return [frame.to_html(index=False, border=0), *notes]


class WrittenReport(NamedTuple):
    """A report in a folder, with its files, those to read first; as text, files and answer."""

    report: Report
    folder: Path
    files: tuple[Path, ...]

    @property
    def answer(self) -> str:
        """The answer as text."""
        return answer_text(self.report)

    def __str__(self) -> str:
        paths = [str(path) for path in self.files if path.parent == self.folder]
        return "\n".join([*paths, "", self.answer])


def report_run(
    run: Path, formats: Sequence[str] = FORMATS, out: Path | None = None
) -> WrittenReport:
    """Write the report of a run folder.

    Args:
        run: what `layerswap run` or `layerswap evaluate` wrote, or a copy of it.
        formats: see `write_report`.
        out: the folder of the report; None is `report` in the run.

    Raises:
        InputError: where there is no run or none of its cells is finished, and for a format or a
            folder that is wrong.
        LayerSwapError: where the folder cannot be written; an earlier report then stays.
    """
    with as_input_errors():
        show_step(Step("reading the records"))
        content = load_run(run)
        folder = report_folder(run, out)
    return _write(content, formats, folder)


def _write(run: Run, formats: Sequence[str], folder: Path) -> WrittenReport:
    with as_input_errors():
        show_step(Step("computing tables, tests and figures"))
        report = make_report(run, draw=tuple(formats) != ("csv",))
    return WrittenReport(report, folder, write_report(report, formats, folder))


def answer_of_run(run: Run) -> str:
    """Return the answer of a run so far; empty where no cell is finished."""
    return answer_text(make_report(run, draw=False)) if run.cells else ""


def load_tables(folder: Path) -> RunTables:
    """Return the tables of a folder that `layerswap run` or `evaluate` wrote, or of a copy of it.

    Raises:
        InputError: where there is no run, one of another schema version, or a damaged record.
    """
    with as_input_errors():
        return RunTables(load_run(folder))
