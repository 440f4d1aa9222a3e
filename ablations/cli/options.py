"""Options that several commands share. Imports nothing heavy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ablations.cli.completion import Complete
from layerswap_method.command_line import parse_size

Command = TypeVar("Command", bound=Callable[..., Any])


class Place(click.Path):
    """A path; ``~`` is the home folder, which the shell leaves in ``--out=~/x``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or fail as click does."""
        return super().convert(os.path.expanduser(value), param, ctx)  # noqa: PTH111 - as references


FILE = Place(path_type=Path)
FOLDER = Place(exists=True, file_okay=False, path_type=Path)
COUNT = click.IntRange(min=1)
SEED = click.IntRange(min=0)


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in (value or "").split(",") if name.strip()))
    if value is not None and not names:
        raise click.BadParameter("it has no name")
    return names


def names_option(
    name: str,
    text: str,
    *,
    default: str | None = None,
    shell_complete: Complete | None = None,
) -> Callable[[Command], Command]:
    """Return the option of several names, () unless the user or `default` gives some."""
    return click.option(
        name,
        callback=_names,
        shell_complete=shell_complete,
        metavar="LIST",
        default=default,
        show_default=default is not None,
        help=text,
    )


def _metadata(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return the arguments in JSON objects and ``KEY=VALUE,KEY=VALUE``; None for no text."""
    from layerswap_method.errors import InputError
    from layerswap_method.recipe.strict_yaml import parse_yaml

    arguments = dict[str, Any]()
    for text in texts:
        try:
            if text.lstrip().startswith("{"):
                arguments |= parse_yaml(text, "it")
                continue
            # A comma in a list ends no argument.
            for part in re.split(r",(?=\s*\w+=)", text):
                key, equals, value = (piece.strip() for piece in part.partition("="))
                if not key or not equals or not value:
                    raise click.BadParameter(f"{part!r}: write KEY=VALUE, or a JSON object")
                arguments[key] = parse_yaml(value, f"it: {key}")
        except InputError as error:
            raise click.BadParameter(error.message) from error
    return arguments or None


def folder_option(name: str, text: str, default: str | None = None) -> Callable[[Command], Command]:
    """Return the option of a folder that may be written to."""
    return click.option(
        name,
        type=Place(file_okay=False, path_type=Path),
        default=default,
        show_default=True,
        help=text,
    )


def choice_option(name: str, values: list[str], text: str) -> Callable[[Command], Command]:
    """Return the option of one of `values`, the first by default."""
    return click.option(
        name, type=click.Choice(values), default=values[0], show_default=True, help=text
    )


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return one decorator for several options, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


preset_option = choice_option(
    "--preset",
    ["quickstart", "tiny", "other_size"],
    "quickstart: the experts of the studies; tiny: seconds of training (for tests, the scores mean "
    "nothing); other_size: another width, depth and number of key heads.",
)
backend_option = choice_option(
    "--backend",
    ["auto", "hf", "vllm"],
    "Engine that runs the models; auto is vLLM if it is installed, else transformers.",
)
shard_size_option = click.option(
    "--shard-size",
    callback=parse_size,
    default="5B",
    show_default=True,
    help="Size of the largest weight file: bytes, or a number with K, M or B (billion).",
)
download_option = click.option(
    "--download",
    type=click.Choice(["whole", "ranges"]),
    envvar="LAYERSWAP_DOWNLOAD",
    default="whole",
    show_default=True,
    help="What is fetched of models of the hub: the whole files that are read, or only the byte "
    "ranges (less, for slow lines). mergekit-yaml, too, looks at the environment variable "
    "LAYERSWAP_DOWNLOAD.",
)
code_options = together(
    click.option(
        "--allow-code-execution",
        is_flag=True,
        help="Run the programs that models write (MBPP), in a sandbox. Without it MBPP is skipped. "
        "Tasks that run programs by themselves (lm-eval's cruxeval) need --code-isolation none, "
        "too.",
    ),
    click.option(
        "--code-isolation",
        type=click.Choice(["bwrap", "none"]),
        default="bwrap",
        show_default=True,
        help="Sandbox of those programs. With none they run as you do, with your files and the "
        "network: only time, memory and output are limited, and not even these in tasks that run "
        "programs by themselves. Choose it only if this container is the sandbox.",
    ),
)


def pop_isolation(options: dict[str, Any]) -> Any:
    """Remove `code_options`; return the sandbox of generated programs, None if none may run."""
    isolation = options.pop("code_isolation")
    return isolation if options.pop("allow_code_execution") else None


def settings_option(text: str) -> Callable[[Command], Command]:
    """Return the option ``--set``, of a file's key and the value in its place."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"{text} Can be given several times.",
    )


evaluation_options = together(
    click.option("--limit", type=COUNT, help="Items per task, from the first."),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        help="Dtype of the weights in memory; auto is that of the checkpoint.",
    ),
    click.option("--max-model-len", type=COUNT, help="Context in tokens, prompt and answer."),
    click.option(
        "--data-dir",
        type=FOLDER,
        help="Folder with the data of the benchmarks, in place of the hub: "
        "DIR/BENCHMARK/LANGUAGE_SPLIT.jsonl.",
    ),
    click.option(
        "--metadata",
        multiple=True,
        callback=_metadata,
        metavar="KEY=VALUE",
        help="An argument that tasks ask for, such as tokenizer=org/model, or several as JSON; as "
        "lm-eval's. Can be given several times.",
    ),
    backend_option,
    folder_option(
        "--answers",
        "Folder of the answers that runs share.  [default: runs/answers, or answers next to a run "
        "folder that is not below runs]",
    ),
    code_options,
)
"""Options that `run` and `evaluate` share; other keys of a study are set by ``--set``."""


def pop_settings(options: dict[str, Any], block: str = "") -> dict[str, Any]:
    """Take out ``--set`` and the options that stand for a key; return key -> value of both.

    `options` are the command's; `block` stands before their keys, such as ``evaluate.``.
    """
    from ablations.machine.overrides import SHORT, parse_settings, short_settings

    short = {name: options.pop(name, None) for name in SHORT}
    return parse_settings(options.pop("settings"), short_settings(short, block))
