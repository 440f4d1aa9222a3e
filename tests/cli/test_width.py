"""What the command prints on a terminal of 80 columns: its help and its lists."""

import click.testing
import pytest
import yaml

from ablations.cli import COMMANDS, SECTIONS, main
from tests.report.runs import BASELINES, level, study_of, write_run
from tests.search.searches import made_search, write_models, write_words_search
from tests.standins.command import layerswap
from tests.train.conftest import write_base, write_config, write_rows

LISTS = (
    ["recipes", "list"],
    ["studies", "list"],
    ["tasks"],
    ["tasks", "--language", "es"],
    ["tasks", "--benchmark", "belebele"],
    ["cache"],
)


DRY = ["--dry-run"]
ON_HF = ["--backend", "hf"]
TASKS = ["--include-path", "tasks"]
STUDY = ["small.yml", "--experts", "experts.yml", *ON_HF]
MADE = (
    (0, ["run", *STUDY, *DRY]),
    (0, ["search", *STUDY, *DRY, "--budget", "5"]),
    (0, ["evaluate", "models/math", "--tasks", "read_sw,choose_sw", *TASKS, *ON_HF, *DRY]),
    (0, ["train", "train.yml", *DRY]),
    (0, ["check", "recipe.yml"]),
    (2, ["check", "nothing/that/is/there/recipe.yml"]),
    (0, ["plan", "recipe.yml"]),
    (0, ["merge", "recipe.yml", "merged"]),
    (1, ["explain", "models/math", "models/base"]),
    (2, ["compat", "models/math", "models/swahili", "--base", "models/base"]),
    (1, ["verify", "models/math", "models/swahili"]),
    (2, ["delta", "models/math", "--base", "models/base"]),
    (0, ["report", "runs/of_a_study", "--format", "csv,md"]),
    (0, ["report", "runs/of_a_search", "--format", "csv,md"]),
    (0, ["power", "runs/of_a_study"]),
    (0, ["compare", "runs/of_a_study:soup", "runs/of_a_study:base"]),
)
"""Exit code, and words of commands in the folder of `world`."""


class _Terminal(click.testing._NamedTextIOWrapper):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(click.testing, "_NamedTextIOWrapper", _Terminal)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return a folder with models, a recipe, a study, a training file and runs."""
    folder = tmp_path_factory.mktemp("world")
    write_words_search(folder, write_models(folder / "models"))
    roles = (("math", "task"), ("swahili", "language"))
    models = [{"model": f"models/{name}", "parameters": {"role": role}} for name, role in roles]
    recipe = {"merge_method": "layer_swap", "base_model": "models/base", "models": models}
    parameters = {"parameters": {"bottom_layers": 1, "top_layers": 1}}
    (folder / "recipe.yml").write_text(yaml.safe_dump({**recipe, **parameters}))
    base, rows = write_base(folder / "trained"), write_rows(folder / "rows.jsonl")
    write_config(folder / "train.yml", base, rows)
    vary = {"bottom_layers": [1, 2, 3], "top_layers": [0, 1]}
    study = study_of(baseline=BASELINES, vary=vary)
    write_run(folder / "runs/of_a_study", study, level, items=50)
    made_search(folder / "runs/of_a_search")
    return folder


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


@pytest.mark.slow
def test_what_commands_print_fits(world, monkeypatch):
    """A path is no line that can be broken."""
    monkeypatch.chdir(world)
    long = dict[str, list[str]]()
    for code, words in MADE:
        result = layerswap(*words)
        assert result.exit_code == code, result.output
        assert len(result.output.splitlines()) > 1, words
        lines = [line for line in result.output.splitlines() if len(line) > 80]
        long[" ".join(words)] = [line for line in lines if " " in line.strip()]
    assert {words: lines for words, lines in long.items() if lines} == {}


def test_every_command_is_below_one_heading():
    listed = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(listed) == sorted(COMMANDS)
    lines = printed(["--help"])
    places = [lines.index(f"{title}:") for title in SECTIONS]
    assert places == sorted(places)
    assert lines[places[0] + 1].split()[0] == "recipes"
