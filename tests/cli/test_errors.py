"""Errors know no command line; `layerswap` and mergekit's programs show them alike."""

import json
import pickle
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import ablations.cli
from ablations.engines.live import SwapFailed
from ablations.tasks.data import DataUnavailable
from layerswap_method.command_line import ShownError, shown, shown_errors
from layerswap_method.errors import InputError, LayerSwapError

LIST = InputError.from_problems("recipe", ["one", "two\nthree"])
CODES = [
    (LayerSwapError("disk"), 1, "disk"),
    (SwapFailed("cannot be loaded"), 1, "cannot be loaded"),
    (DataUnavailable("its data is away"), 1, "its data is away"),
    (InputError("path"), 2, "path"),
    (LIST, 2, "recipe: 2 problems\n  - one\n  - two\n    three"),
]


@pytest.mark.parametrize(("error", "code", "text"), CODES, ids=lambda each: str(each)[:20])
def test_one_text_and_exit_code_in_every_command(error, code, text, monkeypatch):
    @click.command()
    @shown_errors()
    def of_mergekit():
        raise error

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(ablations.cli, "COMMANDS", {"tasks": "evaluation"})
    monkeypatch.setattr("ablations.tasks.listing.describe_benchmarks", fail)
    for command, words in ((of_mergekit, []), (ablations.cli.main, ["tasks"])):
        done = CliRunner().invoke(command, words)
        assert (done.exit_code, done.stdout) == (code, "")
        assert done.stderr.startswith(f"Error: {text}")
        assert "Traceback" not in done.stderr


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("ablations.tasks.listing.describe_benchmarks", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(ablations.cli.main, ["tasks"], catch_exceptions=False)


def test_a_shown_error_is_still_what_it_was():
    wrong = shown(LIST)
    assert isinstance(wrong, InputError)
    assert (wrong.message, wrong.problems) == (LIST.message, LIST.problems)
    assert shown(wrong) is wrong
    assert not isinstance(shown(LayerSwapError("disk")), InputError)
    assert not isinstance(LIST, (click.ClickException, ShownError))


def test_errors_cross_processes():
    for error, *_ in CODES:
        other = pickle.loads(pickle.dumps(error))
        assert (type(other), other.message) == (type(error), error.message)


def test_the_errors_import_no_click():
    code = "import json, sys, layerswap_method.errors; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "layerswap_method.errors" in json.loads(done.stdout)
    assert "click" not in json.loads(done.stdout)
