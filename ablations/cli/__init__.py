"""The click command `layerswap`. It imports the module of a command only when that is called.

`layerswap --help` imports those modules, which hold options only; torch, mergekit, lm-eval and
their like are imported by the libraries that the bodies call.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import click

from ablations.cli.json_output import print_json_error, wants_json
from layerswap_method import __version__
from layerswap_method.command_line import shown
from layerswap_method.errors import LayerSwapError, nearest, printable

_GO_ON = ("evaluate", "pocket", "quickstart", "run", "smol", "train")
"""Commands whose finished work is saved when they are interrupted."""

_PRESSED = "layerswap.pressed"
"""Key in click's context of such a command, set once Ctrl-C was pressed."""

_AS_JSON = "layerswap.as_json"
"""Key in click's context: whether errors are printed as JSON."""

_MODULES = {
    "evaluation": "compare evaluate report run tasks",
    "models": "cache card compat delta divergence verify",
    "recipes": "check harmonize init merge plan recipes swap-adapters",
    "training": "pocket quickstart smol train",
}
"""Module -> its commands."""

COMMANDS = dict(sorted((name, module) for module in _MODULES for name in _MODULES[module].split()))
"""Command -> the module that has it as a function of its name, with _ for -."""


_PEERS = ("mergekit", "torch", "transformers", "lm_eval", "vllm")


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names, sorted."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"ablations.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words up to the command; note whether all of them ask for JSON."""
        ctx.meta[_AS_JSON] = wants_json(args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of `args`; an unknown name is answered with the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C ends it with one sentence and exit code 130, as in a shell."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            # An interrupted import, or a line that is drawn, may fail in its own way.
            if isinstance(error, KeyboardInterrupt) or _PRESSED in ctx.meta:
                _explain_interrupt(ctx)
                if _PRESSED in ctx.meta:  # Python would take seconds to take the libraries down
                    os._exit(130)
                ctx.exit(130)
            # A closed pipe is no error: the reader of the output has left.
            if isinstance(error, OSError) and error.errno != errno.EPIPE:
                where = f"{error.filename}: " if error.filename is not None else ""
                error = LayerSwapError(f"{where}{error.strerror or error}")
            if isinstance(error, LayerSwapError):
                error = shown(error)
            if isinstance(error, click.ClickException) and ctx.meta[_AS_JSON]:
                print_json_error(error)
                ctx.exit(error.exit_code)
            if isinstance(error, click.ClickException):
                error.message = printable(error.message)  # type: ignore[misc]
            raise error


def _explain_interrupt(ctx: click.Context) -> None:
    """Print once that the command was interrupted, and what to do next."""
    if not ctx.meta.get("layerswap.explained"):
        ctx.meta["layerswap.explained"] = True
        text = "\nInterrupted."
        if ctx.invoked_subcommand in _GO_ON:
            text += " Finished work is saved; the same command goes on with the rest."
        os.write(2, f"{text}\n".encode())


def _end_soon(ctx: click.Context) -> None:
    """Have Ctrl-C end a command that can go on within two seconds, whatever it is at.

    An import or a library may swallow the interrupt, and an engine may take long to end; workers
    end with this process, and what is saved is whole at any time.
    """

    def leave() -> None:
        _explain_interrupt(ctx)
        os._exit(130)

    def press(number: int, frame: FrameType | None) -> None:
        ctx.meta[_PRESSED] = True
        timer = threading.Timer(1.5, leave)
        timer.daemon = True
        timer.start()
        # Python would print an interrupt that a library's callback swallows.
        sys.unraisablehook = lambda _: None
        signal.default_int_handler(number, frame)

    default = signal.default_int_handler
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread and signal.getsignal(signal.SIGINT) is default:
        # Python's tracker of shared resources cleans up after an early end, and would warn of it.
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
        signal.signal(signal.SIGINT, press)
        ctx.call_on_close(lambda: signal.signal(signal.SIGINT, default))


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
    if ctx.invoked_subcommand in _GO_ON:
        _end_soon(ctx)
