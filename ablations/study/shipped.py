"""The shipped studies: list and copies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ablations.drawing.text_table import list_table
from ablations.machine.whole_files import write_errors, write_text
from ablations.recipe_commands.find import command_lines, new_file, with_field
from ablations.study.files import STUDIES
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.strict_yaml import read_yaml

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""A name of a study, as the schema has it."""


class ShippedStudy(NamedTuple):
    """A study as the list shows it."""

    name: str
    experts: str
    """Name of the experts file that it runs on."""

    question: str
    path: Path


def list_studies() -> list[ShippedStudy]:
    """Return the shipped studies by name."""
    studies = []
    for name, path in _shipped().items():
        document = read_yaml(path)
        experts = Path(document["experts_file"]).stem
        studies.append(ShippedStudy(name, experts, document["question"], path))
    return studies


def describe_studies(studies: Sequence[ShippedStudy], width: int | None = None) -> str:
    """Return a table of name, experts and question of studies; see `list_table`."""
    rows = [[study.name, study.experts, study.question] for study in studies]
    return list_table(("study", "experts", "question"), rows, width)


def copy_study(name: str, out: Path) -> Path:
    """Copy a shipped study so that it runs where it stands; return the new file.

    `name` may end in ``.yml``, `out` is a file ending in ``.yml``, or else a folder. The copy has
    the name of its file, and so a run folder of its own; its experts file is the shipped one.

    Raises:
        InputError: for an unknown study, or where the file exists already.
        LayerSwapError: where it cannot be written.
    """
    shipped, name = _shipped(), name.removesuffix(".yml")
    if name not in shipped:
        hint = nearest(name, shipped) or f"; there are {', '.join(shipped)}"
        raise InputError(f"no study {name!r} ships{hint}")
    target = new_file(f"{name}.yml", out)
    text = shipped[name].read_text(encoding="utf-8")
    text = re.sub(r"^experts_file: experts/(\w+)\.yml", r"experts_file: \1", text, flags=re.M)
    if _NAME.fullmatch(target.stem):
        text = re.sub(r"^name: .*", f"name: {target.stem}", text, count=1, flags=re.M)
    text = with_field(text, "Run", command_lines(["layerswap", "run", str(target)]))
    with write_errors(target):
        write_text(target, text)
    return target


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(STUDIES.glob("*.yml"))}
