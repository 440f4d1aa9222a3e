"""What the command prints on a terminal of 80 columns: its help and its lists."""

import pytest

from ablations.cli import COMMANDS, SECTIONS, main
from tests.standins.command import layerswap

LISTS = (
    ["recipes", "list"],
    ["studies", "list"],
    ["tasks"],
    ["tasks", "--language", "es"],
    ["tasks", "--benchmark", "belebele"],
    ["cache"],
)


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("ablations.drawing.text_table.terminal_width", lambda: 80)


def helps():
    """Yield the words that ask every command, also those of a group, for its help."""
    yield ["--help"]
    context = main.make_context("layerswap", [], resilient_parsing=True)
    for name in COMMANDS:
        yield [name, "--help"]
        for inner in getattr(main.get_command(context, name), "commands", ()):
            yield [name, inner, "--help"]


def printed(words):
    result = layerswap(*words)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_every_help_and_every_list_fits():
    every = [*helps(), *LISTS]
    assert len(every) > 30
    long = {" ".join(w): [line for line in printed(w) if len(line) > 80] for w in every}
    assert {words: lines for words, lines in long.items() if lines} == {}


def test_every_command_is_below_one_heading():
    listed = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(listed) == sorted(COMMANDS)
    lines = printed(["--help"])
    places = [lines.index(f"{title}:") for title in SECTIONS]
    assert places == sorted(places)
    assert lines[places[0] + 1].split()[0] == "recipes"
