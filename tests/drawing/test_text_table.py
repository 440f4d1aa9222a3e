"""Lists fit the terminal, and a command stands whole on a line of its own."""

import io
import re

from ablations.drawing.text_table import fitted, list_table, wrapped
from ablations.recipe_commands.find import describe_recipes, list_recipes
from ablations.study.shipped import describe_studies, list_studies
from ablations.tasks.listing import describe_benchmarks, describe_tasks, listed_tasks

COMMAND = "layerswap answers runs/evaluate/a-model/hf-limit-5:base --task words --wrong"


def test_a_command_is_one_line():
    text = f"words: every answer is wrong. Compare the prompts with the task file: {COMMAND}"
    lines = wrapped(f"Warning: {text}", 60, indent="  ").splitlines()
    assert lines[-1] == f"    {COMMAND}"
    assert max(map(len, lines[:-1])) <= 60
    assert " ".join(map(str.strip, lines)) == f"Warning: {text}"
    plain = "no command: layerswap"
    assert wrapped(plain, first="- ") == f"- {plain}"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_only_on_a_terminal_long_lines_go_on_below(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    text = "short   line\n  one two three four five six\n\n/a/path/that/is/longer/than/that"
    lines = ["  one two three four", "    five six", "", "/a/path/that/is/longer/than/that"]
    assert fitted(text, Terminal()).split("\n") == ["short   line", *lines]
    assert fitted(text, io.StringIO()) == text


def test_shipped_lists_fit_a_terminal_of_80_columns():
    recipes, studies = list_recipes(), list_studies()
    lists = {
        "recipes": (describe_recipes(recipes, 80), describe_recipes(recipes)),
        "studies": (describe_studies(studies, 80), describe_studies(studies)),
        "benchmarks": (describe_benchmarks(80), describe_benchmarks()),
        "tasks": (describe_tasks(listed_tasks(), 80), describe_tasks(listed_tasks())),
    }
    for name, (narrow, whole) in lists.items():
        assert max(map(len, narrow.splitlines())) <= 80, name
        assert len(narrow.splitlines()) > len(whole.splitlines()) > 10


def test_every_word_of_a_list_stays():
    rows = [("a", "one two three four five", "six seven"), ("b", "eight", "")]
    narrow = list_table(("name", "long", "short"), rows, 30)
    whole = list_table(("name", "long", "short"), rows)
    assert sorted(re.findall("[a-z]+", narrow)) == sorted(re.findall("[a-z]+", whole))
    assert max(map(len, narrow.splitlines())) <= 30
