"""Where the shipped recipes are, and how to point one at other folders. Merges nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import layerswap_method
from ablations.machine.whole_files import write_text
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.strict_yaml import read_yaml


def find_recipe(name: str) -> Path:
    """Return the shipped recipe `name`: ``pocket/layer_swap.yml``, or that without ``.yml``.

    Looked for in ``./recipes`` (a clone, where the user may have changed it), beside the package
    (an editable install), then inside it (a wheel).

    Raises:
        InputError: when it is in none of them, or is the path of a file that is not there.
    """
    if name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such file (the current directory is {Path.cwd()})")
    name = name.removeprefix("recipes/")
    for root in _roots():
        for each in (name, f"{name}.yml"):
            if (root / each).is_file():
                return root / each
    places = ", ".join(str(root) for root in _roots())
    raise InputError(f"no recipe {name!r} in {places}{nearest(name, _shipped())}")


def shipped_recipes() -> dict[str, Path]:
    """Return name, such as ``pocket/soup.yml`` -> file, of every shipped recipe, sorted by name."""
    return {name: path for name, path in _shipped().items() if not _is_of_training(name)}


def recipe_files(root: Path) -> list[Path]:
    """Return every recipe below `root`, without the training configurations in `experts`."""
    files = sorted(root.rglob("*.yml"))
    return [path for path in files if not _is_of_training(path.relative_to(root).as_posix())]


def _is_of_training(name: str) -> bool:
    return name.startswith("experts/")


def _shipped() -> dict[str, Path]:
    found = {
        path.relative_to(root).as_posix(): path
        for root in reversed(_roots())
        if root.is_dir()
        for path in root.rglob("*.yml")
    }
    return dict(sorted(found.items()))


def _roots() -> tuple[Path, ...]:
    package = Path(layerswap_method.__file__).parent
    return Path("recipes"), package.parent / "recipes", package / "_recipes"


def redirect_recipe(recipe: Path, old: str, new: Path, out: Path) -> None:
    """Write a copy of `recipe` to `out` in which paths below `old` are below `new`.

    Args:
        recipe: the recipe to copy.
        old: path prefix as the recipe writes it, such as ``runs/pocket``.
        new: folder that takes its place; written as an absolute path, because mergekit takes a
            relative path with one slash for a hub id.
        out: where the copy is written.

    Raises:
        InputError: when nothing in `recipe` is below `old`.
    """
    redirected = 0

    def move(text: str) -> str:
        nonlocal redirected
        if text != old and not text.startswith(f"{old}/"):
            return text
        redirected += 1
        return f"{new.resolve()}{text.removeprefix(old)}"

    content = _map_strings(read_yaml(recipe), move)
    if not redirected:
        raise InputError(f"{recipe}: names no model below {old}, so none can be redirected")
    header = f"# {recipe.as_posix()} with {old} replaced by {new.resolve()}\n"
    write_text(out, header + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(each, change) for each in value]
    if isinstance(value, dict):
        return {key: _map_strings(each, change) for key, each in value.items()}
    return value
