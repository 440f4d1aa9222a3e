import csv
import io
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ablations.report.compose import compose
from ablations.report.document import Entry, Report, Table
from ablations.report.formats.columns import blocks
from ablations.report.formats.templates import (
    escape_latex,
    escape_markdown,
    render_html,
    render_latex,
    render_markdown,
)
from ablations.report.writer import MANIFEST, build
from ablations.runner.records import Run
from layerswap_method.errors import LayerSwapError
from tests.report.conftest import REASON
from tests.report.runs import study_of, write_run

NO_LATEX = "pdflatex is not installed (Debian: apt-get install texlive-latex-recommended)"
ODD = "a_b & 50% of $x^2$ {#~} <b>|*`[x]` \\ “é” – ×"


@pytest.fixture(scope="module")
def report(grid: Run) -> Report:
    found, _ = compose(grid, published=True)
    return found


def _tables(report: Report) -> list[Table]:
    return [part for part in (*report.lead, *report.parts) if isinstance(part, Table)]


def test_markdown_tables_are_rectangles_with_every_number(report: Report) -> None:
    text = render_markdown(report)
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    tables = _tables(report)
    assert len(blocks) == len(tables) > 5
    for block, table in zip(blocks, tables, strict=True):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        assert {len(row) for row in rows} == {len(table.columns)}
        shown = [[cell.strip() for cell in row] for row in rows[2:]]
        assert shown == [[escape_markdown(entry.text) for entry in row] for row in table.rows]
        assert [cell.strip().endswith(":") for cell in rows[1]] == [
            not table.is_text(column) for column in range(len(table.columns))
        ]
    assert all(escape_markdown(line) in text for line in (*report.bottom_line, *report.noise))
    heads = ["## Bottom line", "## Figure: ", "## Scores", "## By bottom layers"]
    heads += ["## Against the baselines", "## What is noise", "## Cells without a result"]
    heads += ["## All comparisons", "## All cells", "## How to read", "## About this run"]
    places = [text.index(f"\n{head}") for head in heads]
    assert places == sorted(places)
    assert escape_markdown(report.question) in text


def test_latex_is_booktabs_with_every_entry_in_rows_as_wide_as_the_head(report: Report) -> None:
    text = render_latex(report)
    found = re.findall(r"\\begin\{longtable\}.*?\\end\{longtable\}", text, flags=re.DOTALL)
    for table in _tables(report):
        title = rf"\textbf{{{escape_latex(table.title)}"
        parts = [part for part in found if f"{title}.}}" in part or f"{title}, continued." in part]
        assert "".join(parts).count(rf"\label{{tab:grid-{table.key}}}") == 1
        entries: set[str] = set()
        for part in parts:
            rows = [
                [entry.strip() for entry in re.split(r"(?<!\\)&", line.removesuffix(r" \\"))]
                for line in part[part.index(r"\toprule") :].splitlines()
                if line.endswith(r" \\")
            ]
            assert {len(row) for row in rows} == {part.count(r"\arraybackslash")}
            entries |= {entry for row in rows for entry in row}
            entries |= set(re.findall(r"\\textit\{(.*)\}\}", part))
        assert {escape_latex(entry.text) for row in table.rows for entry in row} <= entries


def test_a_wide_table_is_cut_into_blocks_that_repeat_the_labels() -> None:
    numbers = [Entry(f"{n}0.0 [{n}5.4, {n}4.6]", 1.0) for n in range(1, 10)]
    row = (Entry("pocket_translate_en_sw, bleu"), Entry("avg"), *numbers)
    heads = ("task", "over pairs", *(f"layer swap b={n} u=2" for n in range(9)))
    wide = Table("wide", "Wide", heads, (row,), text_columns=2)
    assert [block.columns for block in blocks(wide)] == [
        *((0, 1, 2, 3, 4), (0, 1, 5, 6, 7), (0, 1, 8, 9, 10)),
    ]
    record = replace(wide, is_record=True)
    (block,) = blocks(record)
    assert block.columns == tuple(range(11))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason=NO_LATEX)
