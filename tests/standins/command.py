"""A command of `layerswap`, called in this process."""

from click.testing import CliRunner

from ablations.cli import main


def layerswap(*words):
    """Return what click's runner gives of a command; a traceback fails the test.

    Progress is off: on a machine that is held up it would write lines among the command's own.
    """
    runner = CliRunner(env={"TQDM_DISABLE": "1"})
    return runner.invoke(main, [*map(str, words)], catch_exceptions=False)


def told(*words):
    """Return the exit code and the output of a command."""
    result = layerswap(*words)
    return result.exit_code, result.output


def output_of(*words):
    """Return the output of a command that must succeed."""
    result = layerswap(*words)
    assert result.exit_code == 0, result.output
    return result.output
