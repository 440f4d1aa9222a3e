"""Reports name what was merged, and show a model once."""

from pathlib import Path

from ablations.report.compose import compose
from ablations.report.merged import as_merged
from ablations.runner.records import Run, load_run, write_run_file
from tests.report.runs import same_model, study_of, write_run


def _scaled_run(folder: Path) -> Run:
    """Write a run whose counts are of 32 layers, on a model of 8; two settings are one model."""
    counts = [{"bottom_layers": b, "top_layers": u} for b, u in ((0, 0), (3, 1), (4, 1), (8, 4))]
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


def test_every_table_and_figure_has_the_counts_of_the_model(tmp_path: Path) -> None:
    report, _ = compose(_scaled_run(tmp_path))
    shown = repr((report.lead, report.tables, report.details, report.bottom_line))
    for name in ("b=3", "b=4", "b=8", "bottom_layers=8"):
        assert name not in shown
    assert "b=2 u=1" in shown
    assert any("of 8 from the language expert" in note for note in report.notes)


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


def test_a_grid_stays_a_grid(tmp_path: Path) -> None:
    grid = {"placement": ["outer", "middle"], "bottom_layers": [0, 1]}
    run = write_run(tmp_path, study_of(vary=grid), lambda _, __: 0.0, items=20)
    run = same_model(run, run.cells[0].label, run.cells[2].label)
    found, notes = as_merged(run)
    assert len(found.cells) == 4
    assert notes == ()
