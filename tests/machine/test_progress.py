"""Steps reach the listener, and the status line shows how far and how fast they are."""

import io
import re
import sys
import time

import pytest

from ablations.machine.progress import (
    Step,
    counted,
    is_heard,
    listening,
    now_and_then,
    tell,
    together,
)
from ablations.machine.status_line import StatusLine, above, status_line


def shown(stream: io.StringIO) -> list[str]:
    return [line for line in stream.getvalue().split("\r\x1b[K") if line]


def test_only_the_innermost_listener_hears_a_step() -> None:
    outer, inner = list[Step](), list[Step]()
    tell(Step("nobody"))
    with listening(outer.append):
        tell(Step("a"))
        with listening(inner.append):
            tell(Step("b"))
        tell(Step("c"))
    assert [step.what for step in outer] == ["a", "c"]
    assert [step.what for step in inner] == ["b"]


def test_new_steps_and_ends_pass_at_once_and_the_rest_now_and_then() -> None:
    heard = list[Step]()
    listener = now_and_then(heard.append, every_s=60)
    for done in range(11):
        listener(Step("x", done, 10))
    listener(Step("y"))
    assert [(step.what, step.done) for step in heard] == [("x", 0), ("x", 10), ("y", 0)]


def test_items_tokens_and_the_time_left_are_shown() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.take(Step("", 1, 3, unit="tasks", is_whole=True))
    line.take(Step("math", 0, 300, where="soup"))
    time.sleep(0.2)
    line.take(Step("math", 100, 300, tokens=1000, where="soup"))
    line.close()
    last = shown(stream)[-1]
    found = re.fullmatch(
        r"1/3 tasks  0:00 \| math 100/300 items, ([\d,]+) tokens/s, 0:0\d left \| soup", last
    )
    assert found is not None, last
    assert 100 < int(found[1].replace(",", "")) <= 5000
    assert stream.getvalue().endswith("\r\x1b[K")  # nothing is left of it


def test_work_that_was_finished_before_does_not_count_for_the_time_left() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    for done, skipped in ((0, 0), (90, 90), (90, 90)):
        line.take(Step("", done, 100, skipped=skipped, unit="tasks", is_whole=True))
    assert shown(stream)[-1] == "90/100 tasks  0:00"
    time.sleep(0.2)
    line.take(Step("", 91, 100, skipped=90, unit="tasks", is_whole=True))
    line.close()
    assert shown(stream)[-1] == "91/100 tasks, 0:02 left"


def test_the_start_of_an_engine_does_not_count_for_the_time_left() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.take(Step("", 0, 11, unit="tasks", is_whole=True))
    line.take(Step("starting the engine"))
    time.sleep(1.2)
    line.take(Step("math", 0, 300))
    line.take(Step("", 1, 11, unit="tasks", is_whole=True))
    line.take(Step("words", 0, 300))  # counts from the first item, not from this one
    line.close()
    assert shown(stream)[-1].startswith("1/11 tasks, 0:00 left | words")


def test_what_is_taken_one_by_one_is_counted() -> None:
    heard = list[Step]()
    assert not is_heard()
    with listening(heard.append):
        assert is_heard()
        assert list(counted("reading", ["a", "b"])) == ["a", "b"]
    assert heard == [Step("reading", 0, 2, unit="tensors"), Step("reading", 1, 2, unit="tensors")]


def test_the_clock_goes_on_while_nothing_is_told() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.take(Step("loading"))
    time.sleep(1.8)
    line.close()
    assert {"loading  0:00", "loading  0:01"} <= set(shown(stream))


def test_nothing_is_drawn_over_what_shows_its_own_progress() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.take(Step("planning"))
    line.take(Step(""))
    drawn = stream.getvalue()
    time.sleep(0.7)
    line.above("a message", stream)
    assert stream.getvalue() == f"{drawn}a message\n"
    line.close()


def test_bytes_are_in_a_unit_that_fits() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.take(Step("reading", 5e5, 2e6, unit="bytes"))
    line.take(Step("reading", 1e9, 1.6e10, unit="bytes"))
    line.close()
    assert [text.split("  ")[0] for text in shown(stream)] == [
        "reading 0.5/2.0 MB",
        "reading 1.0/16.0 GB, 0:00 left",
    ]


def test_lines_go_above_and_no_terminal_has_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not above("nobody prints this")
    with status_line():  # stderr is no terminal here
        tell(Step("hidden"))
    assert capsys.readouterr() == ("", "")
    with status_line(True), status_line(True):
        tell(Step("loading"))
        assert above("a score", sys.stdout)
    out, err = capsys.readouterr()
    assert out == "a score\n"
    assert "loading" in err
    assert not above("nobody prints this")


def test_steps_at_once_are_one_with_the_sums_of_their_items() -> None:
    math = Step("math", 3, 10, tokens=30)
    assert together({"soup": math}) == Step("math", 3, 10, tokens=30, where="soup")
    loading = Step("loading", 1e6, 2e6, unit="bytes")
    found = together({"soup": math, "base": Step("words", 5, 20, tokens=7), "task": loading})
    assert found == Step("3 tasks at once", 8, 30, tokens=37)
    assert together({"soup": loading, "base": loading}) == Step("2 tasks at once")
