"""Reports name what was merged, and show a model once."""

from pathlib import Path
from typing import Any

import pytest

from ablations.report.bottom_line import answer_text
from ablations.report.compose import compose
from ablations.report.design import merge_notes, recipe_models
from ablations.report.factors import difference, factors
from ablations.report.formats.templates import render_html, render_latex, render_markdown
from ablations.report.merged import as_merged, cell_names
from ablations.runner.records import Run, load_run, write_run_file
from tests.report.runs import same_model, study_of, write_run


def _scaled_run(folder: Path) -> Run:
    """Write a run whose counts are of 32 layers, on a model of 8; two settings are one model."""
    counts = [{"bottom_layers": b, "top_layers": u} for b, u in ((0, 0), (3, 1), (4, 1), (6, 2))]
    run = write_run(folder, study_of(vary=counts), lambda _, __: 0.0, items=20)
    study = run.study.model_copy(update={"reference_layers": 32})
    write_run_file(folder, run.head.model_copy(update={"study": study}))
    return load_run(folder)


def test_counts_are_those_of_the_model(tmp_path: Path) -> None:
    found, notes = as_merged(_scaled_run(tmp_path))
    assert [dict(setting) for setting in found.study.settings()] == [
        {"bottom_layers": 0, "top_layers": 0},
        {"bottom_layers": 1, "top_layers": 0},
        {"bottom_layers": 2, "top_layers": 1},
    ]
    assert [cell.label for cell in found.head.cells] == [
        *("layer swap b=0 u=0", "layer swap b=1 u=0", "layer swap b=2 u=1"),
    ]
    assert [cell.values for cell in found.cells] == [dict(s) for s in found.study.settings()]
    assert notes == ()
    assert as_merged(found) == (found, ())


def test_a_run_calls_its_cells_as_the_report_does(tmp_path: Path) -> None:
    run = _scaled_run(tmp_path)
    twin = "math+swahili bottom_layers=4 top_layers=1"  # of b=3 u=1: shown once, and named once
    labels = [cell.label for cell in run.head.cells]
    assert twin in labels
    names = cell_names(run.head)
    assert {*names.values()} == {cell.label for cell in as_merged(run)[0].head.cells}
    assert names["math+swahili bottom_layers=6 top_layers=2"] == "layer swap b=2 u=1"
    assert [label for label in labels if label not in names] == [twin]


@pytest.mark.parametrize("is_varied", [True, False])
def test_counts_that_give_way_to_others_are_those_of_the_plan(
    is_varied: bool, tmp_path: Path
) -> None:
    rest = {"top_layers": 2, "bottom_transition": 2}
    settings = [{"bottom_layers": b, **(rest if is_varied else {})} for b in (0, 2)]
    run = write_run(tmp_path, study_of(vary=settings), lambda _, __: 0.0, items=20)
    run = _fixed(run, tmp_path, parameters={} if is_varied else rest)
    # Two layers of 6 are 2.67 of 8, so 3; and three times 3 is more than 8.
    study = run.study.model_copy(update={"reference_layers": 6})
    found, _ = as_merged(
        run.model_copy(update={"head": run.head.model_copy(update={"study": study})})
    )
    first, second = found.study.settings()
    assert second == {"bottom_layers": 3, "top_layers": 3, "bottom_transition": 2}
    assert first == {"bottom_layers": 0, "top_layers": 3} | (
        {"bottom_transition": 3} if is_varied else {}
    )


def test_every_table_and_figure_has_the_counts_of_the_model(tmp_path: Path) -> None:
    report, _ = compose(_scaled_run(tmp_path))
    shown = repr((report.lead, report.tables, report.details, report.bottom_line))
    for name in ("b=3", "b=4", "b=6", "bottom_layers=6"):
        assert name not in shown
    assert "b=2 u=1" in shown
    assert report.merges == (
        "b, u: layers of 8 from the language expert at the bottom (embedding side) and the top.",
    )


def test_settings_that_are_one_model_stand_once_with_both_names_in_a_note(tmp_path: Path) -> None:
    settings = [
        {"suggest": True, "bottom_layers": 1, "top_layers": 0},
        {"bottom_layers": 0, "top_layers": 0},
        {"bottom_layers": 1, "top_layers": 0},
        {"seed": 0},
        {"seed": 1},
    ]
    run = write_run(tmp_path, study_of(vary=settings), lambda _, __: 0.0, items=20)
    labels = [cell.label for cell in run.cells]
    run = same_model(same_model(run, labels[0], labels[2]), labels[3], labels[4])
    found, notes = as_merged(run)
    assert [cell.label for cell in found.cells] == [
        *("layer swap suggested b=1 u=0", "layer swap b=0 u=0"),
        *("layer swap seed=0", "layer swap seed=1"),  # draws stay draws
    ]
    assert notes == ("The same model, shown once: suggested b=1 u=0; b=1 u=0.",)


