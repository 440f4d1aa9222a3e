import csv
import io
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ablations.report.compose import compose
from ablations.report.document import Entry, Report, Table
from ablations.report.formats import latex, markdown
from ablations.report.formats.latex import render_latex
from ablations.report.formats.markdown import render_markdown
from ablations.report.formats.page import render_html
from ablations.report.formats.sheets import lay_out
from ablations.report.writer import FORMATS, build
from ablations.runner.records import Run
from layerswap_method.errors import InputError
from tests.report.conftest import REASON
from tests.report.runs import study_of, write_run

ODD = "a_b & 50% of $x^2$ {#~} <b>|*`[x]` \\ “é” – ×"


@pytest.fixture(scope="module")
def report(grid: Run) -> Report:
    found, _ = compose(grid, published=True)
    return found


def test_markdown_tables_are_rectangles_with_every_number(report: Report) -> None:
    text = render_markdown(report)
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    tables = [*report.tables, *report.details]
    assert len(blocks) == len(tables) > 5
    for block, table in zip(blocks, tables, strict=True):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        assert {len(row) for row in rows} == {len(table.columns)}
        shown = [[cell.strip() for cell in row] for row in rows[2:]]
        assert shown == [[markdown.escape(entry.text) for entry in row] for row in table.rows]
        assert [cell.strip().endswith(":") for cell in rows[1]] == [
            not table.is_text(column) for column in range(len(table.columns))
        ]
    assert all(markdown.escape(line) in text for line in (*report.answers, *report.noise))
    heads = ["## Answers", "## What is noise", "## By bottom layers", "## Against the baselines"]
    heads += ["## Figure: ", "## Cells without a result", "## All comparisons", "## How to read"]
    places = [text.index(f"\n{head}") for head in heads]
    assert places == sorted(places)
    assert markdown.escape(report.question) in text


def test_markdown_escapes_what_it_would_take_for_syntax() -> None:
    assert markdown.escape("a_b|c*d`e<f\nLine") == r"a\_b\|c\*d\`e\<f Line"


def _unescaped(text: str, sign: str) -> int:
    return len(re.findall(rf"(?<!\\){re.escape(sign)}", text))


def _tables_of(text: str) -> list[str]:
    found = re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, flags=re.DOTALL)
    assert found
    return found


def test_latex_is_booktabs_with_as_many_columns_in_every_row(report: Report) -> None:
    text = render_latex(report)
    for table in (*report.tables, *report.details):
        assert text.count(rf"\label{{tab:grid-{table.key}}}") == 1
        shown = _shown(text, table)
        start = 1 if lay_out(table).is_grouped else 0
        for row in table.rows:
            for entry in row[start:]:
                assert latex.escape(entry.text) in shown


