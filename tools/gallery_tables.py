"""Write the tables of `recipes/README.md`: one row a recipe, made of its header and its settings.

    python -m tools.gallery_tables [--write]

Without --write it only says what is not up to date, with exit code 1: the tables in
`recipes/README.md`, the JSON schema, and the line of each recipe that names the schema.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from ablations.gallery.find import (
    SCHEMA_FILE,
    SCHEMA_LINE,
    read_header,
    recipe_files,
    schema_text,
    settings,
)
from ablations.machine.whole_files import write_text
from layerswap_method.errors import LayerSwapError
from layerswap_method.recipe.strict_yaml import parse_yaml

BEGIN = "<!-- The tables below are made by: python -m tools.gallery_tables --write -->\n"

_SECTIONS = {
    "": "The paper's recipes",
    "community": "Community: public experts that share a base",
    "different_bases": "Experts of different bases",
    "modules": "Attention or MLP only",
    "placements": "Where the swapped layers sit",
    "variants": "Variants from follow-up work",
    "revert": "Reverting an expert to its base",
    "baselines": "Baselines",
    "pocket": "Pocket testbed",
}
"""Folder -> title, in this order; other folders come after these under their own names."""


def index_text(root: Path) -> str:
    """Return the tables of all recipes below `root`, in Markdown.

    Raises:
        InputError: for a recipe that cannot be read.
    """
    recipes: dict[str, list[str]] = {}
    for path in recipe_files(root):
        name = path.relative_to(root).as_posix()
        folder = name.rpartition("/")[0]
        recipes.setdefault(folder, []).append(_row(name, path.read_text(encoding="utf-8")))
    order = [*_SECTIONS, *sorted(set(recipes) - set(_SECTIONS))]
    tables = []
    for folder in (each for each in order if each in recipes):
        head = "| recipe | what | settings |"
        rule = "|" + "---|" * 3
        title = _SECTIONS.get(folder, folder)
        tables.append("\n".join([f"## {title}", "", head, rule, *recipes[folder]]))
    return "\n\n".join(tables) + "\n"


def outdated(root: Path) -> dict[Path, str]:
    """Return file -> what it should hold, for every file of the gallery that holds something else.

    Raises:
        LayerSwapError: where the README lacks the line below which the tables stand.
    """
    readme = root / "README.md"
    above, mark, _ = readme.read_text(encoding="utf-8").partition(BEGIN)
    if not mark:
        raise LayerSwapError(f"{readme}: lacks the line {BEGIN.strip()}")
    wanted = {
        readme: f"{above}{mark}\n{index_text(root)}",
        root / SCHEMA_FILE: schema_text(),
        **{path: with_schema_line(path, root) for path in recipe_files(root)},
    }
    return {
        path: text
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def with_schema_line(path: Path, root: Path) -> str:
    """Return a recipe with the line that names the schema, as the last one of its header."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = [line for line in lines if not line.startswith(SCHEMA_LINE)]
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    schema = Path(os.path.relpath(root / SCHEMA_FILE, path.parent)).as_posix()
    return "".join([*lines[:end], f"{SCHEMA_LINE}{schema}\n", *lines[end:]])


def _row(name: str, text: str) -> str:
    """Return a row; `what` without the layers, which are in the settings."""
    what = re.split(r"[:,] (?:middle )?layers \d|; ", read_header(text).get("What", ""))[0]
    short = name.removesuffix(".yml")
    cells = (f"[{short}]({name})", what.rstrip("."), settings(parse_yaml(text, name)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(arguments: list[str]) -> int:
    """Write or name what is not up to date in ``./recipes``; return the exit code."""
    root = Path("recipes")
    if arguments not in ([], ["--write"]) or not root.is_dir():
        sys.stderr.write("usage, in the repository: python -m tools.gallery_tables [--write]\n")
        return 2
    found = outdated(root)
    for path, text in found.items():
        if arguments:
            write_text(path, text)
        sys.stdout.write(f"{path}: {'written' if arguments else 'not up to date'}\n")
    return 1 if found and not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
