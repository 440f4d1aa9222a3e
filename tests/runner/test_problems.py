"""Broken evaluations are found and said first."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablations.report.write import make_report, render_html, render_markdown
from ablations.runner.problems import evaluation_problems
from ablations.runner.records import Run, load_run, write_record
from ablations.scoring.records import Evaluation
from tests.report.runs import study_of, write_run

TASK = "pocket_math_sw"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    study = study_of(baseline=["soup"], vary={"bottom_layers": [0, 1]})
    return write_run(tmp_path, study, lambda _, __: 0.0, items=20)


def _changed(
    run: Run,
    samples: Callable[[dict[str, Any], int], None] = lambda sample, place: None,
    scores: Callable[[list[dict[str, Any]]], None] = lambda scores: None,
    cells: int = 99,
) -> Run:
    """Return the run with the records of `TASK` of the first `cells` cells rewritten."""
    for cell in run.cells[:cells]:
        record = next(each for each in cell.tasks if each.task == TASK)
        document = record.evaluation.model_dump(mode="json")
        scores(document["scores"])
        rows = [sample.model_dump(mode="json") for sample in record.samples()]
        for place, row in enumerate(rows):
            row["responses"] = ["7 \u2028 ."]
            samples(row, place)
        evaluation = Evaluation.model_validate({**document, "samples": rows})
        write_record(run.path, record.model_copy(update={"evaluation": evaluation}))
    return load_run(run.path)


def _wrong(scores: list[dict[str, Any]]) -> None:
    scores[0]["value"] = 0.0


def _wrong_item(sample: dict[str, Any], place: int) -> None:
    sample["values"]["exact_match"] = 0.0


def test_a_sound_run_has_no_problem(run: Run) -> None:
    assert evaluation_problems(run) == ()


def test_every_score_zero_is_said_first_in_every_format(run: Run) -> None:
    broken = _changed(run, _wrong_item, _wrong)
    (text,) = evaluation_problems(broken)
    assert text.startswith(
        f"{TASK}: every answer is wrong (exact_match is 0 on all 20 items), in all 3 cells. "
        "Nothing can be concluded from this score."
    )
    assert "Compare the prompts and responses in the folder of answers with" in text
    report = make_report(broken, draw=False)
    assert report.problems == [text]
    html = render_html(report)
    assert html.index("every answer is wrong") < html.index("<table>")
    markdown = render_markdown(report)
    assert markdown.index("**Warning:** pocket") < markdown.index("##")


def test_a_zero_of_one_model_is_no_broken_evaluation(run: Run) -> None:
    assert evaluation_problems(_changed(run, _wrong_item, _wrong, cells=1)) == ()


def test_a_filter_that_finds_nothing_is_named_even_in_one_cell(run: Run) -> None:
    def unmatched(sample: dict[str, Any], place: int) -> None:
        _wrong_item(sample, place)
        sample["responses"] = [f"It is {place}."]
        sample["answers"] = ["[invalid]"]

    def scores(found: list[dict[str, Any]]) -> None:
        _wrong(found)
        found.append({**found[0], "filter": "flexible-extract", "value": 0.35})

    (text,) = evaluation_problems(_changed(run, unmatched, scores, cells=1))
    assert text.startswith(
        f"{TASK}: the filter strict-match finds no answer in any of the 20 responses (it gives "
        f"'[invalid]' for all of them), in 1 of 3 cells (the first is {run.cells[0].label}). "
        "The filter flexible-extract gives up to 35.0 %. "
    )


def test_empty_answers_are_named(run: Run) -> None:
    def silent(sample: dict[str, Any], place: int) -> None:
        _wrong_item(sample, place)
        sample["responses"] = sample["answers"] = [" "]

    (text,) = evaluation_problems(_changed(run, silent, _wrong))
    assert f"{TASK}: all 20 answers are empty, in all 3 cells." in text


def test_answers_that_are_right_but_for_a_space_are_named(run: Run) -> None:
    def spaced(sample: dict[str, Any], place: int) -> None:
        _wrong_item(sample, place)
        said = f" {sample['target']}" if place < 15 else f"not {place}"
        sample["responses"] = sample["answers"] = [said]

    (text,) = evaluation_problems(_changed(run, spaced, _wrong, cells=1))
    assert "15 of 20 answers equal their targets but for white space" in text
    assert "add the filter remove_whitespace" in text


@pytest.mark.parametrize(("share", "count"), [(1.0, 1), (0.6, 1), (0.1, 0)])
def test_prompts_that_did_not_fit_are_a_problem_where_they_are_most(
    run: Run, share: float, count: int
) -> None:
    def cut(scores: list[dict[str, Any]]) -> None:
        extra = {"metric": "prompt_truncated", "value": share, "higher_is_better": False}
        scores.append({**scores[0], **extra})

    found = evaluation_problems(_changed(run, scores=cut))
    assert len(found) == count
    for text in found:
        assert f"up to {100 * share:.1f} % of the prompts were too long for the model" in text
        assert "Raise max_model_len" in text
