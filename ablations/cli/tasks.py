"""`layerswap tasks`: the list as a table or as JSON."""

from __future__ import annotations

import json

import click

from ablations.cli.options import list_format_option


@click.command()
@list_format_option
def tasks(form: str) -> None:
    """List the paper's benchmarks as lm-eval tasks.

    Every name works in `layerswap run`, and with lm-eval: --include_path ablations/tasks.
    """
    from ablations.tasks.catalog import describe_tasks, list_tasks

    found = list_tasks()
    if form == "json":
        rows = [{**task.model_dump(mode="json"), "protocol": task.protocol} for task in found]
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    click.echo(describe_tasks(found))
