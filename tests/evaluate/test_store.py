import json
from pathlib import Path

import pytest

from ablations.evaluate.store import read_evaluation, write_evaluation
from ablations.sandbox.watch import ProgramVerdict
from ablations.scoring.records import Evaluation, Sample, TaskScore
from ablations.statistics.intervals import Interval

EVALUATION = Evaluation(
    model="soup",
    backend="vllm",
    scores=(
        TaskScore(
            task="chat/translate",
            metric="bleu",
            filter="none",
            value=0.1 + 0.2,
            is_share=True,
            interval=Interval(low=0.1, high=0.7, method="bootstrap"),
            stderr=0.05,
            n=2,
            higher_is_better=True,
        ),
    ),
    samples=tuple(
        Sample(
            task="chat/translate",
            filter="none",
            doc_id=doc_id,
            prompts=("tafsiri : paka\n\u2028", "…"),
            target="cat",
            responses=("cat", (-1.5, True)),
            answers=("cat",),
            values={"bleu": ("cat", "dog"), "exact_match": 0.0},
            doc_hash="d",
            prompt_hash="p",
            target_hash="t",
            program=None
            if doc_id == 0
            else ProgramVerdict(status="timeout", detail="as long as ∞"),
        )
        for doc_id in range(2)
    ),
    task_versions={"chat/translate": "1.0"},
    num_fewshot={"chat/translate": 0},
    versions={"lm_eval": "0.4.13"},
    elapsed_s=1.25,
)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "soup", EVALUATION, fingerprint="f")
    assert read_evaluation(tmp_path / "soup", fingerprint="f") == EVALUATION
    assert [path.name for path in tmp_path.iterdir()] == ["soup"]


def test_a_record_says_what_came_of_a_program_where_one_was_run(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "soup", EVALUATION, fingerprint="f")
    file = tmp_path / "soup" / "samples_chat_translate.jsonl"
    # A line without one is what versions wrote that knew of none.
    plain, ran = (json.loads(line) for line in file.read_text().removesuffix("\n").split("\n"))
    assert "program" not in plain
    assert ran["program"] == {"status": "timeout", "detail": "as long as ∞"}


def test_other_inputs_never_resume_onto_old_scores(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "soup", EVALUATION, fingerprint="f")
    assert read_evaluation(tmp_path / "soup", fingerprint="g") is None
    assert read_evaluation(tmp_path / "swap", fingerprint="f") is None


@pytest.mark.parametrize("file", ["evaluation.json", "samples_chat_translate.jsonl"])
def test_a_damaged_record_is_made_anew(tmp_path: Path, file: str) -> None:
    write_evaluation(tmp_path / "soup", EVALUATION, fingerprint="f")
    path = tmp_path / "soup" / file
    path.write_text(path.read_text()[:-40])
    assert read_evaluation(tmp_path / "soup", fingerprint="f") is None
    write_evaluation(tmp_path / "soup", EVALUATION, fingerprint="f")
    assert read_evaluation(tmp_path / "soup", fingerprint="f") == EVALUATION
