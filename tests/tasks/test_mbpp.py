"""MBPP on hand-written problems of its schema: gold programs pass, others fail, none unasked."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations import sandbox
from ablations.sandbox import ProgramVerdict
from ablations.scoring.records import Evaluation
from ablations.tasks import mbpp
from ablations.tasks.catalog import SHIPPED_TASKS as TASKS
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA, ask, read_jsonl, task_names, write_jsonl
from tests.tasks.test_prompts import check_prompt

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NAMES = task_names("mbpp")
GOLD = {row["task_id"]: row["code"] for row in read_jsonl(DATA / "mbpp" / "en_test.jsonl")}

needs_sandbox = pytest.mark.skipif(
    sandbox.probe() is not None, reason=f"this machine can hold no program: {sandbox.probe()}"
)


def gold(task: str, item: Mapping[str, Any]) -> str:
    return f"{GOLD[item['task_id']]}\n```"


def perturbed(task: str, item: Mapping[str, Any]) -> str:
    return gold(task, item).replace("return", "return not")


def run(say: Any, tasks: tuple[str, ...] = NAMES, **options: Any) -> Evaluation:
    return ask(say, tasks, allow_code_execution=True, **options)


def scores_of(evaluation: Evaluation) -> dict[str, float]:
    own = [each for each in evaluation.scores if each.metric == "pass@1"]
    assert {each.filter for each in own} == {"extracted"}
    return {each.task: each.value for each in own}


@pytest.fixture(scope="module")
def right() -> Evaluation:
    return run(gold)


@needs_sandbox
class TestScores:
    def test_gold_programs_score_one(self, right: Evaluation) -> None:
        assert scores_of(right) == dict.fromkeys(NAMES, 1.0)
        assert {each.n for each in right.scores if each.metric == "pass@1"} == {3}

    def test_perturbed_programs_score_zero(self) -> None:
        assert scores_of(run(perturbed)) == dict.fromkeys(NAMES, 0.0)

    def test_an_answer_that_only_ends_the_process_scores_zero(self) -> None:
        wrong = "import os\n{name} = lambda *a: os._exit(0)"

        def leave(task: str, item: Mapping[str, Any]) -> str:
            (name,) = mbpp.tested_names(item["test_list"])
            return wrong.format(name=name)

        assert scores_of(run(leave, NAMES[-1:])) == {NAMES[-1]: 0.0}

    def test_each_item_has_its_own_verdict(self) -> None:
        def some(task: str, item: Mapping[str, Any]) -> str:
            return (perturbed if item["task_id"] == 12 else gold)(task, item)

        evaluation = run(some, NAMES[-1:])
        assert scores_of(evaluation) == {NAMES[-1]: pytest.approx(2 / 3)}
        first, second, third = evaluation.samples
        assert [each.values["pass@1"] for each in evaluation.samples] == [1.0, 0.0, 1.0]
        assert [first.doc_id, second.doc_id, third.doc_id] == [0, 1, 2]
        assert second.responses == (perturbed("", {"task_id": 12}),)
        assert second.answers == (perturbed("", {"task_id": 12}).removesuffix("\n```"),)
        assert first.target.split("\n")[0] == "assert count_vowels('banana') == 3"
        assert first.program == third.program == ProgramVerdict(status="passed", detail="")
        assert second.program is not None
        assert second.program.status == "failed"
        assert second.program.detail.startswith("AssertionError at `assert ")
        assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation

    def test_a_record_says_what_stopped_its_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mbpp, "TIME_S", 1.0)
        monkeypatch.setattr(mbpp, "OUTPUT_BYTES", 1000)
        answers = {11: "while True: pass", 12: "print('x' * 2000)", 510: "x = [0] * (1 << 40)"}
        evaluation = run(lambda task, item: answers[item["task_id"]], NAMES[-1:])
        empty = run(lambda task, item: " ", NAMES[-1:])
        slow, *others = (each.program for each in (*evaluation.samples, empty.samples[0]))
        assert slow is not None
        assert slow.status == "timeout"
        assert others == [
            ProgramVerdict(status="output", detail="wrote more than 1000 bytes"),
            ProgramVerdict(status="memory", detail="MemoryError"),
            ProgramVerdict(status="failed", detail="there is no code in the answer"),
        ]

    def test_the_notes_say_how_code_was_held_and_what_was_asked_in_english(
        self, right: Evaluation
    ) -> None:
        *prompts, held = right.notes
        assert prompts == [
            f"layerswap_mbpp_{language}: prompts are in 'en', because there is no translation"
            for language in ("bn", "sw", "te")
        ]
        assert held.startswith(f"Python {platform.python_version()}: generated code runs under")
        assert held.endswith(" bwrap: no network, no files, no processes")

    def test_without_isolation_the_record_says_so(self) -> None:
        unheld = run(gold, NAMES[-1:], code_isolation="none")
        assert scores_of(unheld) == {NAMES[-1]: 1.0}
        assert unheld.notes[-1].endswith(
            "WITHOUT ISOLATION, only with limits (--code-isolation none)"
        )


class TestConsent:
    def test_without_the_flag_nothing_is_asked_or_run(self) -> None:
        def refuse(task: str, item: Mapping[str, Any]) -> str:
            raise AssertionError("the model was asked")

        evaluation = ask(refuse, NAMES)
        assert evaluation.skipped == dict.fromkeys(NAMES, "needs --allow-code-execution")
        assert evaluation.scores == evaluation.samples == ()

    def test_plain_lm_eval_refuses_as_well(self) -> None:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        manager = TaskManager(
            include_path=str(TASKS), include_defaults=False, metadata={"data_dir": str(DATA)}
        )
        with pytest.raises(ValueError, match="layerswap_mbpp_te which is marked as unsafe"):
            simple_evaluate(model="dummy", tasks=["layerswap_mbpp_te"], task_manager=manager)


@needs_sandbox
@pytest.mark.parametrize("task", NAMES)
def test_the_prompt_is_the_one_on_file(right: Evaluation, task: str) -> None:
    check_prompt(right, task)


class TestFiles:
    def test_no_stop_string_is_in_an_answer(self) -> None:
        for name in NAMES:
            path = TASKS / "generated" / f"{name}.yaml"
            stops = yaml.safe_load(path.read_text(encoding="utf-8"))["generation_kwargs"]["until"]
            assert len(stops) == 5
            for code in GOLD.values():
                lines = code.replace("\r\n", "\n")
                for answer in (
                    lines,
                    f"```python\n{lines}\n```",
                    f"Here it is:\n```\n{lines}\n```\n",
                    f"Here it is:\n\n```python\n{lines}\n```",
                ):
                    assert not [stop for stop in stops if stop in answer]


class TestData:
    @staticmethod
    def load(folder: Path, language: str = "ja", column: str = "text_jpn") -> list[dict[str, Any]]:
        loaded = mbpp.load_mbpp(
            hub_id="unused", configs={language: "x"}, split="train", column=column, data_dir=folder
        )
        return loaded["test"].to_list()

    def test_other_splits_in_the_same_file_are_left_out(self) -> None:
        assert [item["task_id"] for item in self.load(DATA)] == [11, 12, 510]
        assert len(read_jsonl(DATA / "mbpp" / "ja_test.jsonl")) == 4

    def test_a_translation_may_lack_the_code_that_sets_tests_up(self, tmp_path: Path) -> None:
        rows = read_jsonl(DATA / "mbpp" / "ja_test.jsonl")[:2]
        for row in rows:
            row.pop("test_setup_code", None)
        write_jsonl(tmp_path / "mbpp" / "ja_test.jsonl", rows)
        assert [item["test_setup_code"] for item in self.load(tmp_path)] == ["", ""]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"task_id": 5}, "mbpp ja (test): no task_id from 11 to 510"),
            ({"test_list": ["assert ("]}, "task_id 11: its tests are not valid Python: '(' was"),
            ({"test_list": "assert 1"}, "task_id 11: its tests are not a list of texts"),
            ({"test_setup_code": 5}, "task_id 11: its tests are not a list of texts"),
            ({"text_jpn": None}, "row 0: text_jpn is None, which is not text"),
        ],
    )
    def test_what_is_no_problem_is_refused(
        self, tmp_path: Path, change: dict[str, Any], message: str
    ) -> None:
        row = read_jsonl(DATA / "mbpp" / "ja_test.jsonl")[0]
        write_jsonl(tmp_path / "mbpp" / "ja_test.jsonl", [row | change])
        with pytest.raises(InputError) as refused:
            self.load(tmp_path)
        assert message in refused.value.message
