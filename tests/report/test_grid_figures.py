"""Maps and curves of the grid of a study."""

import re

from ablations.report.write import make_report, render_latex, render_markdown
from tests.report.runs import level, study_of, write_run


def test_lower_is_better_where_it_is(nine_settings, tmp_path):
    """Perplexity has no values of items: a map without marks, the lowest the darkest."""
    evaluate = nine_settings.study.evaluate.model_copy(update={"tasks": ("perplexity_sw",)})
    study = nine_settings.study.model_copy(update={"evaluate": evaluate})
    report = make_report(write_run(tmp_path, study, level, items=5))
    assert [figure.key for figure in report.figures] == ["map"]
    assert "Star" not in report.figures[0].caption
    assert "to-best" not in [table.attrs["key"] for table in report.tables]


def test_figures_of_grids_stand_in_every_format(nine_settings):
    report = make_report(nine_settings)
    (figure,) = (each for each in report.figures if each.key == "map")
    assert figure.title == "Score by bottom layers (b) and top layers (u)"
    assert "corrected for all pairs of models" in figure.caption
    assert "5 of the other 8 settings cannot be told" in figure.alt
    assert "](figures/map.svg)" in render_markdown(report)
    text = rf"\includegraphics[width={min(1, figure.share):.3f}\linewidth]{{figures/map.pdf}}"
    assert text in render_latex(report)


def test_a_third_parameter_has_a_map_for_each_value(tmp_path):
    vary = {
        "bottom_layers": [0, 1, 2],
        "layer_norms": ["block", "average"],
        "top_layers": [0, 1, 2],
    }
    report = make_report(write_run(tmp_path, study_of(vary=vary), level, items=20))
    maps = [figure.title for figure in report.figures if figure.key.startswith("map")]
    title = "Score by bottom layers (b) and top layers (u); layer norms: "
    assert maps == [title + "block", title + "average"]


def test_one_number_that_varies_has_a_curve(tmp_path):
    study = study_of(vary={"bottom_layers": [0, 1, 2, 3]}, baseline=["base", "soup"])
    report = make_report(write_run(tmp_path, study, level, items=40))
    (curve,) = (figure for figure in report.figures if figure.key == "curve")
    svg = curve.images["svg"].decode()
    assert [n for n in range(5) if f"<!-- {n} -->" in svg][:4] == [0, 1, 2, 3]
    for text in ("bottom layers (b)", "base", "soup", "math, Swahili, exact match"):
        assert f"<!-- {text} -->" in svg


def test_a_win_is_over_the_rivals_of_a_merges_own_experts(tmp_path):
    """Each setting has other experts, so other baselines."""
    study = study_of(
        vary={"experts.task": [["math"], ["hot"]], "bottom_layers": [0, 1, 2]},
        baseline=["task_expert"],
        evaluate={"tasks": ["pocket_math_sw"]},
    )

    def ability(cell, task):
        return 2.0 if cell.values.get("bottom_layers") == 1 else -1.0

    (figure,) = (
        each
        for each in make_report(write_run(tmp_path, study, ability, items=200)).figures
        if each.key == "map"
    )
    assert len(re.findall(r"<!-- ★?▲ -->", figure.images["svg"].decode())) == 2
    assert "▲: better than all rivals of its own experts (" in figure.caption
