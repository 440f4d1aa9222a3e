"""Write the tables of `recipes/README.md`: one row per recipe, from its header and its settings.

    python -m tools.gallery_tables [--write]

Without --write it only says whether they are up to date, with exit code 1 if not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ablations.machine.whole_files import write_text
from ablations.recipe_commands.find import read_recipe_header, recipe_files, settings
from layerswap_method.errors import LayerSwapError
from layerswap_method.recipe.strict_yaml import parse_yaml

BEGIN = "<!-- The tables below are made by: python -m tools.gallery_tables --write -->\n"

_SECTIONS = {
    "": "The paper's recipes",
    "community": "Public experts that share a base",
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
    for folder in [name for name in order if name in recipes]:
        head = "| recipe | what | settings |"
        rule = "|" + "---|" * 3
        title = _SECTIONS.get(folder, folder) + (f": `{folder}/`" if folder else "")
        tables.append("\n".join([f"## {title}", "", head, rule, *recipes[folder]]))
    return "\n\n".join(tables) + "\n"


def page_text(readme: Path) -> str:
    """Return what `recipes/README.md` should hold.

    Raises:
        LayerSwapError: where it lacks the line below which the tables stand.
    """
    above, mark, _ = readme.read_text(encoding="utf-8").partition(BEGIN)
    if not mark:
        raise LayerSwapError(f"{readme}: lacks the line {BEGIN.strip()}")
    return f"{above}{mark}\n{index_text(readme.parent)}"


def _row(name: str, text: str) -> str:
    """Return a row; its summary is without the layers, which are in the settings."""
    summary = re.split(r"[:,] (?:middle )?layers \d|; ", read_recipe_header(text).get("What", ""))[
        0
    ]
    cells = (f"[{Path(name).stem}]({name})", summary.rstrip("."), settings(parse_yaml(text, name)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(arguments: list[str]) -> int:
    """Write the page of ``./recipes``, or say whether it is up to date; return the exit code."""
    root = Path("recipes")
    if arguments not in ([], ["--write"]) or not root.is_dir():
        sys.stderr.write("usage, in the repository: python -m tools.gallery_tables [--write]\n")
        return 2
    readme = root / "README.md"
    text = page_text(readme)
    if readme.read_text(encoding="utf-8") == text:
        return 0
    if arguments:
        write_text(readme, text)
    sys.stdout.write(f"{readme}: {'written' if arguments else 'not up to date'}\n")
    return 0 if arguments else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
