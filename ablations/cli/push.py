"""`layerswap push`: options and output. Sends nothing itself."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Upload a merged folder with its card to the hub.")
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("repository", metavar="REPO_ID")
@click.option("--private", is_flag=True, help="Make a new repository private.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent; send nothing.")
@click.option("--without-results", is_flag=True, help="Accept a card without scores.")
def push(model: Path, repository: str, private: bool, dry_run: bool, without_results: bool) -> None:
    """Upload the merged folder MODEL with its card to REPO_ID (OWNER/NAME) on the hub.

    Run layerswap card first. The token is that of hf auth login or HF_TOKEN. Only safetensors,
    configs, tokenizer and card are sent.
    """
    from ablations.hub.push import PushOptions
    from ablations.hub.push import push as send

    options = PushOptions(private=private, dry_run=dry_run, without_results=without_results)
    for line in send(model, repository, options):
        click.echo(line)
