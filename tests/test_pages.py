"""Pages: links lead somewhere, commands parse, cheap ones print what is shown."""

import itertools
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from ablations.cli import main
from ablations.recipe_commands.find import recipe_files
from layerswap_method.errors import LayerSwapError
from tests.standins.command import layerswap, output_of

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "ablations", "layerswap_method", "recipes", "tools")
PAGES = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
CHEAP = ("check", "init", "plan", "recipes", "studies", "tasks")
"""Commands that are run here; output of others is not shown on a page."""
EXAMPLE = re.compile(r"[A-Z]{2,}|\.\.\.|\brecipe\.yml|^(check|init|plan|recipes)$")
"""Placeholders in a command that is therefore not run."""
TARGETS = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
RECIPES = {p.relative_to(ROOT / "recipes").as_posix() for p in recipe_files(ROOT / "recipes")}
STUDIES = {path.stem for path in (ROOT / "ablations" / "studies").glob("*.yml")}
EXPERTS = {path.stem for path in (ROOT / "ablations" / "studies" / "experts").glob("*.yml")}
CONFIGS = {
    p.relative_to(ROOT / "recipes" / "experts").with_suffix("").as_posix()
    for p in (ROOT / "recipes" / "experts").rglob("*.yml")
}


TASKS = {path.stem for path in (ROOT / "ablations" / "tasks" / "generated").glob("*.yaml")}


def name(path):
    return path.relative_to(ROOT).as_posix()


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """Return the anchors that GitHub gives the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", head.lower()) for head in heads]
    return {head.strip().replace(" ", "-") for head in plain}


def blocks(page):
    """Yield the blocks of commands, each command on one line."""
    for block in re.findall(r"^```(?:console|bash)\n(.*?)^```", page.read_text(), re.M | re.S):
        yield block.replace("\\\n", " ")


def commands(page):
    """Yield the words of every command of ours in blocks and in `code` of a page."""
    shown = re.findall(r"^\$ (.+)", "\n".join(blocks(page)), re.MULTILINE)
    prose = without_code(page.read_text())
    inline = re.findall(r"`((?:layerswap|mergekit-yaml|make) [^`]+)`", prose)
    for line in [*shown, *inline]:
        lexer = shlex.shlex(" ".join(line.split()), posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        for is_operator, group in itertools.groupby(lexer, lambda word: set(word) <= set(";&|")):
            words = [] if is_operator else list(group)
            if words[:1] == ["accelerate"]:
                words = words[words.index("layerswap") :]
            if words and words[0] in ("layerswap", "mergekit-yaml", "make"):
                yield words


def is_shipped(value):
    """Whether a word has the form of a shipped name: no file, no placeholder, no folder."""
    return re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)?", value) is not None


def check_words(words):
    """Raise where an option, a command, a target or a shipped name does not exist."""
    program, *rest = words
    if program == "make":
        targets = [word for word in rest if "=" not in word and not word.startswith("-")]
        assert set(targets) <= set(TARGETS), words
    elif program == "mergekit-yaml":
        assert_recipe(rest[0])
    else:
        command = main
        while isinstance(command, click.Group) and rest and rest[0] != "...":
            found = command.get_command(click.Context(main), rest[0])
            assert found is not None, words
            command, rest = found, rest[1:]
        words = [word for word in rest if word != "..."]
        parsed, _, _ = command.make_parser(click.Context(command)).parse_args(words)
        check_values(command, parsed)
        check_names(command, parsed)


def assert_recipe(value):
    if value.startswith("recipes/") and not value.endswith("/mine.yml"):
        assert value.removeprefix("recipes/") in RECIPES, value


def check_values(command, parsed):
    for parameter in command.params:
        value = parsed.get(str(parameter.name))
        if isinstance(parameter.type, click.Choice) and isinstance(value, str):
            parameter.type.convert(value, parameter, None)


def check_names(command, parsed):
    experts = parsed.get("experts")
    if isinstance(experts, str) and is_shipped(experts):
        assert experts in EXPERTS, experts
    shipped = {"run": STUDIES, "train": CONFIGS}.get(str(command.name))
    arguments = [str(p.name) for p in command.params if isinstance(p, click.Argument)]
    for value in (parsed.get(name) for name in arguments):
        for word in value if isinstance(value, tuple) else (value,):
            if isinstance(word, str):
                assert_recipe(word)
                assert shipped is None or not is_shipped(word) or word in shipped, word


def test_there_are_pages():
    assert {"README.md", "docs/findings.md", "ablations/LOG.md"} <= {name(page) for page in PAGES}


def test_the_page_of_tests_names_every_stand_in_once():
    folder = ROOT / "tests" / "standins"
    rows = re.findall(r"^\| (`\w+\.py`.*?) \|", (ROOT / "tests" / "README.md").read_text(), re.M)
    names = [file for row in rows for file in re.findall(r"`(\w+\.py)`", row)]
    files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert sorted(names) == sorted(files) != []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", without_code(page.read_text()))
    for link in (one or other for one, other in links if "://" not in one + other):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_parse(page):
    for words in commands(page):
        try:
            check_words(words)
        except (click.ClickException, LayerSwapError) as error:
            pytest.fail(f"{' '.join(words)}: {error}")


def cheap_commands(page):
    of_ours = [words for program, *words in commands(page) if program == "layerswap"]
    return [words for words in of_ours if words[0] in CHEAP and not EXAMPLE.search(" ".join(words))]


@pytest.mark.parametrize("page", [page for page in PAGES if cheap_commands(page)], ids=name)
def test_cheap_commands_run(page, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    for words in cheap_commands(page):
        offline = ["--offline"] if words[0] == "check" else []
        output_of(*words, *offline)


SHOWN = [
    (page, command, output)
    for page in PAGES
    for block in blocks(page)
    for command, output in re.findall(r"^\$ layerswap (.+)\n((?:(?!\$ ).*\n)+)", block, re.M)
]


@pytest.mark.parametrize(("page", "command", "output"), SHOWN, ids=[c for _, c, _ in SHOWN])
def test_shown_output_is_what_the_command_prints(page, command, output, monkeypatch):
    words = shlex.split(command, comments=True)
    assert words[0] in CHEAP, f"{name(page)}: no output of a long command is shown"
    monkeypatch.chdir(ROOT)
    printed = layerswap(*words).output
    pattern = ".*".join(re.escape(part) for part in output.split("...\n"))
    assert re.search(pattern, printed, re.DOTALL), printed


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ablations" / "study" / "schema.py"], ids=name)
def test_tasks_that_a_page_names_exist(page):
    benchmarks = "belebele|flores|global_mgsm|mbpp|mgsm|mmlu|msvamp|polymath"
    named = re.findall(rf"\blayerswap_(?:{benchmarks})_[\w-]+\b(?![{{_])", page.read_text())
    assert {*named} <= TASKS
