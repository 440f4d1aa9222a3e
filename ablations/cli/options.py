"""Options that several commands share. Imports nothing heavy."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from ablations.machine.progress import Step, tell

Command = TypeVar("Command", bound=Callable[..., Any])

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
COUNT = click.IntRange(min=1)


class FiniteRange(click.FloatRange):
    """A float within bounds; click's own range lets NaN and infinity pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail as click does."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


class Size(click.ParamType[int]):
    """Bytes, as 5000000, 500M or 5G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the bytes, or fail as click does."""
        found = re.fullmatch(r"(\d+)\s*([kmg]?)b?", str(value).strip().lower())
        if found is None or not int(found[1]):
            text = f"{value!r} is not a size; write bytes, or a number with K, M or G."
            self.fail(text, param, ctx)
        return int(found[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[found[2]]


class Names(click.ParamType[tuple[str, ...]]):
    """Names joined by commas, each once."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names, or fail where there is none."""
        given = value.split(",") if isinstance(value, str) else value  # a default
        names = tuple(dict.fromkeys(name.strip() for name in given if name.strip()))
        if isinstance(value, str) and not names:
            self.fail("it has no name", param, ctx)
        return names


@contextmanager
def byte_progress(what: str, size: int) -> Iterator[Callable[[int], object]]:
    """Tell how many of `size` bytes are done; what is yielded takes those that are new."""
    lock, done = threading.Lock(), 0

    def advance(count: int) -> None:
        nonlocal done
        with lock:  # several threads write
            done += count
            tell(Step(what, done, size, unit="bytes"))

    advance(0)
    yield advance


def folder_option(name: str, text: str, default: str | None = None) -> Callable[[Command], Command]:
    """Return the option of a folder that may be written to."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def choice_option(
    name: str, values: list[str], text: str, parameter: str | None = None
) -> Callable[[Command], Command]:
    """Return the option of one of `values`, the first by default."""
    names = [name] if parameter is None else [name, parameter]
    kind = click.Choice(values)
    return click.option(*names, type=kind, default=values[0], show_default=True, help=text)


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return one decorator for several options, in their order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


answers_option = folder_option(
    "--answers",
    "Folder of the answers that runs share.  [default: runs/answers, or answers beside a run "
    "folder that is not below runs]",
)
list_format_option = choice_option("--format", ["table", "json"], "How to show them.", "form")
preset_option = choice_option(
    "--preset",
    ["quickstart", "tiny", "other_size"],
    "The pocket experts: as the studies have them; seconds of training (for tests: the scores mean "
    "nothing); or of another width, depth and number of key heads.",
)
backend_option = choice_option(
    "--backend",
    ["auto", "hf", "vllm"],
    "Engine that runs the models; auto is vLLM if it is installed, else transformers.",
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Of the new weights.  [default: that of each tensor]",
)
shard_size_option = click.option(
    "--shard-size",
    type=Size(),
    default="5G",
    show_default=True,
    help="Size of the largest weight file.",
)
track_option = click.option(
    "--track",
    type=click.Choice(["wandb", "trackio"]),
    help="Also send the scores of each finished model to this tracker (pip install "
    "'layerswap[wandb]' or 'layerswap[trackio]'); its own settings say where they go.",
)
data_dir_option = click.option(
    "--data-dir",
    type=FOLDER,
    help="Folder with the data of the benchmarks, in place of the hub: "
    "DIR/BENCHMARK/LANGUAGE_SPLIT.jsonl.",
)
code_options = together(
    click.option(
        "--allow-code-execution",
        is_flag=True,
        help="Run the programs that models write (MBPP), in a sandbox. Without it MBPP is skipped.",
    ),
    click.option(
        "--code-isolation",
        type=click.Choice(["bwrap", "none"]),
        help="Sandbox of those programs. Choose none only if this container is the sandbox.  "
        "[default: bwrap]",
    ),
)


def isolation_of(is_allowed: bool, isolation: Any) -> Any:
    """Return what holds generated programs, by `code_options`; None where none may run."""
    return (isolation or "bwrap") if is_allowed else None


def settings_option(text: str) -> Callable[[Command], Command]:
    """Return the option ``--set``, of a file's key and the value in its place."""
    help_ = f"{text} Can be given several times."
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=help_)


def protocol_options(*, whole: str) -> Callable[[Command], Command]:
    """Return the options of prompts and generation, each None unless the user gives it.

    Args:
        whole: what counts where one is not given, as text; ``""`` names the built-in defaults.
    """
    return together(
        click.option(
            "--limit",
            type=COUNT,
            help=f"Items per task, from the first.  [default: {whole or 'all'}]",
        ),
        click.option(
            "--batch-size", type=COUNT, help=f"Sequences at once.  [default: {whole or '64'}]"
        ),
        click.option(
            "--dtype",
            type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
            help="Of the weights in memory; auto keeps the checkpoint's.  "
            f"[default: {whole or 'auto'}]",
        ),
        click.option(
            "--max-model-len",
            type=COUNT,
            help="Context in tokens, prompt and answer.  "
            f"[default: {whole or 'that of the model'}]",
        ),
    )


def _bool_option(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, type=bool, metavar="BOOL", help=text)


asking_options = together(
    click.option(
        "--apply-chat-template",
        is_flag=False,
        flag_value="true",
        metavar="[NAME]",
        help="Write prompts with the tokenizer's chat template, or with that of this name. "
        "Write it after MODEL, or as --apply-chat-template=true.",
    ),
    click.option("--system-instruction", metavar="TEXT", help="Text of the system message."),
    _bool_option(
        "--fewshot-as-multiturn",
        "Whether examples are turns of the chat.  [default: with a chat template]",
    ),
    _bool_option(
        "--enable-thinking",
        "Whether the chat template lets the model think.  [default: as the template does]",
    ),
    click.option(
        "--think-end-token",
        metavar="TOKEN",
        help="Ends the thinking, such as </think>; the answer is what follows.",
    ),
    click.option(
        "--gen-kwargs",
        metavar="LIST",
        help="In place of what tasks say, such as "
        "temperature=0.6,top_p=0.95,top_k=20,max_gen_toks=32768.",
    ),
    click.option(
        "--repeats",
        type=COUNT,
        help="Samples of every item, each with its own seed; the score is their mean.  "
        "[default: 1]",
    ),
)
"""lm-eval's options of prompts and generation, each None unless the user gives it."""

engine_options = together(
    click.option("--tensor-parallel-size", type=COUNT, help="vLLM: GPUs that share each layer."),
    click.option(
        "--pipeline-parallel-size", type=COUNT, help="vLLM: groups of layers on GPUs of their own."
    ),
    click.option(
        "--gpu-memory-utilization",
        type=click.FloatRange(min=0, max=1, min_open=True),
        help="vLLM: share of a GPU's memory to use.  [default: 0.9]",
    ),
    click.option("--max-num-seqs", type=COUNT, help="vLLM: sequences at once, at most."),
    _bool_option("--enforce-eager", "vLLM: run without compiling."),
    click.option(
        "--device-map",
        type=click.Choice(["auto"]),
        help="transformers: spread the layers over all GPUs.",
    ),
)
"""The options of large engines, each None unless the user gives it."""
