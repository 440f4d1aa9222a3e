"""Where the shipped recipes are."""

from __future__ import annotations

from pathlib import Path

import layerswap_method
from layerswap_method.errors import InputError, nearest


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
    raise InputError(
        f"{name}: no such file, and no recipe of that name in {places}{nearest(name, _shipped())}"
    )


def shipped_recipes() -> dict[str, Path]:
    """Return name, such as ``pocket/soup.yml`` -> file, of every shipped recipe, sorted by name."""
    return {name: path for name, path in _shipped().items() if not _is_of_training(name)}


def is_shipped(path: Path) -> bool:
    """Return whether a file is one of the gallery's: beside the package, or inside it."""
    return any(path.resolve().is_relative_to(root.resolve()) for root in _roots()[1:])


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
