"""Floors: from a task's file to the mark and the first sentence of a report."""

import pandas as pd
import pytest

from ablations.report.analysis import analyse
from ablations.report.sentences import sentences
from ablations.report.tables import scores_table
from ablations.runs.observations import CELL_ROLES
from ablations.runs.results import Results
from ablations.study.grouping import StudyModel
from ablations.tasks.catalog import Floor, floor_of
from layerswap_method.errors import InputError
from tests.report.runs import study_of
from tests.standins.command import layerswap, output_of
from tests.standins.studies import study_document, write_expert, write_yaml
from tests.standins.tasks import write_rows, write_task

LAST = {"name": "the last number", "score": 0.3}


@pytest.mark.parametrize(
    ("floor", "problems"),
    [
        ({**LAST, "score": "a third"}, ["score: must be a number, not 'a third'"]),
        ({**LAST, "score": True}, ["score: must be a number, not True"]),
        ({**LAST, "score": 1.2}, ["score: must be 1 or less, not 1.2"]),
        ({**LAST, "score": -0.1}, ["score: must be 0 or more"]),
        ({**LAST, "score": float("nan")}, ["score"]),
        ({"name": "x"}, ["score"]),
        ({"score": 0.5, "nam": "x"}, ["nam", "did you mean 'name'?"]),
        (0.3, ["must be a block"]),
    ],
)
def test_a_bad_floor_is_one_error(floor, problems):
    with pytest.raises(InputError, match=r"^metadata: floor: ") as caught:
        floor_of({"floor": floor})
    for problem in problems:
        assert problem in str(caught.value)


def test_a_floor_is_optional():
    assert floor_of(None) is None
    assert floor_of({"version": 1.0}) is None
    assert floor_of({"floor": {"name": "one answer to both problems", "score": 0}}) == Floor(
        name="one answer to both problems", score=0.0
    )


def _scores(**by_model):
    base = {"task": "math_sw", "metric": "exact_match", "filter": "none", "state": "done"}
    base |= {"higher_is_better": True, "is_share": True}
    base |= {"low": 0.1, "high": 0.95, "floor": LAST["score"], "floor_name": LAST["name"]}
    base |= dict.fromkeys(("language", "reason", *CELL_ROLES), "")
    scores = pd.DataFrame(by_model.items(), columns=["model", "value"])
    return scores.assign(cell=scores["model"], weights=scores["model"], **base)


def test_a_score_below_is_marked_and_said_first():
    study, below = study_of(), {"base"}
    models = tuple(
        StudyModel(label=name, kind="base", setting={}, pools={}, cells=(name,))
        for name in ("base", "soup", "ties")
    )
    data = pd.DataFrame(
        [
            {
                **dict.fromkeys(("task_expert", "language_expert", "seed", "language"), ""),
                "task": "math_sw",
                "metric": "exact_match",
                "filter": "none",
                "model": name,
                "weights": name,
                "item": item,
                "value": float(item < right),
            }
            for name, right in (("base", 2), ("soup", 3), ("ties", 9))
            for item in range(10)
        ]
    )
    scores = _scores(base=0.2, soup=0.3, ties=0.9)
    results = Results(study, models, data, scores, {})
    analysis = analyse(results)
    frame = analysis.score_frame
    assert set(frame[frame["is_below"]]["model"]) == below  # a score at its floor is not below
    shown = scores_table(frame, study).set_index("model")["math, Swahili, exact match"]
    assert {name for name, text in shown.items() if "▽" in text} == below
    first = sentences(analysis)[0]
    assert first.startswith("On math, Swahili, 1 of 3 models score below a rule")
    assert "30.0 (the last number)" in first


def test_from_a_task_file_to_the_first_sentence(tmp_path):
    names = ("base", "math", "swahili")
    for seed, name in enumerate(names):
        write_expert(tmp_path / name, seed)
    own = tmp_path / "tasks"
    write_rows(own, [{"prompt": "w1 w2", "answer": "none"}, {"prompt": "w3", "answer": "none"}])
    experts = {"experts": {name: str(tmp_path / name) for name in names}}
    write_yaml(tmp_path / "experts.yml", {**experts, "include_path": str(own)})
    write_yaml(tmp_path / "study.yml", study_document(vary=None, baseline=["base"]))

    def run(floor):
        write_task(own, "words", own / "data.jsonl", metadata={"version": 1.0, "floor": floor})
        words = ["run", tmp_path / "study.yml", "--experts", tmp_path / "experts.yml"]
        return layerswap(*words, "--backend", "hf", "--out", tmp_path / "run")

    refused = run({**LAST, "score": 3})
    assert refused.exit_code == 2
    assert "task words: metadata: floor: score: must be 1 or less" in refused.output
    assert run(LAST).exit_code == 0
    text = " ".join(output_of("report", tmp_path / "run", "--format", "md").split())
    answer = text.partition("How many?")[2]
    assert "2 of 2 models score below a rule that does not read. It scores 30.0 (the last" in answer
    assert "▽" in (tmp_path / "run" / "report" / "report.md").read_text(encoding="utf-8")
