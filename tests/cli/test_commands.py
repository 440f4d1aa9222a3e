import importlib.metadata

import click
import pytest
from click.testing import CliRunner

from ablations.cli import main
from layerswap_method import __version__
from layerswap_method.errors import InputError


@pytest.fixture
def runner():
    return CliRunner()


def test_the_console_program_is_this_group():
    (program,) = [
        entry
        for entry in importlib.metadata.entry_points(group="console_scripts")
        if entry.name == "layerswap"
    ] or [None]
    if program is None:
        pytest.skip("the package is not installed in this environment")
    assert program.load() is main


def test_an_unknown_command_exits_2_and_names_the_nearest(runner):
    result = runner.invoke(main, ["quikstart"])
    assert result.exit_code == 2
    assert "no command 'quikstart'; did you mean 'quickstart'?" in result.output


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "/out/run.json"), "/out/run.json: No space left"),
        (OSError(36, "File name too long"), "Error: File name too long"),
        (InputError("no model 'a\x1b]0;title\x07'"), "no model 'a\\x1b]0;title\\x07'"),
    ],
)
def test_what_a_system_or_a_name_says_is_one_line_without_a_traceback(
    runner, monkeypatch, error, said
):
    @click.command()
    def version():
        raise error

    monkeypatch.setattr("ablations.cli.version.version", version)
    result = runner.invoke(main, ["version"])
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert result.output.count("\n") == 1


def test_names_in_what_is_printed_give_a_terminal_no_orders(tmp_path):
    recipe = tmp_path / "r.yml"
    recipe.write_text('merge_method: linear\nmodels: [{model: "a\\u001b[2Jb"}]\ndtype: float32\n')
    result = CliRunner().invoke(main, ["check", str(recipe)])
    assert "\x1b" not in result.output
    assert "\\x1b[2J" in result.output


def test_version_says_what_is_installed(runner):
    lines = runner.invoke(main, ["version"]).output.splitlines()
    assert lines[0] == f"layerswap {__version__}"
    assert f"mergekit {importlib.metadata.version('mergekit')}" in lines
    assert all(len(line.split()) in (2, 3) for line in lines)
