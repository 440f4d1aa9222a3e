"""Steps reach the listener, and the status line shows how far they are."""

import re
import sys
import time

from ablations.machine.progress import Step, above, counted, listening, status_line, tell


def test_what_is_taken_one_by_one_is_counted():
    heard = []
    with listening(heard.append):
        assert list(counted("reading", ["a", "b"])) == ["a", "b"]
    assert heard == [Step("reading", 0, 2, unit="tensors"), Step("reading", 1, 2, unit="tensors")]


def test_the_command_and_its_step_are_shown(capfd):
    steps = [
        Step("", 1, 3, unit="tasks", is_whole=True),
        Step("math", 0, 300),
        Step("math", 100, 300),
        Step("[bold]words"),
        Step("a", 5e5, 2e6, unit="bytes"),
        Step("b", 1e9, 1.6e10, unit="bytes"),
    ]
    with status_line(True):
        for step in steps:
            tell(step)
            time.sleep(0.15)  # rich draws ten times a second
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capfd.readouterr().err)
    for shown in ("1/3 tasks", "math 100/300 items", "[bold]words", "a 0.5/2.0 MB", "1.0/16.0 GB"):
        assert shown in text
    assert text.rindex("math") < text.rindex("[bold]words")


def test_nothing_is_drawn_over_what_shows_its_own_progress(capfd):
    with status_line(True):
        tell(Step("planning"))
        tell(Step(""))
        capfd.readouterr()
        time.sleep(0.3)
        assert capfd.readouterr() == ("", "")
        tell(Step("scoring"))
        time.sleep(0.3)
        assert "scoring" in capfd.readouterr().err


def test_lines_go_above_and_no_terminal_has_no_line(capsys):
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
