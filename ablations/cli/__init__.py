"""The click command `layerswap`. Knows the names of its commands; imports one only when asked.

A command is a name below and a function of that name in a module of that name. `layerswap --help`
imports those modules, which hold options only; torch, mergekit, lm-eval and their like are imported
by the libraries that the bodies call.
"""

from __future__ import annotations

import importlib

import click

from layerswap_method.errors import nearest

COMMANDS = (
    *("card", "check", "delta", "evaluate", "merge", "plan", "pocket", "push", "quickstart"),
    *("recipes", "report", "run", "share", "suggest", "tasks", "version"),
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
        module = importlib.import_module(f"ablations.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of `args`; an unknown name is answered with the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Layer swapping: experts, merges, evaluation.

    Merge with mergekit-yaml RECIPE OUT, or straight from files with layerswap merge RECIPE OUT.
    """
