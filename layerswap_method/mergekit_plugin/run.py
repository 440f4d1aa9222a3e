"""`mergekit-yaml` for recipes of this project's methods: from file to file, with its options.

The command imports nothing of mergekit where it can. Whatever it does not know (an option, another
method, a recipe that needs mergekit) goes to mergekit's own command, which then does all of it.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from layerswap_method.command_line import parse_size, shown
from layerswap_method.errors import InputError, LayerSwapError, NeedsMergekit
from layerswap_method.merge import WriteOptions, merge_file
from layerswap_method.methods.read import OUR_METHODS, RecipeFile, read_recipe_file
from layerswap_method.progress import Advance
from layerswap_method.recipe.references import find_model_files, is_there

LOG = logging.getLogger("layerswap")

_SHARED_OPTIONS = (
    "out_shard_size",
    "copy_tokenizer",
    "write_model_card",
    "cuda",
    "device",
    "quiet",
    "verbosity",
    "transformers_cache",
    "num_threads",
    "safe_serialization",
    # The rest has no effect: adapters are added while they are read, nothing is unpickled, drawn or
    # run as code, and memory is low anyway.
    "lora_merge_cache",
    "lazy_unpickle",
    "random_seed",
    "trust_remote_code",
    "low_cpu_memory",
    "async_write",
    "write_threads",
)
"""Options of mergekit that mean the same where a merge is written from file to file."""


def merge_by_files(file: RecipeFile, out_path: str, options: Mapping[str, Any]) -> None:
    """Merge a recipe from file to file.

    Raises `NeedsMergekit`, before anything is written, where only mergekit can.
    """
    if (reason := why_mergekit(options)) is not None:
        raise NeedsMergekit(reason)
    cache, threads = options.get("transformers_cache"), options.get("num_threads")
    if threads is not None and threads < 1:
        raise InputError(f"--num-threads {threads}: give 1 or more")
    lines = merge_file(
        file,
        out_path,
        functools.partial(find_model_files, cache_dir=cache),
        WriteOptions(
            shard_bytes=options.get("out_shard_size") or WriteOptions.shard_bytes,
            threads=threads,
            device=str(options.get("device") or ("cuda" if options.get("cuda") else "cpu")),
            with_tokenizer=options.get("copy_tokenizer", True),
            with_card=options.get("write_model_card", True),
        ),
        functools.partial(_byte_bar, quiet=bool(options.get("quiet"))),
        cache_dir=cache,
    )
    write_log(lines, options)


def mergekit_yaml() -> list[str]:
    """Return the command of `mergekit-yaml` of this Python environment."""
    program = Path(sys.executable).parent / "mergekit-yaml"
    module = [sys.executable, "-m", "mergekit.scripts.run_yaml"]
    return [str(program)] if program.is_file() else module


def mergekit_command(
    recipe: Path, out_path: str, options: WriteOptions, more: Sequence[str], reason: str
) -> list[str]:
    """Return the command of `mergekit-yaml` that merges a recipe, with `more` options of its own.

    Raises `InputError` for options that it does not have.
    """
    if options.verify:
        raise InputError(f"--verify cannot be used: mergekit must merge this recipe ({reason})")
    size = ["--out-shard-size", str(options.shard_bytes)]
    device = [] if options.device == "cpu" else ["--device", options.device]
    return [*mergekit_yaml(), str(recipe), out_path, *size, *more, *device]


def why_mergekit(options: Mapping[str, Any]) -> str | None:
    """Return which of mergekit's options only mergekit knows; None where there is none."""
    if options.get("safe_serialization") is False:
        return "it was called with --no-safe-serialization"
    for name, value in options.items():
        if value and name not in _SHARED_OPTIONS:
            return f"it was called with --{name.replace('_', '-')}"
    device = str(options.get("device") or "cpu")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        return f"it was called with --device {device}"
    return None


def write_log(lines: Iterable[str], options: Mapping[str, Any]) -> None:
    """Write lines to the log as they come; shown at mergekit's default verbosity."""
    if not options.get("quiet"):
        LOG.setLevel(logging.INFO)
    for line in lines:
        LOG.info("%s", line)


@contextmanager
def _byte_bar(title: str, size: int, *, quiet: bool) -> Iterator[Advance]:
    from tqdm import tqdm

    bar = tqdm(
        total=size,
        desc=title,
        unit="B",
        unit_scale=True,
        delay=1,
        mininterval=0.1 if sys.stderr.isatty() else 30,
        disable=quiet,
    )
    with bar:
        yield bar.update


@click.command(context_settings={"help_option_names": []})
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("out_path")
@click.option("--out-shard-size", default="5B", callback=parse_size)
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
            shown(error).show()
            sys.exit(shown(error).exit_code)
        except KeyboardInterrupt:
            click.echo("Aborted!", err=True)
            sys.exit(1)
        load(module)
        module.main()

    return main


def _merge(arguments: list[str]) -> bool:
    """Merge by files and return True, or return False where mergekit's own command must."""
    try:
        context = _arguments.make_context("mergekit-yaml", list(arguments))
    except (click.ClickException, click.exceptions.Exit):
        return False
    options = dict(context.params)
    path, out = options.pop("config_file"), options.pop("out_path")
    if not is_there(path) or path.is_dir():
        read_recipe_file(path)  # raises: mergekit has no word for it but a traceback
    # A pipe can be read once, and mergekit's `run_merge` is given its text.
    is_mergekits = not path.is_file() or options["device"] == "auto"
    if is_mergekits or why_mergekit(options) is not None or not _is_own(path):
        return False
    file = read_recipe_file(path)
    level = {0: logging.WARNING, 1: logging.INFO}.get(options["verbosity"], logging.DEBUG)
    logging.basicConfig(level=level)
    if file.document["merge_method"] not in OUR_METHODS:
        return False
    try:
        merge_by_files(file, out, options)
    except NeedsMergekit:
        return False
    return True


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
    method = re.search(rf"^merge_method:\s*['\"]?({'|'.join(OUR_METHODS)})\b", text, re.M)
    if method is None:
        return False
    folders = [Path(folder) / "merge_methods" for folder in mergekit.__path__]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    return bool(files) and not any(re.search(rf"\b{method[1]}\b", text) for text in texts)
