"""Options that several commands share. Imports nothing heavy."""

from __future__ import annotations

import click

backend_option = click.option(
    "--backend",
    type=click.Choice(["auto", "hf", "vllm"]),
    default="auto",
    show_default=True,
    help="What evaluates: vLLM when it is installed (auto), transformers, or vLLM.",
)
