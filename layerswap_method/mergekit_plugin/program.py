"""The command `mergekit-yaml` for recipes that need nothing of mergekit: no seconds of imports.

Whatever this does not know (an option, another method, a recipe that needs mergekit) goes to
mergekit's own command, which then does all of it.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from layerswap_method.errors import LayerSwapError

_SIZES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def _bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return a number of bytes as mergekit writes it, such as 5B, 500M or 100000."""
    match = re.fullmatch("([0-9]+)([KMB]?)", (value or "0").upper())
    if match is None:
        raise click.BadParameter(f"{value!r} is no size")
    return int(match[1]) * _SIZES[match[2]] or None


@click.command(context_settings={"help_option_names": []})
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("out_path")
@click.option("--out-shard-size", callback=_bytes)
@click.option("--copy-tokenizer/--no-copy-tokenizer", default=True)
@click.option("--write-model-card/--no-write-model-card", default=True)
@click.option("--lazy-unpickle/--no-lazy-unpickle")
@click.option("--cuda/--no-cuda")
@click.option("--device")
@click.option("--quiet/--no-quiet")
@click.option("-v", "verbosity", count=True)
@click.option("--transformers-cache")
@click.option("--lora-merge-cache")
@click.option("--trust-remote-code/--no-trust-remote-code")
@click.option("--random-seed", type=int)
@click.option("--num-threads", "-j", type=int)
def _arguments(**_: Any) -> None:
    """Say which options this command and mergekit's have in common."""


def lazy_main(module: ModuleType, load: Callable[[ModuleType], None]) -> Callable[[], None]:
    """Return a `main` for the module of mergekit's command, which loads the module if it must."""

    def main() -> None:
        try:
            if _merge(sys.argv[1:]):
                return
        except LayerSwapError as error:
            error.show()
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("Aborted!", err=True)
            sys.exit(1)
        load(module)
        module.main()

    return main


def _merge(arguments: list[str]) -> bool:
    """Merge by files and return True, or return False where mergekit's own command must."""
    from layerswap_method.mergekit_plugin.run import merge_by_files, why_mergekit
    from layerswap_method.methods.read import read_own_recipe, read_recipe_file

    try:
        context = _arguments.make_context("mergekit-yaml", list(arguments))
    except (click.ClickException, click.exceptions.Exit):
        return False
    options = dict(context.params)
    path, out = options.pop("config_file"), options.pop("out_path")
    if not path.exists():
        read_recipe_file(path)  # raises: mergekit has no word for it but a traceback
    if options["device"] == "auto" or why_mergekit(options) is not None or not _is_own(path):
        return False
    text, document = read_recipe_file(path)
    level = {0: logging.WARNING, 1: logging.INFO}.get(options["verbosity"], logging.DEBUG)
    logging.basicConfig(level=level)
    recipe = read_own_recipe(document)
    return recipe is not None and merge_by_files(recipe, document, text, out, options) is None


def _is_own(path: Path) -> bool:
    """Return whether a file looks like a recipe of this project's; others are mergekit's alone.

    So are those whose method this mergekit may have itself. Its registry knows, and takes seconds
    to import; its files name their methods.
    """
    import mergekit

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    method = re.search(r"^merge_method:\s*['\"]?(layer_swap|delta_revert)\b", text, re.M)
    if method is None:
        return False
    folders = [Path(folder) / "merge_methods" for folder in mergekit.__path__]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    return bool(files) and not any(re.search(rf"\b{method[1]}\b", text) for text in texts)
