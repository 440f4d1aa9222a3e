"""Steps reach the listener, and the status line shows how far they are."""

import re
import sys
import time

import pytest

from ablations.machine.progress import (
    Step,
    counted,
    listening,
    tell,
)
from ablations.machine.status_line import above, status_line


def test_what_is_taken_one_by_one_is_counted() -> None:
    heard = list[Step]()
    with listening(heard.append):
        assert list(counted("reading", ["a", "b"])) == ["a", "b"]
    assert heard == [Step("reading", 0, 2, unit="tensors"), Step("reading", 1, 2, unit="tensors")]


def screen(capfd: pytest.CaptureFixture[str], *steps: Step) -> str:
    """Return what a terminal was sent while these steps were told."""
    with status_line(True):
        for step in steps:
            tell(step)
            time.sleep(0.15)  # rich draws ten times a second
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capfd.readouterr().err)


def test_the_command_and_its_step_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    text = screen(
        capfd,
        Step("", 1, 3, unit="tasks", is_whole=True),
        Step("math", 0, 300, where="soup"),
        Step("math", 100, 300, where="soup"),
        Step("[bold]words"),
    )
    for said in ("1/3 tasks", "math | soup 100/300 items", "[bold]words"):
        assert said in text
    assert text.rindex("math") < text.rindex("[bold]words")


def test_nothing_is_drawn_over_what_shows_its_own_progress(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with status_line(True):
        tell(Step("planning"))
        tell(Step(""))
        capfd.readouterr()
        time.sleep(0.3)
        assert capfd.readouterr() == ("", "")
        tell(Step("scoring"))
        time.sleep(0.3)
        assert "scoring" in capfd.readouterr().err


def test_bytes_are_in_a_unit_that_fits(capfd: pytest.CaptureFixture[str]) -> None:
    text = screen(capfd, Step("a", 5e5, 2e6, unit="bytes"), Step("b", 1e9, 1.6e10, unit="bytes"))
    assert "a 0.5/2.0 MB" in text
    assert "b 1.0/16.0 GB" in text


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