def _fixed(run: Run, folder: Path, **recipe: Any) -> Run:
    """Return the run with counts of 32 layers in its recipe, which no setting has."""
    study = run.study
    changes = {"recipe": {**(study.recipe or {}), **recipe}, "reference_layers": 32}
    study = study.model_copy(update=changes)
    write_run_file(folder, run.head.model_copy(update={"study": study}))
    return load_run(folder)


def test_a_label_has_both_ends_although_one_is_constant(tmp_path: Path) -> None:
    vary = [{"bottom_layers": count} for count in (4, 7)]
    run = write_run(tmp_path, study_of(vary=vary, baseline=["soup"]), lambda _, __: 0.0, items=20)
    run = _fixed(run, tmp_path, parameters={"top_layers": 4})
    found, _ = as_merged(run)
    labels = [cell.label for cell in found.head.cells if cell.kind == "recipe"]
    assert labels == ["layer swap b=1 u=1", "layer swap b=2 u=1"]
    report, _ = compose(run)
    assert "b=1 u=1 (" in report.bottom_line[0] or "b=2 u=1 (" in report.bottom_line[0]
    forest, table = report.lead
    assert b"swap b=1 u=1" in forest.images["svg"]
    (chart,) = report.figures
    assert b"b: bottom layers from the language expert (u=1)" in chart.images["svg"]
    levels = next(each for each in report.tables if each.title == "By bottom layers")
    assert [row[1].text for row in levels.rows[:2]] == ["b=1 u=1", "b=2 u=1"]
    assert [row[0].text for row in table.rows][-2:] == ["swap b=1 u=1", "swap b=2 u=1"]


def test_the_first_screen_says_what_all_merges_share(tmp_path: Path) -> None:
    vary = [{"weighting": name} for name in ("uniform", "magnitude")]
    run = write_run(tmp_path, study_of(vary=vary, baseline=["soup"]), lambda _, __: 0.0, items=20)
    run = _fixed(run, tmp_path, parameters={"bottom_layers": 4, "top_transition": 4})
    letters = "layers of 8 from the language expert at the bottom (embedding side) and the top"
    shared = "Every merge has b=1 u=1 t_u=1."  # the default of u is 2 of 32
    report, _ = compose(run, draw=False)
    assert report.merges == (f"b, u: {letters}; t_b, t_u: averaged layers beside them.", shared)
    for render in (render_html, render_markdown):
        assert shared.replace("_", r"\_" if render is render_markdown else "_") in render(report)
    assert r"Every merge has b=1 u=1 t\_u=1." in render_latex(report)
    assert answer_text(run).endswith(shared)


@pytest.mark.parametrize(
    ("recipe", "vary"),
    [
        ({"merge_method": "linear"}, {"dtype": ["float32", "bfloat16"]}),
        ({"parameters": {"placement": "soup"}}, {"task_weight": [1.0, 2.0]}),
        ({"merge_method": "delta_revert"}, {"keep_fraction": [1.0, 0.5]}),
    ],
)
def test_merges_without_layer_counts_need_no_letters(
    recipe: dict[str, Any], vary: dict[str, Any]
) -> None:
    study = study_of(vary=vary)
    assert merge_notes(study.model_copy(update={"recipe": recipe}), 8) == ()


def test_what_sends_nothing_back_is_the_whole_expert() -> None:
    study = study_of(vary=[{"keep_fraction": 1}, {"revert_layers": "0,7"}])
    study = study.model_copy(update={"recipe": {"merge_method": "delta_revert"}})
    assert [model.short for model in recipe_models(study)] == ["whole expert", "revert_layers=0,7"]
    (factor,) = factors(study)
    assert [level.label for level in factor.levels] == ["whole expert", "revert_layers=0,7"]
    assert difference(factor, factor.levels[1])[1:3] == ("revert_layers=0,7", "whole expert")
    grid = study_of(vary={"keep_fraction": [1.0, 0.5]})  # one of several shares
    assert next(model.short for model in recipe_models(grid)) == "keep_fraction=1.0"


def test_the_primary_setting_is_found_by_its_new_counts(tmp_path: Path) -> None:
    counts = [{"bottom_layers": b, "top_layers": u} for b, u in ((3, 1), (4, 1), (6, 2))]
    primary = {"against": ["soup"], "setting": {"bottom_layers": 4, "top_layers": 1}}
    study = study_of(vary=counts, baseline=["soup"], report={"primary": primary})
    run = _fixed(write_run(tmp_path, study, lambda _, __: 0.0, items=20), tmp_path)
    run = same_model(run, run.cells[1].label, run.cells[2].label)
    assert "the layer swap b=1 u=0 " in compose(run, draw=False)[0].bottom_line[0]


def test_a_grid_stays_a_grid(tmp_path: Path) -> None:
    grid = {"placement": ["outer", "middle"], "bottom_layers": [0, 1]}
    run = write_run(tmp_path, study_of(vary=grid), lambda _, __: 0.0, items=20)
    run = same_model(run, run.cells[0].label, run.cells[2].label)
    found, notes = as_merged(run)
    assert len(found.cells) == 4
    assert notes == ()
