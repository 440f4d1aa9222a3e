"""Write `ablations/tasks/generated` from the language table.

python -m tools.task_files           write `generated/` anew
python -m tools.task_files --check   say what differs, and exit with 1 if anything does
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from ablations.machine.whole_files import write_text
from ablations.tasks.catalog import PAPER_BENCHMARKS, SHIPPED_TASKS, FunctionName
from layerswap_method.command_line import shown_errors
from layerswap_method.errors import LayerSwapError
from tools.task_contents import BENCHMARKS, VERSION
from tools.task_languages import Language, load_languages

_HEADER = (
    "# Written by `python -m tools.task_files` from languages.yml and tools/task_contents.py: edit "
    "those.\n"
)


def task_files(languages: dict[str, Language]) -> dict[str, str]:
    """Return file name → text of every task and group."""
    files: dict[str, dict[str, Any]] = {}
    members, others = dict[str, list[str]](), dict[str, list[str]]()
    for benchmark, tasks in BENCHMARKS.items():
        for content in tasks(languages):
            name = content["task"]
            files[name] = content
            suffix = name.removeprefix(f"layerswap_{benchmark}_")
            members.setdefault(f"layerswap_{benchmark}", []).append(name)
            # A pair belongs to its language that is not English.
            codes = [code for code in suffix.split("-") if "-" not in suffix or code != "en"]
            # A language's group has the paper's benchmarks: the others ask again what MGSM asks,
            # or take long. A language that has none of the paper's has the others.
            for code in codes if benchmark in PAPER_BENCHMARKS else ():
                members.setdefault(f"layerswap_{code}", []).append(name)
            for code in codes if benchmark not in PAPER_BENCHMARKS else ():
                others.setdefault(f"layerswap_{code}", []).append(name)
    for group, tasks_of_group in {**others, **members}.items():
        metadata = {"version": VERSION}
        files[group] = {"group": group, "task": tasks_of_group, "metadata": metadata}
    return {f"{name}.yaml": _HEADER + _dump(content) for name, content in files.items()}


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write `files` to `folder` and remove other task files there."""
    for path in folder.glob("*.yaml"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        write_text(folder / name, text)


def find_differences(folder: Path, files: dict[str, str]) -> list[str]:
    """Return how the task files in `folder` differ from those of the table."""
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    missing, odd = files.keys() - there.keys(), there.keys() - files.keys()
    differing = {name for name in files.keys() & there.keys() if files[name] != there[name]}
    kinds = {"is missing": missing, "is not from the table": odd, "differs": differing}
    return [f"{name} {difference}" for difference, names in kinds.items() for name in sorted(names)]


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as lines, and functions."""


def _write_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # A stop string that begins with a line break is not to be recognised as lines.
    style = '"' if text.startswith("\n") else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_str)
_Dumper.add_representer(
    FunctionName, lambda dumper, name: dumper.represent_scalar("!function", str(name))
)


def _dump(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 where a file differs.")
@shown_errors()
def main(check: bool) -> None:
    """Write the task files of every benchmark and language."""
    files = task_files(load_languages())
    if not check:
        write_files(SHIPPED_TASKS / "generated", files)
    elif differences := find_differences(SHIPPED_TASKS / "generated", files):
        hint = "run `python -m tools.task_files`"
        raise LayerSwapError("\n".join([*differences, hint]))
    click.echo(f"{len(files)} task files are in step with languages.yml")


if __name__ == "__main__":
    main()
