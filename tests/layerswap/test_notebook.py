"""docs/notebook.ipynb as a notebook runs it: every cell, the last value of each as it is shown."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def shown(source, names):
    """Run a cell and return what a notebook shows: HTML where the last value has some."""
    module = ast.parse(source)
    *statements, last = module.body
    if not isinstance(last, ast.Expr):
        statements, last = module.body, None
    exec(compile(ast.Module(statements, []), str(NOTEBOOK), "exec"), names)
    if last is None:
        return ""
    value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
    page = getattr(value, "_repr_html_", None)
    return repr(value) if page is None else page()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_cell_of_the_notebook_runs(tiny_pocket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "pocket").symlink_to(tiny_pocket.root)
    names = {}
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    plan, scores, compared, run, grid, answers, report = [
        shown("".join(cell["source"]), names) for cell in code
    ]
    assert plan.startswith("<svg")
    for table in (scores, compared, grid, answers):
        assert table.count("<table") == 1
    assert run.count("<table") == 2  # its comparisons are folded
    assert "<th>0</th>" in grid  # layers are whole numbers
    assert "How many layers of the language expert" in run
    assert names["run"].failures == {}
    assert len(names["answers"]) == 20
    assert "report.html" in report
    assert len(names["run"].means.dropna(subset="bottom_layers")) == 4


def test_the_notebook_is_one_that_others_can_open():
    """It has the keys of nbformat 4.5, and no output that could be out of date."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells) > 8
    for cell in cells:
        keys = {"cell_type", "id", "metadata", "source"}
        is_code = cell["cell_type"] == "code"
        assert set(cell) == keys | ({"execution_count", "outputs"} if is_code else set())
        assert not cell.get("outputs")
