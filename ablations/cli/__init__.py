"""The click command `layerswap`. It imports the module of a command only when that is called.

`layerswap --help` imports those modules, which hold options only; torch, mergekit, lm-eval and
their like are imported by the libraries that the bodies call.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.metadata
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import click

from ablations.cli.json_output import has_json, has_option, print_json_error
from ablations.cli.log import OPTIONS, with_loudness
from ablations.drawing.text_table import fitted
from ablations.machine.progress import has_finished_work
from layerswap_method import NOT_ON_WINDOWS, __version__
from layerswap_method.command_line import shown
from layerswap_method.errors import LayerSwapError, nearest, printable

_GO_ON = ("evaluate", "pocket", "quickstart", "run", "search", "smol", "train")
"""Commands whose finished work is saved when they are interrupted."""

_SIGNAL = "layerswap.signal"
"""Key in click's context of a command: the signal that ended it, Ctrl-C or SIGTERM."""

_SHOW_CURSOR = b"\x1b[?25h"
"""The sign that a terminal needs where bars were drawn that nobody takes down."""

_AS_JSON = "layerswap.as_json"
"""Key in click's context: whether errors are printed as JSON."""

_MODULES = {
    "evaluation": "answers compare evaluate power report run runs search tasks",
    "models": "cache card compat delta explain verify",
    "recipes": "check harmonize init merge plan recipes studies swap-adapters",
    "training": "pocket quickstart smol train",
}
"""Module -> its commands."""

COMMANDS = dict(sorted((name, module) for module in _MODULES for name in _MODULES[module].split()))
"""Command -> the module that has it as a function of its name, with _ for -."""


SECTIONS = {
    "Merge": "recipes init check plan merge swap-adapters compat harmonize card",
    "Evaluate": "tasks evaluate compare answers runs",
    "Study": "studies run search report power",
    "Train": "train pocket smol quickstart",
    "Look": "delta explain verify cache",
}
"""Headings of `layerswap --help` -> the commands below each."""

_IS_DRY = "layerswap.is_dry"
"""Key in click's context: whether the command only says what it would do."""

_PEERS = ("mergekit", "torch", "transformers", "lm_eval", "vllm")


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line, or say what a shell completes."""
        if "_LAYERSWAP_COMPLETE" in os.environ:
            from ablations.cli.completion import complete_in_bash

            complete_in_bash()
        return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names, sorted."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands below their headings, in one column."""
        width = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names.split()]
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width - width - 6))
                for name, command in commands
                if command is not None
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"ablations.cli.{COMMANDS[cmd_name]}")
        return with_loudness(getattr(module, cmd_name.replace("-", "_")))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words up to the command; note whether all of them ask for JSON or a dry run."""
        ctx.meta[_AS_JSON] = has_option(args, "--json")
        ctx.meta[_IS_DRY] = has_option(args, "--dry-run")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of `args`; an unknown name is answered with the nearest one."""
        is_unknown = bool(args) and not args[0].startswith("-") and args[0] not in COMMANDS
        if is_unknown and not ctx.resilient_parsing:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C and SIGTERM end it with a sentence and a shell's exit code."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            # An interrupted import, or a line that is drawn, may fail in its own way.
            if isinstance(error, KeyboardInterrupt) or _SIGNAL in ctx.meta:
                _explain_interrupt(ctx)
                if _SIGNAL in ctx.meta:  # Python would take seconds to take the libraries down
                    os._exit(128 + ctx.meta[_SIGNAL])
                ctx.exit(128 + signal.SIGINT)
            # A closed pipe is no error: the reader of the output has left.
            if isinstance(error, OSError) and error.errno != errno.EPIPE:
                where = f"{error.filename}: " if error.filename is not None else ""
                error = LayerSwapError(f"{where}{error.strerror or error}")
            if isinstance(error, LayerSwapError):
                error = shown(error)
            if isinstance(error, click.NoSuchOption) and (hint := _other_form(error)):
                error.message += hint  # type: ignore[misc]
                error.possibilities = None  # type: ignore[misc]
            if isinstance(error, click.ClickException):
                if ctx.meta[_AS_JSON] and has_json(error):
                    print_json_error(error)
                    ctx.exit(error.exit_code)
                shown_text = fitted(f"Error: {printable(error.message)}", sys.stderr)
                error.message = shown_text.removeprefix("Error: ")  # type: ignore[misc]
            raise error


def _other_form(error: click.NoSuchOption) -> str:
    """Return what an option that a command does not have is there: an argument, or a value.

    ``--model M`` is M alone, and ``--cuda`` is ``--device cuda``.
    """
    word = error.option_name.lstrip("-").replace("-", "_")
    if error.ctx is None:
        return ""
    command = error.ctx.command
    for parameter in command.params:
        names = (parameter.name or "", (parameter.name or "").removesuffix("s"))
        if isinstance(parameter, click.Argument) and word in names:
            written = (parameter.metavar or word.upper()).split()[0].rstrip(".")
            return f" Write {command.name} {written}: it stands without an option."
        if isinstance(parameter.type, click.Choice) and word in parameter.type.choices:
            return f" Write {parameter.opts[0]} {word}."
    return ""


def _explain_interrupt(ctx: click.Context) -> None:
    """Print once that the command was ended, and what to do next."""
    if not ctx.meta.get("layerswap.explained"):
        ctx.meta["layerswap.explained"] = True
        text = "Terminated." if ctx.meta.get(_SIGNAL) == signal.SIGTERM else "Interrupted."
        can_go_on = ctx.invoked_subcommand in _GO_ON and not ctx.meta[_IS_DRY]
        if can_go_on and has_finished_work():
            text += " Finished work is saved; the same command goes on with the rest."
        elif can_go_on:
            text += " Nothing was finished yet; the same command begins again."
        os.write(2, f"\n{text}\n".encode())


def _end_soon(ctx: click.Context) -> None:
    """Have SIGTERM end every command as Ctrl-C does, by an interrupt that its blocks clean up at.

    A command that can go on ends within two seconds, whatever it is at: an import or a library may
    swallow the interrupt, and an engine may take long to end; workers end with this process, and
    what is saved is whole at any time.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    can_go_on, process = ctx.invoked_subcommand in _GO_ON, os.getpid()

    def leave() -> None:
        _explain_interrupt(ctx)
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
        os._exit(128 + ctx.meta[_SIGNAL])

    def press(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and os.getpid() != process:  # a fork, such as a pool's worker
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        ctx.meta[_SIGNAL] = number
        if can_go_on:
            timer = threading.Timer(1.5, leave)
            timer.daemon = True
            timer.start()
        # Python would print an interrupt that a library's callback swallows.
        sys.unraisablehook = lambda _: None
        signal.default_int_handler(number, frame)

    defaults: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL}
    if can_go_on:
        defaults[signal.SIGINT] = signal.default_int_handler
        # Python's tracker of shared resources cleans up after an early end, and would warn of it.
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
    for number, default in defaults.items():
        if signal.getsignal(number) is default:
            signal.signal(number, press)
            ctx.call_on_close(functools.partial(signal.signal, number, default))


def _show_versions(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        click.echo(f"layerswap {__version__}")
        for package in _PEERS:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                click.echo(f"{package} {importlib.metadata.version(package)}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_versions,
    help="Show the versions of this package and of its peers.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Merge, evaluate and compare language models by layer swapping.

    mergekit-yaml RECIPE OUT merges, too: this package adds layer_swap to mergekit.
    """
    if sys.platform == "win32":
        raise click.ClickException(NOT_ON_WINDOWS)
    _end_soon(ctx)


main.params.extend(OPTIONS)
