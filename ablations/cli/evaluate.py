"""Commands on one model's benchmarks: `evaluate` and `tasks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ablations.cli.log import say, show_log, watched
from ablations.cli.options import (
    FOLDER,
    Names,
    answers_option,
    asking_options,
    backend_option,
    code_options,
    data_dir_option,
    engine_options,
    folder_option,
    isolation_of,
    protocol_options,
    track_option,
)


@click.command()
@click.argument("model")
@click.option(
    "--languages",
    type=Names(),
    metavar="LIST",
    help="Codes joined by commas, such as sw,te.  [default: the paper's en,ja,bn,sw,te]",
)
@click.option(
    "--benchmarks",
    type=Names(),
    metavar="LIST",
    help="Names joined by commas, such as mgsm,belebele.  [default: the paper's five]",
)
@data_dir_option
@click.option(
    "--tasks",
    type=Names(),
    metavar="LIST",
    help="Other tasks by lm-eval's names, joined by commas, such as gsm8k,arc_easy. Without "
    "--languages and --benchmarks, only these are evaluated.",
)
@click.option(
    "--include-path",
    type=FOLDER,
    help="Folder with lm-eval task files of your own, for --tasks.",
)
@protocol_options(whole="")
@asking_options
@engine_options
@backend_option
@folder_option(
    "--out",
    "Folder for the records.  [default: runs/evaluate/MODEL/BACKEND, with --limit, --dtype, "
    "--max-model-len and the way of asking in its name]",
)
@answers_option
@code_options
@track_option
def evaluate(
    model: str,
    languages: tuple[str, ...],
    backend: Any,
    allow_code_execution: bool,
    code_isolation: Any,
    out: Path | None,
    answers: Path | None,
    track: Any,
    **asked: Any,
) -> None:
    """Run the paper's benchmarks on MODEL and show its Table 5.

    MODEL is a folder, a hub id, or BASE+ADAPTER for a LoRA adapter on its base.

    `layerswap tasks` lists the benchmarks. Finished tasks are reused. The table shows what this
    call asked; scores.csv in --out also keeps the scores of earlier calls with the same model,
    backend, --limit, --dtype, --max-model-len and way of asking (chat template, sampling, repeats).
    """
    show_log()
    with watched():
        from ablations.engines.options import EngineOptions
        from ablations.evaluate.run import evaluate_model
        from ablations.scoring.protocol import Protocol, read_protocol
        from ablations.study.schema import Evaluate

        given = {name: value for name, value in asked.items() if value is not None}
        template = given.get("apply_chat_template", "false")
        given["apply_chat_template"] = {"true": True, "false": False}.get(template, template)
        protocol = read_protocol({n: given.pop(n) for n in Protocol.model_fields if n in given})
        engine = {name: given.pop(name) for name in EngineOptions.model_fields if name in given}
        given |= {n: str(given[n]) for n in ("include_path", "data_dir") if n in given}
        result = evaluate_model(
            model,
            Evaluate(**dict(protocol), options=EngineOptions(**engine), **given),
            languages=languages,
            backend=backend,
            isolation=isolation_of(allow_code_execution, code_isolation),
            out=out,
            track=track,
            answers=answers,
        )
    say(result.report())


@click.command()
def tasks() -> None:
    """List the paper's benchmarks as lm-eval tasks.

    Every name works in `layerswap run`, and with lm-eval: --include_path ablations/tasks.
    """
    from ablations.tasks.catalog import describe_tasks

    click.echo(describe_tasks())
