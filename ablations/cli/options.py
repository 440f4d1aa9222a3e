"""Options that several commands share. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A float within bounds; click's own range lets NaN and infinity pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail as click does."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


def folder_option(name: str, text: str, default: str | None = None) -> Callable[[Command], Command]:
    """Return the option of a folder that may be written to."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


list_format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to show them.",
)


preset_option = click.option(
    "--preset",
    type=click.Choice(["quickstart", "full", "tiny"]),
    default="quickstart",
    show_default=True,
    help="The pocket experts: one pair; three pairs and more items; or seconds of training "
    "(for tests: the scores mean nothing).",
)


backend_option = click.option(
    "--backend",
    type=click.Choice(["auto", "hf", "vllm"]),
    default="auto",
    show_default=True,
    help="Engine that runs the models: vLLM if it is installed (auto), transformers, or vLLM.",
)

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the data of the benchmarks, in place of the hub: "
    "DIR/BENCHMARK/LANGUAGE_SPLIT.jsonl.",
)

allow_code_option = click.option(
    "--allow-code-execution",
    is_flag=True,
    help="Run the programs that models write (MBPP), in a sandbox. Without it MBPP is skipped.",
)


def protocol_options(*, whole: str) -> Callable[[Command], Command]:
    """Return the options of how tasks are asked, each None unless the user gives it.

    Args:
        whole: what counts where one is not given, as text; ``""`` names the built-in defaults.
    """
    dtypes = ["auto", "float32", "bfloat16", "float16"]
    count = click.IntRange(min=1)
    options = [
        click.option(
            "--limit",
            type=count,
            help=f"Items per task, from the first.  [default: {whole or 'all'}]",
        ),
        click.option(
            "--batch-size", type=count, help=f"Sequences at once.  [default: {whole or '64'}]"
        ),
        click.option(
            "--dtype",
            type=click.Choice(dtypes),
            help="Of the weights in memory; auto keeps the checkpoint's.  "
            f"[default: {whole or 'auto'}]",
        ),
        click.option(
            "--max-model-len",
            type=count,
            help="Context in tokens, prompt and answer.  "
            f"[default: {whole or 'that of the model'}]",
        ),
    ]

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


code_isolation_option = click.option(
    "--code-isolation",
    type=click.Choice(["bwrap", "none"]),
    help="Sandbox of those programs. Choose none only if this container is the sandbox.  "
    "[default: bwrap]",
)
