"""Bars on a terminal, lines in a log file: amounts, rates and the time that is left."""

import re
import sys
import time
from types import SimpleNamespace

import pytest

from ablations.machine import progress
from ablations.machine.progress import Step, above, show_step, status_line


def drawn(text):
    """Return what a terminal shows of a text."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def show_slowly(*steps, pause_s=0.15):  # rich draws ten times a second
    for step in steps:
        show_step(step)
        time.sleep(pause_s)


def whole(done, total=4, activity=""):
    return Step(activity, done, total, unit="tasks", scope="command")


@pytest.fixture
def lines(monkeypatch, capsys):
    """Return the lines that a log file has so far; they come every 0.2 seconds."""
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.2)
    monkeypatch.setattr(progress, "NEXT_LINE_S", 0.2)
    return lambda: capsys.readouterr().err.splitlines()


def test_the_command_and_its_step_are_drawn(capfd):
    with status_line(True):
        show_slowly(
            whole(1, 3, "model 1 of 2"),
            Step("math", 100, 300),
            Step("[bold]words"),
            Step("a", 5e5, 2e6, unit="bytes"),
        )
        text = drawn(capfd.readouterr().err)
        for shown in ("model 1 of 2: 1/3 tasks", "math 100/300 items", "[bold]words"):
            assert shown in text
        assert "a 0.5/2.0 MB" in text
        assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in text  # a bar
        show_step(Step(""))  # what comes now draws its own progress
        capfd.readouterr()
        time.sleep(0.3)
        assert capfd.readouterr() == ("", "")


def test_a_bar_has_rate_and_time_left(capfd):
    with status_line(True):
        show_slowly(*(Step("math", done, 4000, unit="steps") for done in range(5)), pause_s=0.25)
        text = drawn(capfd.readouterr().err)
    assert re.search(r"math 4/4000 steps, (3|4)[.0-9]* steps/s, 0:\d\d:\d\d left", text), text


def test_lines_go_above_and_no_terminal_has_no_bars(capsys):
    assert not above("nobody prints this")
    with status_line():  # stderr is no terminal here
        show_step(Step("hidden"))
        assert not above("nobody prints this")
    assert capsys.readouterr() == ("", "")
    with status_line(True), status_line(True):
        show_step(Step("loading"))
        assert above("a score", sys.stdout)
    out, err = capsys.readouterr()
    assert out == "a score\n"
    assert "loading" in err
    assert not above("nobody prints this")


def test_a_log_file_has_a_line_now_and_then(lines):
    with status_line():
        show_slowly(*(Step("training math", done, 900, unit="steps") for done in range(9)))
    written = lines()
    assert 3 <= len(written) <= 7
    assert re.fullmatch(
        r"training math [4-8]/900 steps, \d[.0-9]* steps/s, 0:\d\d:\d\d left", written[-1]
    ), written


def test_the_cell_of_a_notebook_has_one_place_for_both_bars(monkeypatch, capsys):
    """It is written anew, and empty at the end; IPython is not among what tests need."""
    pages = []
    handle = SimpleNamespace(update=lambda data, raw: pages.append(data["text/html"]))
    parts = {"display": lambda data, raw, display_id: handle}
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(**parts))
    monkeypatch.setattr(progress, "CELL_S", 0.1)
    with status_line():
        show_slowly(whole(1, 4, "model 1 of 2"), Step("a<b", 3, 12))
        time.sleep(0.3)
    *_, last, end = pages
    assert last.count("<progress value=") == 2
    assert 'value="0.250"></progress> a&lt;b 3/12 items' in last
    assert (end, capsys.readouterr().err) == ("", "")


@pytest.mark.parametrize(("parent", "is_drawn"), [(None, True), ("1", False)])
def test_a_command_in_a_cell_draws_no_bars_on_its_terminal(monkeypatch, parent, is_drawn):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if parent is None:
        monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    else:
        monkeypatch.setenv("JPY_PARENT_PID", parent)
    with status_line():
        assert above("a line") is is_drawn


def test_the_variable_of_other_bars_turns_the_lines_off(lines, monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    with status_line():
        show_slowly(*(Step("training math", done, 900, unit="steps") for done in range(9)))
    assert lines() == []


def test_silence_says_how_long_it_is(lines):
    """An engine that starts, or a merge of mergekit, tells nothing for minutes."""
    with status_line():
        show_step(Step("starting vllm on \x1b[2Jbase"))
        time.sleep(1.3)
    assert lines()[-1] == "starting vllm on \\x1b[2Jbase, 0:00:01 so far"


def test_what_shows_its_own_progress_gets_no_line(lines):
    with status_line():
        show_step(Step("reading the headers"))
        show_step(Step(""))
        time.sleep(0.5)
    assert lines() == []


def test_a_task_counts_in_the_time_left_of_the_run_while_it_goes_on(lines):
    """Else there is no time left before the second task has ended, which may take a day."""
    with status_line():
        show_step(whole(0, activity="model 1 of 2, task 1 of 2"))
        items = (Step("words", done, 10, scope="unit") for done in range(10))
        show_slowly(*items, pause_s=0.1)
        first = lines()
        show_step(Step("words", 0, 10, scope="unit"))  # asked again, in another way
        show_step(whole(1, activity="model 1 of 2, task 2 of 2"))
        show_slowly(Step("words_sw", 0, 10, scope="unit"), pause_s=0.5)
    time_left = r"0:00:0[2-7] left"
    assert re.match(
        rf"model 1 of 2, task 1 of 2: 0/4 tasks, \d\S* tasks/(s|min), {time_left}; "
        r"words \d/10 items, ",
        first[-1],
    ), first
    assert re.match(
        rf"model 1 of 2, task 2 of 2: 1/4 tasks, \d\S* tasks/(s|min), {time_left}; "
        r"words_sw 0/10 items",
        lines()[-1],
    )


def test_of_a_single_task_there_is_one_time_left(lines):
    """Its items and the share of it that is done would give two, by two rates."""
    with status_line():
        show_step(whole(0, 1, activity="task 1 of 1"))
        items = (Step("words", done, 10, scope="unit") for done in range(10))
        show_slowly(*items, pause_s=0.1)
    pattern = r"task 1 of 1: 0/1 tasks; words \d/10 items, \S+ items/(s|min), 0:00:0\d left"
    assert re.fullmatch(pattern, lines()[-1])


def test_what_an_earlier_call_finished_took_no_time(lines):
    with status_line():
        show_slowly(*map(whole, (2, 2, 2, 3)), pause_s=0.3)
    assert all("left" not in line and line.startswith("2/4 tasks") for line in lines()[:2])


@pytest.fixture
def clock():
    """Return a display whose clock a test sets, and a function that gives its rows after a time."""
    display = progress._Display(is_drawn=False, is_forced=None)
    now = 0.0
    display.progress.get_time = lambda: now

    def rows_after(seconds, *steps):
        nonlocal now
        now += seconds
        for step in steps:
            display.show(step)
        return [progress._row_text(row) for row in display.progress.tasks]

    return rows_after


def items(*numbers):
    return [Step("words", done, 250, scope="unit") for done in numbers]


def test_answers_that_come_in_batches_are_counted_with_the_time_before_them(clock):
    """The first batch took three seconds, although its first answer is the first of all."""
    clock(0, whole(0), *items(0))
    for batch in range(3):
        rows = clock(3, *items(*range(64 * batch + 1, 64 * batch + 65)))
        assert rows[1].startswith(f"words {64 * (batch + 1)}/250 items, 21.3 items/s, 0:00:")
        assert rows[0].startswith("0/4 tasks, 5.12 tasks/min, 0:00:")
    assert [row.split()[-2] for row in rows] == ["0:00:38", "0:00:03"]
    # In the middle of a batch the rate is that of the batches before.
    assert clock(1.5)[1] == rows[1].replace("0:00:03", "0:00:02")


def test_a_small_first_tensor_does_not_say_how_long_a_merge_takes(clock):
    def merged(count):
        return Step("merging", count, 2_000_000_000, unit="bytes")

    clock(0, merged(0))
    assert clock(2, merged(2048)) == ["merging 0.0/2.0 GB, 0.00102 MB/s, 0:00:02 so far"]
    assert clock(2, merged(100_000_000))[0].endswith("25 MB/s, 0:01:16 left")
    clock(0, Step("reading", 0, 10**12, unit="bytes"))
    assert clock(40, Step("reading", 4_000_000, 10**12, unit="bytes"))[0].endswith(" left")


def test_the_start_of_an_engine_is_no_task(clock):
    clock(0, whole(0), Step("starting the engine"))
    clock(60, *items(0))
    assert clock(30, *items(125))[0] == "0/4 tasks, 1 tasks/min, 0:03:30 left"
    clock(30, *items(250), whole(1))
    assert clock(0, *items(0))[0] == "1/4 tasks, 1 tasks/min, 0:03:00 left"


def test_the_time_left_does_not_stand_still_in_a_step_of_minutes(clock):
    """It goes down to the end that is due, and up where that is late: the rate was too high."""
    clock(0, Step("training", 0, 5, unit="steps"))
    rows = [clock(180, Step("training", 1, 5, unit="steps")), *(clock(60) for _ in range(6))]
    left = [row[0].split(", ")[-1] for row in rows]
    due = ["0:12:00", "0:11:00", "0:10:00", "0:09:00"]
    late = ["0:13:00", "0:17:00", "0:21:00"]
    assert left == [f"{time_left} left" for time_left in due + late]


def test_a_step_that_begins_again_has_a_rate_of_its_own(clock):
    clock(0, *items(0))
    clock(10, *items(200))
    assert clock(5, *items(0)) == ["words 0/250 items"]
    assert clock(1, *items(50)) == ["words 50/250 items, 50 items/s, 0:00:04 left"]


def test_what_a_stopped_call_had_done_counts_neither_in_a_step_nor_in_the_run(clock):
    """Else a task with half of its answers stored seems to take the second of reading them."""
    rows = clock(0, whole(1)) + clock(1, *items(125))
    assert rows[1:] == ["1/4 tasks", "words 125/250 items"]
    rows = clock(9, *items(*range(126, 151)))
    assert rows[0] == "1/4 tasks, 40 tasks/h, 0:03:36 left"
    assert rows[1] == "words 150/250 items, 2.78 items/s, 0:00:36 left"


@pytest.mark.parametrize(
    ("speed", "unit", "text"),
    [
        (12.34, "items", "12.3 items/s"),
        (0.5, "tasks", "30 tasks/min"),
        (1 / 7200, "tasks", "0.5 tasks/h"),
        (111_111.1, "items", "111111 items/s"),
        (3.4e8, "bytes", "340 MB/s"),
        (3.42e9, "bytes", "3.42 GB/s"),
    ],
)
def test_a_rate_is_in_a_unit_that_can_be_read(speed, unit, text):
    assert progress._rate(speed, unit) == text


def test_nothing_is_shown_below_a_block_that_shows_nothing(lines):
    with status_line(False), status_line(True), status_line():
        show_slowly(Step("math", 1, 3), pause_s=0.5)
        assert not above("nobody prints this")
    assert lines() == []