@pytest.mark.parametrize("name", ["grid", "nine_pairs"])
def test_latex_compiles(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    build(request.getfixturevalue(name), ["latex"], tmp_path, published=True)
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{array,booktabs,graphicx,longtable}\n"
        "\\begin{document}\n\\input{tables.tex}\n\\end{document}\n"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


def test_latex_escapes_every_special_and_breaks_long_words() -> None:
    assert escape_latex(ODD) == (
        r"a\_b \& 50\% of \$x\textasciicircum{}2\$ \{\#\textasciitilde{}\} "
        r"\textless{}b\textgreater{}\textbar{}*`{[}x]` \textbackslash{} “é” -- $\times$"
    )
    assert escape_latex("32.4 [28.9, 35.8]") == "32.4 {[}28.9,~35.8]"
    broken = escape_latex(f"pocket_translate_en {'x' * 40}").replace(r"\penalty500{}", "|")
    assert broken == rf"pocket\_|translate\_|en {'x' * 15}|{'x' * 15}|{'x' * 10}"


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_csv_has_a_row_per_cell_and_score_that_reads_back_exactly(
    grid: Run, report_folder: Path
) -> None:
    out = report_folder / "csv"
    written = build(grid, ["csv"], out)
    assert [path.name for path in written.files] == ["scores.csv", "comparisons.csv"]
    rows = _rows(out / "scores.csv")
    done = [row for row in rows if row["state"] == "done"]
    assert len(done) == sum(len(cell.scores) for cell in grid.cells)
    scores = {(c.weights_key, s.task): (c, s) for c in grid.cells for s in c.scores}
    for row in done:
        cell, score = scores[row["weights"], row["task"]]
        assert float(row["value"]) == score.value
        assert score.interval is not None
        assert (float(row["low"]), float(row["high"])) == (score.interval.low, score.interval.high)
        assert row["interval"] == "wilson"
        assert row["bottom_layers"] == str(cell.values.get("bottom_layers", ""))
        assert row["language_expert"] == cell.experts.get("language", "")
    gaps = {row["label"]: (row["state"], row["reason"], row["value"]) for row in rows}
    assert gaps["math+swahili bottom_layers=1 top_layers=1"] == ("failed", REASON, "")
    assert gaps["math+swahili bottom_layers=2 top_layers=0"] == ("not run", "", "")


def test_csv_of_comparisons_has_what_the_tables_round(grid: Run, report_folder: Path) -> None:
    build(grid, ["csv"], report_folder / "csv2")
    _, comparisons = compose(grid, draw=False)
    rows = _rows(report_folder / "csv2" / "comparisons.csv")
    assert len(rows) == len(comparisons) > 4
    for row, each in zip(rows, comparisons, strict=True):
        assert each.outcome is not None
        assert float(row["difference"]) == each.outcome.difference
        assert row["p_holm"] == ("" if each.p_holm is None else str(each.p_holm))
        assert row["primary"] == str(each.p_holm is not None).lower()
        assert int(row["chosen_on"]) == each.contrast.chosen_on
        assert (row["first"], row["second"]) == (each.contrast.first, each.contrast.second)


def test_the_page_is_one_file_with_the_question_over_each_table(report: Report) -> None:
    text = render_html(report)
    assert re.findall(r'\b(?:src|href|action|data)="([^#"][^"]*)"', text) == ["data:,"]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) > 20
    question = "Does it matter? &lt;b&gt; &amp; 100 % of $x_1$"
    ours = [table for table in report.tables if not table.is_reference]
    assert text.count(f'<p class="question">{question}</p>') == len(ours) + 1
    assert text.count("<svg ") == len(report.figures) == 3
    assert "&lt;b&gt;CUDA&lt;/b&gt;" in text
    assert "<b>" not in text


def test_only_what_is_asked_is_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", study_of(), lambda _, __: 0.0, items=10)
    out = tmp_path / "html"
    assert [path.name for path in build(run, ["html"], out).files] == ["report.html"]
    assert sorted(path.name for path in out.iterdir()) == [MANIFEST, "report.html"]


def test_without_matplotlib_the_report_says_so(
    grid: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written = build(grid, ["md", "html"], tmp_path)
    assert [path.name for path in written.files] == ["report.html", "report.md"]
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Figures are left out: matplotlib is not installed: pip install 'layerswap" in text
    assert "![" not in text


def test_files_of_an_earlier_report_go_and_other_files_stay(grid: Run, tmp_path: Path) -> None:
    out = tmp_path / "report"
    first = build(grid, ["md", "csv", "html"], out)
    (out / "notes.txt").write_text("mine")
    (out / "figures" / "mine.svg").write_text("mine")
    second = build(grid, ["html"], out)
    left = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert left == {MANIFEST, "report.html", "notes.txt", "figures/mine.svg"}
    assert len(first.files) > len(second.files) == 1


def test_a_list_of_files_that_leads_out_of_the_folder_removes_nothing(
    grid: Run, tmp_path: Path
) -> None:
    out, other = tmp_path / "report", tmp_path / "precious.txt"
    out.mkdir()
    other.write_text("mine")
    (out / MANIFEST).write_text('["../precious.txt", "figures/../../precious.txt", 3]')
    build(grid, ["csv"], out)
    assert other.read_text() == "mine"


def test_a_report_that_fails_leaves_the_earlier_one(
    grid: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report"
    build(grid, ["csv"], out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ablations.report.writer.write_bytes", full)
    with pytest.raises(LayerSwapError, match="No space left"):
        build(grid, ["csv", "html"], out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