def _shown(text: str, table: Table) -> set[str]:
    """Return the entries of all parts of a table, each checked to be a rectangle."""
    title = rf"\textbf{{{latex.escape(table.title)}"
    blocks = [b for b in _tables_of(text) if f"{title}.}}" in b or f"{title}, continued.}}" in b]
    found: set[str] = set()
    for part in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", "".join(blocks), re.DOTALL):
        sides = re.match(r"\\begin\{tabular\}\{((?:[lr]|>\{.*?\}p\{[\d.]+em\})+)\}", part)
        assert sides is not None
        columns = len(re.sub(r">\{.*?\}p\{.*?\}", "l", sides[1]))
        rules = [part.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")]
        assert rules == sorted(rules)
        body = part[rules[1] : rules[2]].splitlines()[1:-1]
        for line in body:
            if line.strip() == r"\addlinespace":
                continue
            assert line.endswith(r" \\")
            if r"\multicolumn" in line:
                assert rf"\multicolumn{{{columns}}}{{l}}" in line
                continue
            entries = re.split(r"(?<!\\)&", line.removesuffix(r" \\"))
            assert len(entries) == columns
            found.update(entry.strip() for entry in entries)
    return found


WIDE = ("task", "over pairs", *(f"layer swap b={n} u=2" for n in range(9)))


def _wide(rows: int) -> Table:
    texts = [f"{n}0.0 [{n}5.4, {n}4.6]" for n in range(1, 10)]
    row = (Entry("pocket_translate_en_sw, bleu"), Entry("avg"), *(Entry(t, 1.0) for t in texts))
    return Table("wide", "Wide", WIDE, (row,) * rows, text_columns=2)


def test_a_wide_table_is_cut_into_panels_that_repeat_the_task() -> None:
    (page,) = lay_out(_wide(4)).pages
    assert [panel.columns for panel in page] == [
        *((0, 1, 2, 3, 4), (0, 1, 5, 6, 7), (0, 1, 8, 9, 10)),
    ]
    narrow = Table("narrow", "Narrow", ("task", "base"), ((Entry("a"), Entry("1.0", 1.0)),))
    assert [panel.columns for panel in lay_out(narrow).pages[0]] == [(0, 1)]


def test_a_long_table_goes_on_with_every_row_once() -> None:
    sheet = lay_out(_wide(100))
    assert len(sheet.pages) > 5
    for columns in {panel.columns for page in sheet.pages for panel in page}:
        rows = [p.rows for page in sheet.pages for p in page if p.columns == columns]
        assert [row for run in rows for row in run] == list(range(100))


def test_rows_that_are_read_as_a_whole_are_not_cut(report: Report) -> None:
    (table,) = [each for each in report.details if each.key == "comparisons"]
    sheet = lay_out(table)
    assert sheet.is_grouped
    assert {panel.columns for page in sheet.pages for panel in page} == {
        tuple(range(1, len(table.columns))),
    }


def test_latex_is_balanced_and_has_no_bare_special(report: Report) -> None:
    text = "\n".join(line for line in render_latex(report).splitlines() if line[:1] != "%")
    assert _unescaped(text, "{") == _unescaped(text, "}") > 50
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert sorted(opened) == sorted(re.findall(r"\\end\{(\w+)\}", text))
    assert len(re.findall(r"(?<!\\)\$", text)) == 2 * text.count(r"$\times$")
    assert _unescaped(text, "#") == _unescaped(text, "~") == _unescaped(text, "^") == 0
    # The one comment sign is the usual one at the end of \resizebox's line.
    assert all(line.endswith("!}{%") for line in text.splitlines() if _unescaped(line, "%"))
    for line in text.splitlines():
        bare = re.sub(r"\\(label|includegraphics(\[.*?\])?)\{.*?\}", "", line)
        assert _unescaped(bare, "_") == 0, line
    assert "engine died: \\textless{}b\\textgreater{}CUDA" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("name", ["grid", "nine_pairs"])
def test_latex_compiles(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    build(request.getfixturevalue(name), ["latex"], tmp_path, published=True)
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{array,booktabs,graphicx}\n"
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
    assert "Float too large" not in done.stdout
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


def test_latex_escapes_every_special() -> None:
    assert latex.escape(ODD) == (
        r"a\_b \& 50\% of \$x\textasciicircum{}2\$ \{\#\textasciitilde{}\} "
        r"\textless{}b\textgreater{}\textbar{}*`{[}x]` \textbackslash{} “é” -- $\times$"
    )


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_csv_has_a_row_per_cell_and_score_that_reads_back_exactly(
    grid: Run, report_folder: Path
) -> None:
    out = report_folder / "csv"
    written = build(grid, ["csv"], out)
    assert [path.name for path in written] == ["scores.csv", "comparisons.csv"]
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
    assert gaps["math+swahili b=1 u=1"] == ("failed", REASON, "")
    assert gaps["math+swahili b=2 u=0"] == ("not run", "", "")


def test_csv_of_comparisons_has_what_the_tables_round(grid: Run, report_folder: Path) -> None:
    build(grid, ["csv"], report_folder / "csv2")
    _, comparisons = compose(grid, draw=False)
    rows = _rows(report_folder / "csv2" / "comparisons.csv")
    assert len(rows) == len(comparisons) > 4
    for row, each in zip(rows, comparisons, strict=True):
        assert each.outcome is not None
        assert float(row["difference"]) == each.outcome.difference
        assert float(row["p_holm"]) == each.p_holm
        assert (row["first"], row["second"]) == (each.contrast.first, each.contrast.second)


class _Page(HTMLParser):
    """Collects what a page would load, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.loads += [named[name] or "" for name in ("src", "action", "data") if name in named]
        if tag in ("link", "a"):
            self.loads.append(named.get("href") or "")
        self.ids += [named["id"] or ""] if "id" in named else []
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "link", "br"):
            assert self.open.pop() == tag


def test_the_page_is_one_file_with_the_question_over_each_table(report: Report) -> None:
    text = render_html(report)
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == ["data:,"]
    assert len(page.ids) == len(set(page.ids)) > 20
    question = "Does it matter? &lt;b&gt; &amp; 100 % of $x_1$"
    ours = [table for table in report.tables if not table.is_reference]
    assert text.count(f'<p class="question">{question}</p>') == len(ours) + 1
    assert text.count("<svg ") == len(report.figures) == 3
    assert "&lt;b&gt;CUDA&lt;/b&gt;" in text
    assert "<b>" not in text


def test_every_format_is_written_and_the_second_time_the_same(
    grid: Run, report_folder: Path
) -> None:
    first, second = report_folder / "first", report_folder / "second"
    written = build(grid, FORMATS, first, published=True)
    build(grid, FORMATS, second, published=True)
    names = sorted(path.relative_to(first).as_posix() for path in written)
    assert {"report.md", "report.html", "tables.tex", "scores.csv", "comparisons.csv"} < set(names)
    found = sorted(p.relative_to(first).as_posix() for p in first.rglob("*") if p.is_file())
    assert names == found
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_only_what_is_asked_is_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", study_of(), lambda _, __: 0.0, items=10)
    out = tmp_path / "html"
    assert [path.name for path in build(run, ["html"], out)] == ["report.html"]
    assert [path.name for path in out.iterdir()] == ["report.html"]


def test_an_unknown_format_names_the_nearest(grid: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no format 'htm'; did you mean 'html'"):
        build(grid, ["htm"], tmp_path)


def test_without_matplotlib_the_report_says_so(
    grid: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written = build(grid, ["md", "html"], tmp_path)
    assert [path.name for path in written] == ["report.md", "report.html"]
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Figures are left out: matplotlib is not installed: pip install 'layerswap" in text
    assert "![" not in text
