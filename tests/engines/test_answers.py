"""Answers on disk: torn and damaged lines, what is asked again and what is not."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.engines.answers import Answer, AnswerFile, key_of
from ablations.engines.lm_eval_backend import run_tasks, start_model
from ablations.engines.recall import recall
from ablations.machine.locks import try_claim
from ablations.machine.whole_files import DiskFull
from ablations.scoring.evaluation import EvaluationRequest
from ablations.scoring.observed import Outcome
from ablations.scoring.protocol import GenKwargs
from tests.engines.backends import BACKENDS
from tests.standins.live_cells import OPTIONS
from tests.standins.tasks import write_rows, write_task

TEXT = Answer("b\u2028", Outcome(False, 7, 64, True, 32, 32))
CHOICE = Answer((-1.2345678901234567, True), Outcome(False, 7, 64))


def stored(path):
    with AnswerFile(path) as answers:
        return {key: answers.take(key) for key in "abc"}


def test_a_torn_line_is_dropped_and_a_damaged_one_costs_that_answer(tmp_path, caplog):
    path = tmp_path / "weights" / "task.jsonl"
    with AnswerFile(path) as answers:
        answers.keep("a", Answer("b", Outcome(False, 7, 64, True, 16, 32)))
        answers.keep("a", TEXT)  # the last room counts
        answers.keep("b", CHOICE)
        answers.keep("b", Answer((-1.0, False), CHOICE.outcome))  # the first one counts
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "c", "respon')
    assert stored(path) == {"a": TEXT, "b": CHOICE, "c": None}
    assert path.read_bytes() == whole
    assert "torn" in caplog.text
    path.write_bytes(b'{"key": 1}\n' + whole)
    assert stored(path) == {"a": TEXT, "b": CHOICE, "c": None}
    assert "task.jsonl:1 is damaged" in caplog.text


def test_withdrawn_answers_go_and_others_stay_also_beside_a_damaged_line(tmp_path):
    path = tmp_path / "task.jsonl"
    with AnswerFile(path) as answers:
        answers.keep("a", TEXT)
    with path.open("ab") as file:
        file.write(b'{"key": "c"\n\xff\n[1]\n')
    with AnswerFile(path) as answers:
        answers.keep("b", CHOICE)
    answers.withdraw()
    assert stored(path) == {"a": TEXT, "b": None, "c": None}
    assert path.read_bytes().count(b"\n") == 1


@given(st.integers(0, 10_000), st.integers(1, 8))
def test_a_kill_at_any_byte_loses_one_answer_at_most(tmp_path_factory, cut, count):
    path = tmp_path_factory.mktemp("answers") / "task.jsonl"
    ends = [0]
    with AnswerFile(path) as answers:
        for number in range(count):
            answers.keep(str(number), TEXT)
            ends.append(path.stat().st_size)
    cut = min(cut, ends[-1])
    path.write_bytes(path.read_bytes()[:cut])
    with AnswerFile(path) as answers:
        left = [answers.take(str(number)) for number in range(count)]
        expected = sum(end <= cut for end in ends[1:])
        assert left == [TEXT] * expected + [None] * (count - expected)
        answers.keep("after", CHOICE)
    with AnswerFile(path) as answers:
        assert answers.take("after") == CHOICE


def test_one_run_writes_at_a_time(tmp_path):
    path = tmp_path / "task.jsonl"
    lock = try_claim(tmp_path, ".lock")
    assert lock is not None
    with AnswerFile(path) as answers:
        answers.keep("a", TEXT)
        assert answers.take("a") == TEXT
    assert not path.exists()
    lock.release()
    with AnswerFile(path) as answers:
        answers.keep("a", TEXT)
    assert path.exists()


def test_where_nothing_can_be_written_the_run_goes_on(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").write_text("")
    with AnswerFile(tmp_path / "file" / "task.jsonl") as answers:
        answers.keep("a", TEXT)
        answers.keep("b", TEXT)
    assert caplog.text.count("answers are not stored") == 1


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_nothing_can_be_locked_the_run_goes_on_and_is_told_of_its_answers(
    tmp_path, caplog, monkeypatch, number
):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)  # as some network file systems do
    with AnswerFile(tmp_path / "task.jsonl") as answers:
        answers.keep("a", TEXT)
        assert answers.take("a") == TEXT
    (warning,) = caplog.messages
    assert "answers are not stored" in warning
    assert "cannot lock files; choose an --answers on a local disk" in warning
    assert "--out" not in warning


def test_answers_that_cannot_be_read_are_given_again(tmp_path, caplog, monkeypatch):
    with AnswerFile(tmp_path / "task.jsonl") as answers:
        answers.keep("a", TEXT)
    real = Path.open

    def broken(path, *how, **options):
        if path.name == "task.jsonl":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *how, **options)

    monkeypatch.setattr(Path, "open", broken)
    with AnswerFile(tmp_path / "task.jsonl") as answers:
        assert answers.take("a") is None
    assert "answers are not stored" in caplog.text
    assert try_claim(tmp_path, ".lock") is not None  # nothing is held


def test_a_full_disk_is_said_and_ends_the_run(tmp_path):
    (tmp_path / "task.jsonl").symlink_to("/dev/full")
    answers = AnswerFile(tmp_path / "task.jsonl")
    message = r"No space left on device.* make room, or choose .*--answers"
    with pytest.raises(DiskFull, match=message), answers:
        answers.keep("a", TEXT)
    assert try_claim(tmp_path, ".lock") is not None


def test_another_engine_asks_another_question(tmp_path):
    path = tmp_path / "task.jsonl"
    assert AnswerFile(path, "hf").key("x", 1) == AnswerFile(path, "hf").key("x", 1)
    keys = [AnswerFile(path, "hf").key("x", 1), AnswerFile(path, "vllm").key("x", 1)]
    assert len({*keys, key_of("x", 1), key_of("x", [1])}) == 4


class _Killed(Exception):
    """In the place of a kill, after some answers."""


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_sent_twice(backend, model, tasks, tmp_path, monkeypatch):
    """A killed task goes on, a larger limit sends the rest, another level or protocol is seen."""
    request = EvaluationRequest(tasks=("words_generate", "words_choose"), include_path=tasks)
    options = OPTIONS.model_copy(update={"batch_size": 4})
    path = tmp_path / "weights" / "task.jsonl"
    keep, most, new = AnswerFile.keep, [3], []

    def counting(answers, key, answer):
        if answers.take(key) is None:
            new.append(key)
        keep(answers, key, answer)
        if len(new) == most[0]:
            raise _Killed

    def content(evaluation):
        return evaluation.scores, evaluation.samples, evaluation.notes

    def sent(**change):
        """Return the evaluation and how many answers of it are new."""
        new.clear()
        changed, answers = request.model_copy(update=change), AnswerFile(path)
        found = run_tasks(lm, changed, model, backend, answers)
        return found, len(new)

    def recalled(**change):
        changed, answers = request.model_copy(update=change), AnswerFile(path)
        return recall(changed, model, backend, answers)

    with closing(start_model(model, backend, options)) as lm:
        whole = run_tasks(lm, request, model, backend)
        monkeypatch.setattr(AnswerFile, "keep", counting)
        with pytest.raises(_Killed):
            sent()
        assert lm.answers is None
    most[0] = -1
    with closing(start_model(model, backend, options)) as lm:  # as after a kill: another engine
        assert path.read_text().count("\n") >= 3
        first, count = sent(limit=4)
        assert first.answers_before + count == sum(len(s.responses) for s in first.samples)
        before = path.read_text().count("\n")
        rest, count = sent()
        assert count > 0
        assert rest.answers_before == before
        assert before + count == sum(len(s.responses) for s in whole.samples)
        assert content(rest) == content(whole) == content(recalled())
        assert recalled().answers_before == before + count
        assert recalled(system_instruction="Be brief.") is None
        again, count = sent(level=0.5)
        assert count == 0
        assert again.samples == whole.samples
        assert again.scores != whole.scores
        drawn = {"gen_kwargs": GenKwargs(temperature=1.0), "repeats": 2}
        once, count = sent(**drawn)
        assert count == 2 * len(whole.samples_of("words_generate"))
        assert content(sent(**drawn)[0]) == content(once)
        assert sent(**drawn, seed=1)[1] == count
        assert recalled(**drawn, seed=2) is None
        assert sent(gen_kwargs=GenKwargs(max_gen_toks=2))[1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_prompts_are_sent_once_unless_their_answers_are_drawn(backend, model, tmp_path):
    tasks, drawn = tmp_path / "tasks", GenKwargs(temperature=1.0)
    write_task(tasks, "same", write_rows(tasks, [{"prompt": "w1 w2", "answer": "w3"}] * 3))
    request = EvaluationRequest(tasks=("same",), include_path=tasks)
    with closing(start_model(model, backend, OPTIONS)) as lm:
        for kwargs, lines in ((GenKwargs(), 1), (drawn, 3)):
            path = tmp_path / f"{lines}.jsonl"
            changed, answers = request.model_copy(update={"gen_kwargs": kwargs}), AnswerFile(path)
            found = run_tasks(lm, changed, model, backend, answers)
            assert path.read_text().count("\n") == lines
            assert [sample.doc_id for sample in found.samples] == [0, 1, 2]
