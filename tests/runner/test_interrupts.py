"""Ctrl-C on a real terminal, at several moments of a real run: what it says and leaves behind."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

import psutil
import pytest

from ablations.runs import records
from tests.standins.studies import study_document, write_yaml
from tests.waiting import wait_for_end, wait_until


class Terminal:
    """A `layerswap` command on a terminal of 100 columns; ended with the block."""

    def __init__(self, *arguments):
        self._pid, self._screen = pty.fork()
        if not self._pid:
            code = "from ablations.cli import main; main(prog_name='layerswap')"
            os.execvp(sys.executable, [sys.executable, "-c", code, *arguments])
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        os.set_blocking(self._screen, False)
        self.process, self.code, self._bytes = psutil.Process(self._pid), None, b""

    @property
    def text(self):
        """What stands on the screen so far."""
        with suppress(BlockingIOError, OSError):
            while part := os.read(self._screen, 65536):
                self._bytes += part
        return self._bytes.decode(errors="replace").replace("\r\n", "\n")

    def press_ctrl_c(self):
        os.write(self._screen, b"\x03")

    def has_ended(self):
        _ = self.text  # a full screen would hold it up
        if self.code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.has_ended():
            self.process.kill()
            wait_until(self.has_ended)
        os.close(self._screen)


@pytest.fixture
def command(tmp_path, experts):
    """Return the run of a small study of seven models."""
    vary = {"bottom_layers": [0, 1, 2], "top_layers": [0, 1]}
    study = write_yaml(tmp_path / "small.yml", study_document(vary=vary))
    out = ["--out", str(tmp_path / "run")]
    return ["run", str(study), "--experts", str(experts), "--backend", "hf", *out]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "jobs"),
    [
        ("reading the experts", "1"),
        ("loading the libraries of", "1"),
        ("starting hf", "1"),
        ("preparing prompts", "1"),
        ("0/7 tasks", "2"),
    ],
)
def test_an_interrupt_says_how_to_go_on_and_leaves_nothing_running(command, tmp_path, moment, jobs):
    with Terminal(*command, "--jobs", jobs) as run:
        wait_until(lambda: moment in run.text or run.has_ended())
        children = run.process.children(recursive=True)
        run.press_ctrl_c()
        pressed = time.monotonic()
        wait_until(run.has_ended)
        assert time.monotonic() - pressed < 4  # two seconds, and as many for a busy machine
        assert run.code == 130, run.text
        assert run.text.count("Interrupted. ") == 1
        assert "he same command goes on with the rest." in run.text
        assert "Traceback" not in run.text
        assert "Aborted" not in run.text
        wait_for_end(children)
    assert not list((tmp_path / "run").glob("records/.*"))


@pytest.mark.slow
def test_what_was_finished_before_an_interrupt_is_saved_and_reused(command, tmp_path):
    with Terminal(*command) as run:
        wait_until(lambda: re.search(r"task expert[^\n]*: \d+\.\d", run.text) or run.has_ended())
        run.press_ctrl_c()
        wait_until(run.has_ended)
        assert run.code == 130, run.text
        assert len(list((tmp_path / "run" / "records").glob("[!.]*"))) >= 2
        assert "Interrupted. " in run.text
    with Terminal(*command) as run:
        wait_until(run.has_ended)
        assert run.code == 0, run.text
        assert "7/7 tasks" in run.text
        assert "8 items" in run.text
    assert not records.load_run(tmp_path / "run").unfinished


def test_a_run_that_fails_of_an_interrupt_was_interrupted():
    """An import that is interrupted may raise an error of its own, and all cells fail of it."""
    code = """
import atexit, os, signal, sys
import click
from ablations import cli

atexit.register(print, "Python takes its libraries down")

@click.command("run")
def run():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(1)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
cli.LazyGroup.get_command = lambda *_: run
cli.main(["run"], prog_name="layerswap")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 130
    assert found.stderr.count("Interrupted. ") == 1
    assert found.stdout == ""  # with torch loaded, that takes longer than the two seconds
