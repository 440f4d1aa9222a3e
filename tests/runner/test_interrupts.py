"""Ctrl-C and SIGTERM, at several moments of a real run: what it says and leaves behind."""

import re
import signal
import subprocess
import sys
import time

import pytest

from ablations.runs.run import load_run
from tests.standins.studies import study_document, write_yaml
from tests.standins.terminal import Terminal
from tests.waiting import wait_for_end, wait_until

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
"""What a terminal is told of its cursor."""


@pytest.fixture
def command_of(tmp_path, experts):
    """Return a function: settings that vary -> the run of a study of them."""

    def command(**vary):
        study = write_yaml(tmp_path / "small.yml", study_document(vary=vary))
        out = ["--out", str(tmp_path / "run")]
        return ["run", str(study), "--experts", str(experts), "--backend", "hf", *out]

    return command


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
def test_an_interrupt_says_how_to_go_on_and_leaves_nothing_running(
    command_of, tmp_path, moment, jobs
):
    command = command_of(bottom_layers=[0, 1, 2], top_layers=[0, 1])
    with Terminal(*command, "--jobs", jobs) as run:
        wait_until(lambda: moment in run.text or run.has_ended())
        children = run.process.children(recursive=True)
        run.press_ctrl_c()
        pressed = time.monotonic()
        wait_until(run.has_ended)
        assert time.monotonic() - pressed < 30  # two seconds, and more on a busy machine
        assert run.code == 130, run.text
        assert run.text.count("Interrupted. ") == 1
        nothing = "Nothing was finished yet; the same command begins again."
        some = "Finished work is saved; the same command goes on with the rest."
        assert nothing in run.text or some in run.text
        assert "Traceback" not in run.text
        assert "Aborted" not in run.text
        wait_for_end(children)
    # Answers may come between what is waited for and Ctrl-C, so the files say which is right; of
    # several processes, another may write one after the sentence.
    answers, stored = tmp_path.glob("answers/**/*.jsonl"), tmp_path.glob("run/records/[!.]*")
    is_saved = any(path.stat().st_size for path in answers) or any(stored)
    assert (some in run.text) == is_saved or (is_saved and jobs == "2")
    assert not list((tmp_path / "run").glob("records/.*"))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "word"), [("SIGINT", "Interrupted"), ("SIGTERM", "Terminated")])
def test_what_was_finished_before_an_end_is_saved_and_reused(command_of, tmp_path, number, word):
    # So many that they are not all done before the signal comes, on a busy machine too.
    counts = {"bottom_layers": [0, 1, 2, 3], "top_layers": [0, 1]}
    command = command_of(**counts, non_layer=["task", "average", "language"], seed=[0, 1, 2])
    with Terminal(*command) as run:
        wait_until(lambda: re.search(r"task expert[^\n]*: \d+\.\d", run.text) or run.has_ended())
        run.process.send_signal(getattr(signal, number))
        wait_until(run.has_ended)
        assert run.code == 128 + getattr(signal, number), run.text
        assert len(list((tmp_path / "run" / "records").glob("[!.]*"))) >= 2
        said = f"{word}. Finished work is saved; the same command goes on with the rest."
        assert run.text.count(said) == 1
        assert "Traceback" not in run.text
        assert run.text.rindex(SHOWN) > run.text.rindex(HIDDEN)
    assert (tmp_path / "run" / "scores.csv").is_file()
    with Terminal(*command) as run:
        wait_until(run.has_ended)
        assert run.code == 0, run.text
        assert re.search(r"(\d+)/\1 tasks", run.text)
        assert re.search(
            r"model (?!1 |2 )\d+ of (\d+), task 1 of 1: \d+/\1 tasks, \S+ tasks/\S+, \S+ left",
            run.text,
        )
        assert "8 items" in run.text
    assert not load_run(tmp_path / "run").unfinished


@pytest.mark.parametrize(
    ("number", "command", "code", "said"),
    [
        ("SIGINT", "run", 130, "Interrupted. Nothing was finished yet"),
        ("SIGTERM", "run", 143, "Terminated. Nothing was finished yet"),
        ("SIGTERM", "run --dry-run", 143, "Terminated.\n"),
        ("SIGINT", "run --dry-run", 130, "Interrupted.\n"),
        ("SIGTERM", "verify", 143, "Terminated.\n"),
    ],
)
def test_a_command_that_fails_of_an_interrupt_was_interrupted(number, command, code, said):
    """An import that is interrupted may raise an error of its own, and all cells fail of it."""
    script = f"""
import atexit, os, signal, sys
import click
from ablations import cli

atexit.register(print, "Python takes its libraries down")

@click.command("{command.split()[0]}")
@click.option("--dry-run", is_flag=True)
def stop(dry_run):
    try:
        os.kill(os.getpid(), signal.{number})
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(1)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
cli.LazyGroup.get_command = lambda *_: stop
cli.main({command.split()}, prog_name="layerswap")
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stderr.count(said) == 1
    assert done.stdout == ""  # with torch loaded, that takes longer than the two seconds


def test_a_fork_of_a_command_ends_by_sigterm_at_once():
    """A pool ends its workers so, and each would say that the command was terminated."""
    script = """
import os, signal, time
import click
from ablations import cli

@click.command("run")
def fork():
    if child := os.fork():
        time.sleep(0.5)
        os.kill(child, signal.SIGTERM)
        click.echo(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        time.sleep(60)

cli.LazyGroup.get_command = lambda *_: fork
cli.main(["run"], prog_name="layerswap")
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "-15\n", "")
