"""The click command `layerswap`. Knows the names of its commands; imports one only when asked.

A command is a name below and a function of that name (with _ for -) in a module of that name.
`layerswap --help` imports those modules, which hold options only; torch, mergekit, lm-eval and
their like are imported by the libraries that the bodies call.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from layerswap_method.errors import nearest

_GO_ON = ("evaluate", "pocket", "quickstart", "run", "smol", "train")
"""Commands that keep what they have finished."""

_GOES_ON = " Finished work is saved; the same command goes on with the rest."

COMMANDS = (
    *("card", "check", "compare", "compat", "delta", "divergence", "evaluate", "harmonize"),
    *("init", "merge", "plan", "pocket", "quickstart", "recipes", "report", "rescore"),
    *("run", "smol", "swap-adapters", "tasks", "train", "verify", "version"),
)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names, sorted."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"ablations.cli.{name}")
        command: click.Command = getattr(module, name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C ends it with one sentence and exit code 130, as in a shell."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            goes_on = ctx.invoked_subcommand in _GO_ON
            click.echo(str(stop) or f"Interrupted.{_GOES_ON if goes_on else ''}", err=True)
            ctx.exit(130)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of `args`; an unknown name is answered with the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Merge, evaluate and compare language models by layer swapping.

    mergekit-yaml RECIPE OUT merges as well: this package adds layer_swap to mergekit.
    """
