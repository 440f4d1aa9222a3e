"""What a search found, read from its folder: its rounds, the held-out comparison, the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ablations.drawing.canvas import can_draw, new_canvas
from ablations.drawing.colors import COLORS, SAME_COLOR, ZERO_COLOR
from ablations.drawing.text_table import terminal_width, text_table, wrapped
from ablations.report.analysis import analyse
from ablations.report.comparisons import BETTER, estimate_of, rows_of
from ablations.report.figure_layout import SMALL_PT, WIDTH_IN, Figure, draw_figure
from ablations.report.run_tables import RunTables, WrittenReport, answer_html
from ablations.report.shown_tasks import ShownTasks
from ablations.report.tables import table
from ablations.report.write import FORMATS, Report, make_report, report_folder, write_report
from ablations.runs.records import HELD_OUT, RUN_FILE, SEARCH_FILE, as_input_errors
from ablations.runs.run import Run, load_run
from ablations.search.plan import COMPARATORS, Search, read_file, read_search
from ablations.search.rounds import FINALISTS, Bound, best_first
from ablations.statistics.as_text import p_text, percent, points, with_interval
from ablations.study.wording import kind_text
from ablations.tasks.names import task_name
from layerswap_method.errors import InputError, counted
from layerswap_method.frozen import Frozen

ROUNDS_FILE = "rounds.json"

_BIASED = "scores on the items that choose are too high for what they chose"
_RIVALS = tuple(kind_text(kind) for kind in COMPARATORS if kind != "base")
"""Names of the comparators that the finalists are tested against."""


class Progress(Frozen):
    """How many rounds a search has, and its rate; known after its first round."""

    rounds: int
    budget: float | None
    """Minutes that were allowed."""

    seconds_of_answer: float | None
    """None where all answers so far were stored before."""

    seconds_of_load: float | None

    def minutes(self, part: Bound) -> float | None:
        """Return how long a part of the search takes at most; None where that is not known."""
        if self.seconds_of_answer is None or self.seconds_of_load is None:
            return None
        return (part.answers * self.seconds_of_answer + part.loads * self.seconds_of_load) / 60

    def too_small_text(self, parts: Sequence[Bound]) -> str:
        """Return that the budget is too small for one round and the report, of these `parts`."""
        least = self.minutes(parts[0] + parts[-1]) or 0.0
        return (
            f"The budget of {self.budget:g} minutes is too small: one round and the report take "
            f"{least:.2g} by the rate of the base, which alone was asked; give --budget more, or "
            "write fewer search.rounds, items (--limit) or settings"
        )

    def cut_text(self, rounds: int) -> str:
        """Return that the budget has cut some of `rounds`."""
        return (
            f"The budget of {self.budget:g} minutes leaves {self.rounds} of "
            f"{counted(rounds, 'round')}: fewer items have chosen."
        )


def round_folder(out: Path, number: int) -> Path:
    """Return the run folder of a round, from 1."""
    return out / f"round_{number}"


def read_progress(out: Path) -> Progress | None:
    """Return the progress of a search; None before its first round has ended.

    Raises:
        InputError: where its file cannot be read.
    """
    return read_file(out / ROUNDS_FILE, Progress)


def scores_of_round(search: Search, run: Run, number: int, *, is_last: bool) -> pd.DataFrame:
    """Return a row for every model of a round, the candidates best first, then the comparators.

    Columns: ``round``, ``items``, ``model``, ``score`` (on the task that chooses, on the items so
    far: biased), ``lost`` (points below a floor; 0 for none), ``is_comparator``, ``goes_on``.
    """
    one = search.rounds[number - 1]
    shown = analyse(run).shown
    names = {m.label: getattr(search.candidate(m), "name", m.label) for m in run.models}
    candidates = {m.label for m in run.models if m.kind == "recipe"}
    scores = {names[label]: _mean(shown, search.choose, label) for label in names}
    lost = dict.fromkeys(scores, 0.0)
    for task, most in search.floors.items():
        sign = _sign(shown, task)
        means = {label: sign * _mean(shown, task, label) for label in names}
        best = max(means[kind_text(kind)] for kind in ("task_expert", "language_expert"))
        for label, mean in means.items():
            lost[names[label]] += max(0.0, 100 * (best - mean) - most)
    higher = _sign(shown, search.choose) > 0
    named = {names[label]: scores[names[label]] for label in names if label in candidates}
    ranked = best_first(named, higher=higher, lost=lost)
    kept = ranked[: min(one.kept, FINALISTS) if is_last else one.kept]
    rivals = [names[label] for label in names if label not in candidates]
    return pd.DataFrame(
        {
            "round": number,
            "items": one.items,
            "model": name,
            "score": scores[name],
            "lost": lost[name],
            "is_comparator": name in rivals,
            "goes_on": name in rivals or name in kept,
        }
        for name in (*ranked, *rivals)
    )


def survivors(scores: pd.DataFrame) -> list[str]:
    """Return the candidates that go on, the best first; `scores` are of one round."""
    return list(scores[scores["goes_on"] & ~scores["is_comparator"]]["model"])


def _mean(shown: ShownTasks, task: str, label: str) -> float:
    estimate = estimate_of(rows_of(shown.matrices[task], [label], ""))
    return float("nan") if estimate is None else estimate.mean


def _sign(shown: ShownTasks, task: str) -> int:
    return 1 if bool(shown.metrics["higher_is_better"][task]) else -1


@dataclass(frozen=True)
class SearchResult:
    """A search, finished or not; as text it is question, answer and held-out scores."""

    folder: Path
    search: Search
    progress: Progress | None
    rounds: pd.DataFrame
    """A row for each model of each round; see `scores_of_round`. Its scores are biased: what was
    chosen by them is worse on other items."""

    run: RunTables | None
    """The run on the items that did not choose, an ordinary one; None before it has ended."""

    @property
    def finalists(self) -> tuple[str, ...]:
        """The settings that answered the items that report, the winner of the rounds first."""
        if self.run is None:
            return ()
        last = self.rounds[self.rounds["round"] == self.rounds["round"].max()]
        return tuple(survivors(last))

    @property
    def rival(self) -> str:
        """The comparator with the best score on the items that choose: the one to beat."""
        last = self.rounds[self.rounds["round"] == self.rounds["round"].max()]
        scores = last[last["model"].isin(_RIVALS)].set_index("model")["score"]
        return str(scores.idxmax() if self._sign > 0 else scores.idxmin())

    @property
    def comparisons(self) -> pd.DataFrame:
        """The held-out comparisons of finalists and comparators, as in a run; none before them.

        Those with ``family`` primary are corrected together by Holm's method.
        """
        return pd.DataFrame() if self.run is None else self.run.comparisons

    @property
    def scores(self) -> pd.DataFrame:
        """The held-out scores, as the `means` of a run; none before them."""
        return pd.DataFrame() if self.run is None else self.run.means

    @property
    def taken(self) -> str | None:
        """What to take: a setting shown to be better than `rival`, else `rival`; None before."""
        if self.run is None:
            return None
        shown = (name for name in self.finalists if self._is_shown(name))
        return next(shown, self.rival)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer."""
        return tuple(self._sentences())

    def report(self, out: Path | None = None, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
        """Write the report, to the folder `report` in the search unless `out` is another.

        Returns its files, those to read first.
        """
        return report_search(self, formats, out).files

    def __repr__(self) -> str:
        return f"SearchResult({str(self.folder)!r})"

    def __str__(self) -> str:
        lines = [self.search.study.question, *self.sentences]
        text = "\n".join(wrapped(line, indent="  ") for line in lines)
        return text if self.run is None else f"{text}\n\n{self._scores_text()}"

    def _repr_html_(self) -> str:
        warnings = () if self.run is None else self.run.warnings
        parts = [*answer_html(self.search.study.question, warnings, self.sentences)]
        if self.run is not None:
            heads, cells = self._scores_table()
            parts.append(pd.DataFrame(cells, columns=heads).to_html(index=False, border=0))
        return "\n".join(parts)

    def _scores_text(self) -> str:
        return text_table(*self._scores_table(), width=min(100, terminal_width() or 100))

    def _scores_table(self) -> tuple[list[str], list[list[str]]]:
        """Return heads and rows of the held-out scores: finalists, then comparators."""
        assert self.run is not None
        frame, tasks = self.scores, (self.search.report, *self.search.floors)
        rows = {(row["model"], row["task"]): row for row in frame.to_dict("records")}
        names = (*self.finalists, *_RIVALS, kind_text("base"))
        cells = [
            [name, *(_score_text(rows[name, task]) for task in tasks)]
            for name in names
            if (name, tasks[0]) in rows
        ]
        return ["held-out score", *map(task_name, tasks)], cells

    @cached_property
    def _sign(self) -> int:
        with as_input_errors():
            shown = analyse(load_run(round_folder(self.folder, 1))).shown
        return _sign(shown, self.search.choose)

    def _row(self, name: str, rival: str, task: str) -> dict[str, Any]:
        """Return a held-out comparison; its difference is above 0 where `name` is better."""
        frame = self.comparisons
        is_it = frame["first"].eq(name) & frame["second"].eq(rival) & frame["task"].eq(task)
        row: dict[str, Any] = frame[is_it].iloc[0].to_dict()
        if not row["higher_is_better"]:
            row |= {
                "difference": -row["difference"],
                "low": -row["high"],
                "high": -row["low"],
            }
        return row

    def _is_shown(self, name: str) -> bool:
        row = self._row(name, self.rival, self.search.report)
        floors = (self._floor(name, task) for task in self.search.floors)
        return row["verdict"] == BETTER and all(high >= -most for _, (_, _, high), most in floors)

    def _floor(self, name: str, task: str) -> tuple[str, tuple[float, float, float], float]:
        """Return the better expert on a floor's task, the difference to it, and the floor."""
        experts = [kind_text(kind) for kind in ("task_expert", "language_expert")]
        rows = {expert: self._row(name, expert, task) for expert in experts}
        expert = min(rows, key=lambda one: rows[one]["difference"])
        row = rows[expert]
        numbers = tuple(100 * row[column] for column in ("difference", "low", "high"))
        difference, low, high = numbers
        return expert, (difference, low, high), self.search.floors[task]

    def _sentences(self) -> Iterator[str]:
        search = self.search
        if self.run is None:
            yield "The search has not ended; run its command again to go on."
            return
        task, rival, taken = search.report, self.rival, self.taken
        row = self._row(self.finalists[0], rival, task)
        where = f"{row['items']:.0f} items of {task_name(task)} that did not choose"
        if taken == rival:
            yield f"No setting was shown to be better than the {rival}; take the {rival}."
        else:
            assert taken is not None
            yield f"Take {taken}: on {where} it {self._against(taken, rival)}."
        for name in self.finalists:
            if name != taken:
                yield f"On {where}, {name} {self._against(name, rival)}."
        for name in self.finalists:
            others = [
                other
                for other in _RIVALS
                if other != rival and self._row(name, other, task)["verdict"] == BETTER
            ]
            if others:
                yield f"{name} was shown to be better than the {' and the '.join(others)}."
        for floor in search.floors:
            for name in self.finalists:
                yield self._floor_text(name, floor)
        yield (
            f"Of soup and experts the {rival} had the best score on the items that choose, so it "
            "is the one to beat: a choice, and no result."
        )
        progress = self.progress
        if progress is not None and progress.rounds < len(search.rounds):
            yield progress.cut_text(len(search.rounds))
        yield from search.notes

    def _against(self, name: str, rival: str) -> str:
        row = self._row(name, rival, self.search.report)
        shown = "is better than" if row["verdict"] == BETTER else "was not shown to beat"
        return (
            f"{shown} the {rival}: {points(row['difference'])} points "
            f"[{points(row['low'])}, {points(row['high'])}], corrected p = {p_text(row['p_holm'])}"
        )

    def _floor_text(self, name: str, task: str) -> str:
        expert, (difference, low, high), most = self._floor(name, task)
        verdict = "is not shown to keep"
        if low >= -most:
            verdict = "keeps"
        elif high < -most:
            verdict = "does not keep"
        return (
            f"{name} {verdict} its floor on {task_name(task)}, at most {most:g} points below the "
            f"{expert}: the difference is {difference:+.1f} [{low:+.1f}, {high:+.1f}]."
        )


def _score_text(row: Mapping[str, Any]) -> str:
    interval = None if pd.isna(row["low"]) else (row["low"], row["high"])
    return with_interval(row["value"], interval, row["is_share"])


def load_search(folder: Path) -> SearchResult:
    """Return a search from its folder, finished or not.

    Raises:
        InputError: where there is none, or a file of it cannot be read.
    """
    search, progress = read_search(folder), read_progress(folder)
    if search is None:
        raise InputError(f"{folder}: no {SEARCH_FILE} in it, so it is not the folder of a search")
    frames, last = list[pd.DataFrame](), len(search.rounds) if progress is None else progress.rounds
    with as_input_errors():
        for number in range(1, last + 1):
            if not (round_folder(folder, number) / RUN_FILE).is_file():
                break
            run = load_run(round_folder(folder, number))
            if run.unfinished:
                break
            frames.append(scores_of_round(search, run, number, is_last=number == last))
        held_out = None
        if len(frames) == last and (folder / HELD_OUT / RUN_FILE).is_file():
            found = load_run(folder / HELD_OUT)
            held_out = None if found.unfinished else RunTables(_renamed(found, search))
    rounds = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    return SearchResult(folder.absolute(), search, progress, rounds, held_out)


def _renamed(run: Run, search: Search) -> Run:
    """Return a run in which settings have the names that they have in the search."""
    models = []
    for model in run.models:
        candidate = search.candidate(model) if model.kind == "recipe" else None
        label = model.label if candidate is None else candidate.name
        models.append(model.model_copy(update={"label": label}))
    head = run.head.model_copy(update={"models": tuple(models)})
    return replace(run, head=head)


def report_search(
    result: SearchResult, formats: Sequence[str] = FORMATS, out: Path | None = None
) -> WrittenReport:
    """Write the report of a search: that of its held-out run, with the rounds.

    Raises:
        InputError: for a search that has not ended, or a format or a folder that is wrong.
    """
    if result.run is None:
        raise InputError(f"{result.folder}: {result.sentences[0]}")
    with as_input_errors():
        report = search_report(result, draw=tuple(formats) != ("csv",))
    folder = report_folder(result.folder, out)
    return WrittenReport(report, folder, write_report(report, formats, folder))


def search_report(result: SearchResult, *, draw: bool = True) -> Report:
    """Return the report of a search that has ended."""
    assert result.run is not None
    report = make_report(result.run.run, draw=draw)
    figures = [*report.figures]
    if draw and can_draw():
        figures.insert(1, rounds_figure(result))
    return report._replace(
        question=result.search.study.question,
        sentences=result.sentences,
        figures=figures,
        tables=[*report.tables, rounds_table(result)],
    )


def rounds_table(result: SearchResult) -> pd.DataFrame:
    """Return who was dropped when, by which scores."""
    rows = [
        {
            "model": row["model"],
            "round": str(row["round"]),
            "items": str(row["items"]),
            "score (biased)": percent(row["score"]),
            "points below a floor": f"{row['lost']:.1f}" if row["lost"] else "",
            "": "comparator"
            if row["is_comparator"]
            else "goes on"
            if row["goes_on"]
            else "dropped",
        }
        for row in result.rounds.to_dict("records")
    ]
    frame = pd.DataFrame(rows)
    if not result.search.floors:
        frame = frame.drop(columns="points below a floor")
    task = task_name(result.search.choose)
    return table(frame, "rounds", "Rounds", f"{task}, in percent; {_BIASED}.")


def rounds_figure(result: SearchResult) -> Figure:
    """Draw the scores of all models over the rounds, and where each was dropped."""
    frame, finalists = result.rounds, result.finalists

    def draw() -> Any:
        canvas = new_canvas(WIDTH_IN, 3.6)
        axes = canvas.subplots()
        for name, rows in frame.groupby("model", sort=False):
            at, score = rows["items"], 100 * rows["score"]
            style: dict[str, Any] = {"color": ZERO_COLOR, "lw": 0.8, "alpha": 0.6}
            if rows["is_comparator"].iloc[0]:
                style = {"color": SAME_COLOR, "lw": 1, "ls": _DASHES[len(axes.texts) % 4]}
            elif name in finalists:
                color = COLORS[1 + finalists.index(str(name))]
                style = {"color": color, "lw": 1.8, "label": name}
            axes.plot(at, score, marker=".", **style)
            if rows["is_comparator"].iloc[0]:
                axes.annotate(name, (at.iloc[-1], score.iloc[-1]), fontsize=SMALL_PT)
            elif name not in finalists:
                axes.plot(at.iloc[-1], score.iloc[-1], "x", color=ZERO_COLOR, ms=5)
        axes.set_xticks(sorted({*frame["items"]}))
        axes.set_xlabel("items that choose")
        axes.set_ylabel("score in percent (biased)")
        axes.set_title(task_name(result.search.choose), loc="left", fontweight="bold")
        # Below the axes: to search the best place in them takes long with many lines.
        canvas.legend(loc="outside lower left", frameon=False, fontsize=SMALL_PT)
        return canvas

    dropped = frame[~frame["goes_on"]]["model"].nunique()
    return draw_figure(
        "rounds",
        "The rounds",
        f"Scores on the items so far; {_BIASED}. Coloured: settings that reported; grey, ending in "
        "×: dropped after that round; blue: comparators, which are never dropped.",
        f"Scores of {frame['model'].nunique()} models over {frame['round'].nunique()} rounds; "
        f"{dropped} were dropped, {', '.join(finalists)} reported.",
        draw,
    )


_DASHES = ("--", "-.", ":", (0, (5, 1)))
