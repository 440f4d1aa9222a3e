"""Commands on one model's benchmarks: `evaluate` and `tasks`."""

from __future__ import annotations

from typing import Any

import click

from ablations.cli.log import say, show_log, watched
from ablations.cli.options import (
    evaluation_options,
    folder_option,
    names_option,
    pop_isolation,
    pop_settings,
    settings_option,
)


@click.command()
@click.argument("model")
@names_option(
    "--languages", "Codes joined by commas, such as sw,te.  [default: the paper's en,ja,bn,sw,te]"
)
@names_option(
    "--benchmarks",
    "Names joined by commas, such as mgsm,belebele.  [default: the paper's five]",
)
@names_option(
    "--tasks",
    "Other tasks by lm-eval's names, joined by commas, such as gsm8k,arc_easy. Without "
    "--languages and --benchmarks, only these are evaluated.",
)
@click.option(
    "--include-path",
    type=click.Path(exists=True, file_okay=False),
    help="Folder with lm-eval task files of your own, for --tasks.",
)
@settings_option(
    "A key of a study's evaluate: and its value, such as apply_chat_template=true, "
    "'gen_kwargs={temperature: 0.6}' or options.tensor_parallel_size=4."
)
@evaluation_options
@folder_option(
    "--out",
    "Folder for the records.  [default: runs/evaluate/MODEL/BACKEND, with what differs from the "
    "defaults in its name]",
)
def evaluate(model: str, languages: tuple[str, ...], **options: Any) -> None:
    """Run the paper's benchmarks on MODEL and show a table like its Table 5.

    MODEL is a folder, a hub id, or BASE+ADAPTER for a LoRA adapter on its base.

    `layerswap tasks` lists the benchmarks. Finished tasks are reused. The table has the
    tasks of this call; scores.csv in --out also has those of earlier calls with the same model,
    engine, --limit, --dtype, --max-model-len and protocol (chat template, sampling, repeats).
    """
    show_log()
    with watched():
        from ablations.evaluate.run import evaluate_model, read_block
        from ablations.runner.run import RunOptions

        settings = pop_settings(options)
        named = {name: options.pop(name) for name in ("tasks", "benchmarks", "include_path")}
        settings |= {name: value for name, value in named.items() if value}
        chosen = RunOptions(isolation=pop_isolation(options), **options)
        result = evaluate_model(model, read_block(settings), chosen, languages)
    say(result.report())


@click.command()
def tasks() -> None:
    """List the paper's benchmarks as lm-eval tasks.

    Every name works in `layerswap run`, and with lm-eval: --include_path ablations/tasks.
    """
    from ablations.tasks.catalog import describe_tasks

    click.echo(describe_tasks())
