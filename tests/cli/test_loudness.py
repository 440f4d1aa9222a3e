"""--quiet and --verbose, before a command or after it."""

import logging
import os

import pytest

from ablations.cli import COMMANDS, main
from tests.standins.command import layerswap
from tests.standins.terminal import Terminal
from tests.train.conftest import base, rows, write_config
from tests.waiting import wait_until

__all__ = ["base", "rows"]


@pytest.fixture
def training(tmp_path, base, rows):
    """Return the words of a small training, and its folder."""
    config = write_config(tmp_path / "c.yml", base, rows)
    return ["train", config, "--out", tmp_path / "out"], tmp_path / "out"


@pytest.fixture(autouse=True)
def _log(monkeypatch):
    """Give every test the loggers of a new process."""
    logger = logging.getLogger("ablations")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, level, logger.propagate = before
    logger.setLevel(level)


@pytest.mark.parametrize("place", ["before", "after"])
def test_quiet_shows_results_only(training, place):
    words, out = training
    result = layerswap("-q", *words) if place == "before" else layerswap(*words, "--quiet")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith(f"expert: {out}\n")


def test_quiet_leaves_warnings_and_errors(training):
    words, out = training
    words = [*words, "--set", "regime=lora", "--set", "lora.nothing=1", "--quiet"]
    result = layerswap(*words)
    assert result.exit_code == 2
    assert "nothing" in result.stderr
    assert not out.exists()


def test_by_default_the_log_says_what_was_done(training):
    words, _ = training
    log = layerswap(*words).stderr
    assert "out: step 4 of 4, loss" in log
    assert "ablations.machine.progress" not in log


@pytest.mark.parametrize("place", ["before", "after"])
def test_verbose_shows_the_debug_messages_of_us_and_of_the_libraries(training, place):
    words, _ = training
    root = logging.getLogger()
    before = root.level, list(root.handlers), os.environ.get("TRANSFORMERS_VERBOSITY")
    result = layerswap("--verbose", *words) if place == "before" else layerswap(*words, "-v")
    assert result.exit_code == 0
    names = {line.partition(":")[0] for line in result.stderr.splitlines()}
    assert {"ablations.machine.progress", "ablations.train.trainer"} <= names
    assert {name.partition(".")[0] for name in names} - {"ablations", "layerswap"}
    assert (root.level, root.handlers, os.environ.get("TRANSFORMERS_VERBOSITY")) == before


@pytest.mark.parametrize(
    "words", [("-q", "-v", "tasks"), ("-q", "tasks", "-v"), ("tasks", "--quiet", "--verbose")]
)
def test_quiet_and_verbose_exclude_each_other(words):
    result = layerswap(*words)
    assert result.exit_code == 2
    assert "--quiet and --verbose exclude each other; give one of them" in result.stderr


@pytest.mark.parametrize(
    "words", [("-q", "tasks", "-q"), ("tasks", "-v"), ("recipes", "-q", "list")]
)
def test_a_command_without_a_log_takes_them_as_well(words):
    assert layerswap(*words).exit_code == 0


def test_every_command_has_both():
    context = main.make_context("layerswap", ["tasks"])
    below = [main.get_command(context, name) for name in COMMANDS]
    assert len(below) > 15
    while below:
        command = below.pop()
        options = [option for param in command.params for option in param.opts]
        assert options.count("--quiet") == options.count("--verbose") == 1, command.name
        below += getattr(command, "commands", {}).values()


@pytest.mark.slow
def test_quiet_draws_no_bar_on_a_terminal(training):
    words, out = training
    with Terminal(*map(str, words), "--quiet") as command:
        wait_until(command.has_ended)
        assert command.code == 0, command.text
        assert command.text.splitlines() == [
            f"expert: {out}",
            f"for studies: {out / 'experts.yml'}",
        ]
