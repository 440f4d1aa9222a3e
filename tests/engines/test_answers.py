"""Answers on disk: torn and damaged lines, what is asked again and what is not."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from ablations.engines.answers import Answer, AnswerFile, read_answers
from ablations.engines.lm_eval_backend import rescore, run_tasks, start_model
from ablations.engines.questions import read_questions
from ablations.machine.locks import try_claim
from ablations.machine.progress import listening
from ablations.machine.whole_files import DiskFull
from ablations.requests.resolve import resolve
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
    assert "task.jsonl: 1 answer (the first is line 1) are damaged or were moved" in caplog.text


def test_no_changed_byte_gives_another_answer(tmp_path):
    path = tmp_path / "weights" / "task.jsonl"
    with AnswerFile(path) as answers:
        answers.keep("a", TEXT)
        answers.keep("b", CHOICE)
    whole = path.read_bytes()
    expected = {"a": TEXT, "b": CHOICE, "c": None}
    places = [place for place in range(len(whole) - 1) if whole[place : place + 1] != b"\n"]
    for place in places:
        for other in (whole[place] ^ 1, whole[place] ^ 2):
            path.write_bytes(whole[:place] + bytes([other]) + whole[place + 1 :])
            for key, answer in stored(path).items():
                assert answer in (None, expected[key]), (place, other)
    path.write_bytes(whole)
    assert stored(path) == expected


def test_answers_in_another_models_place_are_not_taken(tmp_path, caplog):
    path = tmp_path / "weights" / "task.jsonl"
    with AnswerFile(path) as answers:
        answers.keep("a", TEXT)
    other = shutil.move(path.parent, tmp_path / "other") / path.name
    assert stored(other) == {"a": None, "b": None, "c": None}
    assert "moved here from another model; their prompts are sent again" in caplog.text
    assert read_answers(other, ["a"]) == {}
    with AnswerFile(other) as answers:
        answers.keep("a", CHOICE)
    assert stored(other)["a"] == CHOICE


def test_answers_of_the_version_before_are_taken(model, tasks, tmp_path):
    """Stored by the commit 292a07cf, without checksums: no key has changed since."""
    path = tmp_path / "weights" / "task.jsonl"
    path.parent.mkdir()
    shutil.copy(Path(__file__).with_name("answers_before.jsonl"), path)
    names = ("words_generate", "words_choose")
    request = EvaluationRequest(tasks=names, include_path=tasks, limit=2)
    sampled = {"gen_kwargs": GenKwargs(temperature=1.0), "repeats": 2, "seed": 3}
    before = path.read_text().count("\n")
    for count, change in ((6, {}), (4, {**sampled, "tasks": names[:1]})):
        changed = request.model_copy(update=change)
        with AnswerFile(path, "an engine") as answers:
            found = rescore(resolve(changed), model, "hf", answers)
        assert found is not None
        assert found.answers_before == count
        file = AnswerFile(path, "an engine")
        with closing(start_model(model, "hf", OPTIONS)) as lm, file as answers:
            again = run_tasks(lm, resolve(changed), model, "hf", answers)
        assert again.samples == found.samples
    assert path.read_text().count("\n") == before


def test_a_reader_gets_the_last_answers_of_its_keys_and_changes_nothing(tmp_path):
    path = tmp_path / "task.jsonl"
    with AnswerFile(path) as answers:
        answers.keep("a", Answer("b", Outcome(False, 7, 64, True, 16, 32)))
        answers.keep("a", TEXT)
        answers.keep("b", CHOICE)
        answers.keep("ab", CHOICE)
    with path.open("ab") as file:
        file.write(b'{"key":"b","response":[1]}\n{"key":"c","respon')
    whole = path.read_bytes()
    assert read_answers(path, ["a", "b", "c", "d"]) == {"a": TEXT, "b": CHOICE}
    assert path.read_bytes() == whole
    with pytest.raises(FileNotFoundError):
        read_answers(tmp_path / "none.jsonl", ["a"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a link, a pipe"):
        read_answers(tmp_path / "pipe", ["a"])


@pytest.mark.parametrize("fate", ["confirmed", "withdrawn", "forgotten", "raised"])
def test_answers_of_a_live_engine_wait_for_its_check(tmp_path, fate, caplog):
    path = tmp_path / "task.jsonl"
    with AnswerFile(path) as answers:
        answers.keep("a", TEXT)
    live = AnswerFile(path, is_checked=False)
    with contextlib.suppress(_Killed), live:
        live.keep("b", CHOICE)
        assert live.take("b") == CHOICE
        if fate == "confirmed":
            live.confirm()
        elif fate == "withdrawn":
            live.withdraw()
        elif fate == "raised":
            raise _Killed
        assert try_claim(tmp_path, ".lock") is None
    lock = try_claim(tmp_path, ".lock")  # the block is over, whatever became of its answers
    assert lock is not None
    lock.release()
    assert stored(path) == {"a": TEXT, "b": CHOICE if fate == "confirmed" else None, "c": None}
    is_left = fate in ("forgotten", "raised")
    assert ("1 answer of a run that ended before its engine was checked" in caplog.text) == is_left
    assert [file.name for file in tmp_path.iterdir() if file.suffix] == ["task.jsonl"]


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


OTHERS = [
    {"settings": "of vllm"},
    {"settings": None},
    {"prompt": "w2"},
    {"asked": {"until": []}},
    {"asked": {"temperature": 1.0}},
    {"asked": {"temperature": 1.0}, "sample_seed": "1 0"},
    {"asked": {"temperature": 1.0}, "item": 1},
    {"kind": "loglikelihood", "asked": "w2"},
]


def test_questions_have_one_key_where_they_are_one():
    def key(kind="generate", settings="of hf", prompt="w1", asked=None, item=0, sample_seed="0 0"):
        pair = (prompt, {"until": ["."]} if asked is None else asked)
        requests = [Instance("generate_until", {}, pair, 0, ("task", item, 1))] * 2
        return [each.key for each in read_questions(kind, requests, settings, sample_seed)]

    first, second = key()
    assert first == second == key(item=1)[0] == key(sample_seed="1 0")[0]
    keys = [first, *(key(**other)[0] for other in OTHERS)]
    assert len({*keys}) == len(keys)
    once, twice = key(asked={"temperature": 1.0})
    assert once != twice  # each drawn answer is a new one


class _Killed(Exception):
    """In the place of a kill, after some answers."""


class Asked:
    """Tasks asked of a model whose answers are stored, and how many of the answers are new."""

    def __init__(self, model, backend, tasks, path):
        self.model, self.backend, self.path = model, backend, path
        names = ("words_generate", "words_choose")
        self.request = EvaluationRequest(tasks=names, include_path=tasks)
        self.options = OPTIONS.model_copy(update={"batch_size": 4})
        self.new, self.lm, self.killed_after = [], None, None

    def start(self):
        return closing(start_model(self.model, self.backend, self.options))

    def count(self, patch):
        keep = AnswerFile.keep

        def counting(answers, key, answer):
            if answers.take(key) is None:
                self.new.append(key)
            keep(answers, key, answer)
            if len(self.new) == self.killed_after:
                raise _Killed

        patch.setattr(AnswerFile, "keep", counting)

    def send(self, **change):
        """Return the evaluation of a changed request and how many answers of it are new."""
        self.new.clear()
        tasks = resolve(self.request.model_copy(update=change))
        with AnswerFile(self.path) as answers:
            found = run_tasks(self.lm, tasks, self.model, self.backend, answers)
        return found, len(self.new)

    def rescore(self, **change):
        tasks = resolve(self.request.model_copy(update=change))
        with AnswerFile(self.path) as answers:
            return rescore(tasks, self.model, self.backend, answers)

    def lines(self):
        return self.path.read_text().count("\n")


def content(evaluation):
    return evaluation.scores, without_keys(evaluation), evaluation.notes


def without_keys(evaluation):
    """Return the samples without the keys of stored answers, which not every evaluation has."""
    return [sample.model_copy(update={"keys": ()}) for sample in evaluation.samples]


def responses(evaluation):
    return sum(len(sample.responses) for sample in evaluation.samples)


DRAWN = {"gen_kwargs": GenKwargs(temperature=1.0), "repeats": 2}


@pytest.fixture(scope="module", params=BACKENDS)
def begun(request, model, tasks, tmp_path_factory):
    """Return the tasks as asked of one engine that was ended after three answers, and of the next.

    `whole` is what a model says that stores nothing, `limited` and `rest` are what the second
    engine sent: first four items a task, then all.
    """
    path = tmp_path_factory.mktemp("answers") / "weights" / "task.jsonl"
    asked = Asked(model, request.param, tasks, path)
    with pytest.MonkeyPatch.context() as patch:
        with asked.start() as lm:
            asked.lm, asked.killed_after = lm, 3
            asked.whole = run_tasks(lm, resolve(asked.request), model, request.param)
            asked.count(patch)
            with pytest.raises(_Killed):
                asked.send()
        asked.left, asked.killed_after = asked.lines(), None
        with asked.start() as asked.lm:  # as after a kill: another engine
            asked.limited = asked.send(limit=4)
            asked.before = asked.lines()
            asked.rest = asked.send()
            yield asked


def test_a_task_that_was_killed_goes_on_from_its_answers(begun):
    limited, count = begun.limited
    assert begun.left >= 3
    assert limited.answers_before + count == responses(limited)


def test_a_larger_limit_sends_the_rest_only(begun):
    rest, count = begun.rest
    assert count > 0
    assert rest.answers_before == begun.before
    assert begun.before + count == responses(begun.whole)
    assert content(rest) == content(begun.whole)


def test_stored_answers_are_done_before_the_step_begins(begun):
    """They take no time, so a rate that counted them would be wrong for all that are sent."""
    heard = []
    with listening(heard.append):
        begun.send(limit=4)
    steps = [step for step in heard if step.scope == "unit"]
    assert [step.done for step in steps] == [step.total for step in steps] != []


def test_every_sample_names_its_stored_answers(begun):
    assert not any(sample.keys for sample in begun.whole.samples)
    for evaluation in (begun.rest[0], begun.rescore(), begun.send(**DRAWN, seed=3)[0]):
        stored = read_answers(begun.path, {k for s in evaluation.samples for k in s.keys})
        for sample in evaluation.samples:
            assert tuple(stored[key].response for key in sample.keys) == sample.responses
    assert {sample.repeat for sample in evaluation.samples} == {0, 1}


def test_scores_come_from_stored_answers_without_an_engine(begun, monkeypatch):
    build, built = ConfigurableTask.build_all_requests, []

    def counting(task, **options):
        built.append(task.task_name)
        build(task, **options)

    monkeypatch.setattr(ConfigurableTask, "build_all_requests", counting)
    rescored = begun.rescore()
    assert sorted(built) == sorted(begun.request.tasks)  # prompts are built once
    assert content(rescored) == content(begun.whole)
    assert rescored.answers_before == responses(begun.whole)
    assert begun.rescore(system_instruction="Be brief.") is None


def test_after_a_change_of_a_filter_stored_answers_are_scored_and_nothing_is_sent(begun, tmp_path):
    shutil.copytree(begun.request.include_path[0], tmp_path / "tasks")
    step = {"function": "!function ablations.tasks.numbers.LastNumber"}
    filters = [{"name": "number", "filter": [step, {"function": "take_first"}]}]
    path = tmp_path / "tasks" / "words_generate.yaml"
    text = yaml.safe_dump({"filter_list": filters}).replace("'!f", "!f").replace("r'", "r")
    path.write_text(path.read_text() + text)
    again = begun.rescore(include_path=(tmp_path / "tasks",))
    samples = again.samples_of("words_generate")
    before = begun.whole.samples_of("words_generate")
    assert [sample.responses for sample in samples] == [sample.responses for sample in before]
    assert {sample.filter for sample in samples} == {"number"}
    assert [sample.answers for sample in samples] != [sample.answers for sample in before]


def test_another_level_of_intervals_sends_nothing(begun):
    again, count = begun.send(level=0.5)
    assert count == 0
    assert without_keys(again) == without_keys(begun.whole)
    assert again.scores != begun.whole.scores


def test_drawn_answers_are_new_for_each_repeat_and_seed_and_stored_too(begun):
    once, count = begun.send(**DRAWN)
    assert count == 2 * len(begun.whole.samples_of("words_generate"))
    assert content(begun.send(**DRAWN)[0]) == content(once)
    assert begun.send(**DRAWN, seed=1)[1] == count
    assert content(begun.rescore(**DRAWN)) == content(once)
    assert begun.rescore(**DRAWN, seed=2) is None


def test_other_settings_of_generation_are_sent(begun):
    assert begun.send(gen_kwargs=GenKwargs(max_gen_toks=2))[1] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_prompts_are_sent_once_unless_their_answers_are_drawn(backend, model, tmp_path):
    tasks, drawn = tmp_path / "tasks", GenKwargs(temperature=1.0)
    write_task(tasks, "same", write_rows(tasks, [{"prompt": "w1 w2", "answer": "w3"}] * 3))
    request = EvaluationRequest(tasks=("same",), include_path=tasks)
    with closing(start_model(model, backend, OPTIONS)) as lm:
        for kwargs, lines in ((GenKwargs(), 1), (drawn, 3)):
            path = tmp_path / f"{lines}.jsonl"
            changed = resolve(request.model_copy(update={"gen_kwargs": kwargs}))
            with AnswerFile(path) as answers:
                found = run_tasks(lm, changed, model, backend, answers)
            assert path.read_text().count("\n") == lines
            assert [sample.doc_id for sample in found.samples] == [0, 1, 2]
