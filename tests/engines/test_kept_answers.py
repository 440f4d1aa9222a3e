"""Answers on disk as they arrive: torn and damaged lines, and engines that go on with the rest."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ablations.engines import vllm_engine
from ablations.engines.keeping import _kept_one_by_one
from ablations.engines.kept_answers import KeptAnswers, key_of
from ablations.engines.lm_eval_backend import loaded, run_tasks
from ablations.engines.options import EngineOptions
from ablations.scoring.records import Backend, Evaluation, EvaluationRequest


def test_what_was_kept_is_given_once_for_each_time(tmp_path: Path) -> None:
    path = tmp_path / "records" / ".key.answers"
    kept = KeptAnswers(path)
    for value in ("a", "b\u2028", ["c", None]):
        kept.keep(key_of("x", 1), value)
    kept.close()
    with path.open("ab") as file:
        file.write(b'["0123", "torn of')
    again = KeptAnswers(path)
    assert path.read_bytes().endswith(b"\n")
    assert [again.take(key_of("x", 1)) for _ in range(4)] == ["a", "b\u2028", ["c", None], None]
    assert again.take(key_of("x", 2)) is None
    assert again.taken == 3
    assert key_of("x", 1) != key_of("x", 2) != key_of("x", [2])


def test_a_damaged_line_costs_that_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / ".key.answers"
    path.write_text('["k", "a"]\n["k", \n["k", "b"]\n')
    kept = KeptAnswers(path)
    assert [kept.take("k"), kept.take("k"), kept.take("k")] == ["a", "b", None]
    assert ".key.answers:2 is damaged" in caplog.text


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").write_text("")
    kept = KeptAnswers(tmp_path / "file" / ".key.answers")
    kept.keep("k", "a")
    kept.keep("k", "b")
    assert caplog.text.count("answers are not kept as they arrive") == 1
    kept.close()


def test_equal_prompts_with_other_seeds_are_not_kept_under_the_others_name(tmp_path: Path) -> None:
    """vLLM hands answers out in any order, and of equal prompts it names none."""

    def output(prompt: list[int], text: str) -> Any:
        answer = SimpleNamespace(text=text, finish_reason="stop")
        return SimpleNamespace(finished=True, prompt_token_ids=prompt, outputs=[answer])

    ready = [output([1, 2], "of seed b"), output([3], "alone"), output([1, 2], "of seed a")]
    engine = SimpleNamespace(step=lambda: [ready.pop(0)])
    kept = KeptAnswers(tmp_path / ".key.answers")
    with _kept_one_by_one(engine, kept, [[1, 2], [1, 2], [3]], ["a", "b", "c"]):
        while ready:
            engine.step()
    kept.close()
    again = KeptAnswers(tmp_path / ".key.answers")
    assert [again.take(key) for key in "abc"] == [None, None, ["alone", "stop"]]


class _Killed(Exception):
    """In the place of a kill, after some answers."""


BACKENDS = [
    "hf",
    pytest.param(
        "vllm",
        marks=[
            pytest.mark.vllm,
            pytest.mark.filterwarnings("ignore"),
            pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed"),
        ],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_task_that_was_ended_goes_on_with_the_rest(
    backend: Backend, model: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = EvaluationRequest(tasks=("words_generate", "words_choose"), include_path=tasks)
    options = EngineOptions(batch_size=4, kv_cache_gib=1, gpu_memory_utilization=0.3)
    path = tmp_path / ".key.answers"
    keep = KeptAnswers.keep
    lines: list[str] = []

    def stop_after(count: int) -> Any:
        def keep_some(kept: KeptAnswers, key: str, value: Any) -> None:
            keep(kept, key, value)
            lines.append(key)
            if len(lines) == count:
                raise _Killed

        return keep_some

    def stored(evaluation: Evaluation) -> Any:
        return evaluation.scores, evaluation.samples, evaluation.notes

    with loaded(str(model), backend, options) as lm:
        whole = run_tasks(lm, request, model="m", backend=backend)
        assert whole.answers_before == 0
        monkeypatch.setattr(KeptAnswers, "keep", stop_after(3))
        with pytest.raises(_Killed):
            run_tasks(lm, request, model="m", backend=backend, answers=path)
        assert path.read_text().count("\n") == 3
        assert lm.kept is None
    monkeypatch.setattr(KeptAnswers, "keep", stop_after(0))
    lines.clear()
    with loaded(str(model), backend, options) as lm:  # as after a kill: another engine
        rest = run_tasks(lm, request, model="m", backend=backend, answers=path)
        assert rest.answers_before == (12 if backend == "hf" else 3)
        assert len(lines) == (3 if backend == "hf" else 21)
        assert stored(rest) == stored(whole)
        lines.clear()
        again = run_tasks(lm, request, model="m", backend=backend, answers=path)
        assert (again.answers_before, lines) == (24, [])
        assert stored(again) == stored(whole)
