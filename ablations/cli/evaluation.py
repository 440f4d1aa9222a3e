"""Commands that evaluate, and show the results: `evaluate`, `run`, `report` and others."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ablations.cli.completion import (
    complete_benchmarks,
    complete_experts,
    complete_languages,
    complete_other_model,
    complete_place,
    complete_run_model,
    complete_run_task,
    complete_study,
    complete_tasks,
)
from ablations.cli.json_output import json_option, print_json, refuse_json_of
from ablations.cli.log import print_line, show_log, watched
from ablations.cli.options import (
    COUNT,
    FILE,
    Place,
    choice_option,
    download_option,
    evaluation_options,
    folder_option,
    names_option,
    pop_isolation,
    pop_settings,
    settings_option,
)

if TYPE_CHECKING:
    from ablations.report.model_comparison import ModelComparison


@click.command()
@click.argument(
    "models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_place
)
@names_option(
    "--languages",
    "Codes or English names joined by commas, such as sw,telugu: of the benchmarks, of the tasks "
    "in --include-path, and in place of {lang} in --tasks.  [default: the paper's en,ja,bn,sw,te]",
    shell_complete=complete_languages,
)
@names_option(
    "--benchmarks",
    "Names joined by commas, such as mgsm,belebele.  [default: the paper's five]",
    shell_complete=complete_benchmarks,
)
@names_option(
    "--tasks",
    "Other tasks by lm-eval's names, joined by commas, such as gsm8k,arc_easy or belebele_{lang}. "
    "Without --benchmarks, and without --languages where no name has {lang}, only these are "
    "evaluated.",
    shell_complete=complete_tasks,
)
@click.option(
    "--include-path",
    type=Place(exists=True, file_okay=False),
    multiple=True,
    help="Folder with lm-eval task files of your own, for --tasks. Can be given several times.",
)
@settings_option(
    "A key of a study's evaluate: and its value, such as apply_chat_template=true, "
    "'gen_kwargs={temperature: 0.6}' or options.tensor_parallel_size=4."
)
@evaluation_options
@click.option(
    "--name",
    help="Name of the model in tables and in the default folder.  [default: the last part of its "
    "path]",
)
@click.option(
    "--dry-run", is_flag=True, help="List tasks with their items, what is done, the folder."
)
@folder_option(
    "--out",
    "Folder for the records.  [default: runs/evaluate/MODEL/BACKEND, with what differs from the "
    "defaults in its name]",
)
@json_option
def evaluate(
    models: tuple[str, ...],
    languages: tuple[str, ...],
    name: str | None,
    as_json: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Run the paper's benchmarks on MODEL and print its scores.

    MODEL is a folder, a hub id, or BASE+ADAPTER for a LoRA adapter on its base. Several models are
    evaluated one after the other, each into its own folder, and then compared; on vLLM one engine
    serves all that fit it.

    `layerswap tasks` lists the benchmarks. Finished tasks are reused. The table, in the form of the
    paper's Table 5, has the tasks of this call; scores.csv in --out also has those of earlier calls
    with the same model, engine, --limit, --dtype, --max-model-len and protocol (chat, sampling).
    """
    refuse_json_of(dry_run=dry_run, as_json=as_json)
    if not dry_run:
        show_log()
    with watched():
        from ablations.drawing.text_table import terminal_width
        from ablations.evaluate import (
            compare_results,
            describe_evaluations,
            evaluate_models,
            report_of_several,
        )
        from ablations.runner.run import RunOptions

        settings = pop_settings(options)
        run_options = RunOptions(settings=settings, isolation=pop_isolation(options), **options)
        if dry_run:
            text = describe_evaluations(models, run_options, languages, name, terminal_width())
        else:
            results = evaluate_models(models, run_options, languages, name)
    if dry_run:
        print_line(text)
        return
    objects = [
        {
            "model": result.model,
            "folder": result.out,
            "engine": result.engine,
            "scores": result.scores,
            "notes": result.notes,
            "warnings": result.warnings,
        }
        for result in results
    ]
    if len(results) == 1:
        if as_json:
            print_json(**objects[0])
        else:
            print_line(results[0].report(terminal_width()))
        return
    with watched("comparing item by item"):
        compared = compare_results(results)
    if as_json:
        print_json(evaluations=objects, comparison=_comparison_object(compared))
    else:
        print_line(report_of_several(results, compared, terminal_width()))


@click.command(short_help="List benchmarks, and tasks by language.")
@names_option(
    "--language",
    "Codes or names joined by commas, such as sw,spanish: tasks in these.",
    shell_complete=complete_languages,
)
@names_option(
    "--benchmark",
    "Names joined by commas, such as mgsm: tasks of these and of their variants.",
    shell_complete=complete_benchmarks,
)
@json_option
def tasks(language: tuple[str, ...], benchmark: tuple[str, ...], as_json: bool) -> None:
    """List benchmarks with their languages: ours, and lm-eval's suites in many languages.

    With --language or --benchmark it lists their tasks. Every name works in `layerswap evaluate`
    and in studies; ours also with lm-eval: --include_path ablations/tasks.
    """
    from ablations.drawing.text_table import terminal_width
    from ablations.tasks.listing import describe_benchmarks, describe_tasks, listed_tasks

    listed = listed_tasks(language, benchmark)
    if as_json:
        print_json(tasks=listed)
    elif language or benchmark:
        click.echo(describe_tasks(listed, terminal_width()))
    else:
        click.echo(describe_benchmarks(terminal_width()))


_RUN_OPTIONS = (
    click.option(
        "--experts",
        metavar="FILE",
        shell_complete=complete_experts,
        help="Experts file (name to folder, hub id or base+adapter), or a shipped one such as "
        "pocket. Default: the one the study names.",
    ),
    choice_option(
        "--executor",
        ["local", "ray"],
        "Run on this machine or on a running Ray cluster (pip install 'layerswap[ray]').",
    ),
    click.option(
        "--address", default="auto", show_default=True, help="Address of the Ray cluster."
    ),
    click.option(
        "--jobs", type=COUNT, help="Number of engines at once.  [default: 1; on Ray as many as fit]"
    ),
    click.option("--materialize", is_flag=True, help="Write every merge to disk first."),
    settings_option(
        "A key of the study and its value, such as evaluate.limit=50 or 'vary={bottom_layers: "
        "[1, 2]}', in place of what the study and the experts file say. --limit, --dtype, "
        "--max-model-len and --data-dir are short for such keys."
    ),
    download_option,
    evaluation_options,
)
"""Options of the commands that run studies."""


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_RUN_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("study", shell_complete=complete_study)
@folder_option(
    "--out",
    "Run folder.  [default: runs/STUDY, with the experts file and the settings below in its name "
    "where they are not the study's own]",
)
@click.option("--dry-run", is_flag=True, help="List cells, layers and downloads; run nothing.")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME=VALUE",
    help="Run only some cells, such as kind=recipe. Several values of a name are alternatives.",
)
@_run_options
@json_option
def run(study: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Merge and evaluate all models of a study.

    STUDY is a file or a shipped study such as layer_count (docs/studies.md lists them). A cell is
    one model of the study, merged or not, from one pair of experts. Finished cells are reused, and
    a cell that fails does not stop the others.
    """
    refuse_json_of(dry_run=dry_run, as_json=as_json)
    with watched("loading the libraries"):
        from ablations.runner import run as runner

        run_options = runner.RunOptions(
            settings=pop_settings(options, "evaluate."),
            isolation=pop_isolation(options),
            show_scores=True,
            **options,
        )
        if dry_run:
            text, plan = runner.dry_run(study, run_options)
            from ablations.power import power_line

            line = power_line(plan.study, study, plan.num_layers or None)
        else:
            show_log(logging.WARNING if sys.stderr.isatty() else logging.INFO)
            result = runner.run_study(study, run_options)
    if dry_run:
        from ablations.drawing.text_table import wrapped

        print_line("\n".join(filter(None, [text, wrapped(line)])))
        return
    print_line(result.summary_text())
    with watched("computing the answer"):
        from ablations.report.run_tables import answer_of_run

        answer = answer_of_run(result.run)
    if as_json:
        print_json(
            folder=result.run.path,
            evaluated=result.summary.evaluated,
            before=result.summary.before,
            failed=result.summary.failed,
            answer=answer or None,
            scores=result.run.scores,
        )
    elif answer:
        print_line(f"\n{answer}")
    if result.summary.failed:
        sys.exit(1)


@click.command(short_help="Find the best setting of a study, and report it on other items.")
@click.argument("study", shell_complete=complete_study)
@folder_option(
    "--out",
    "Folder of the search.  [default: runs/search/STUDY, with what is not the study's own]",
)
@click.option("--dry-run", is_flag=True, help="List candidates, rounds and cost; run nothing.")
@click.option(
    "--budget",
    type=float,
    metavar="MINUTES",
    help="Leave out the last rounds that do not fit.  [default: no limit]",
)
@_run_options
@json_option
def search(study: str, dry_run: bool, budget: float | None, as_json: bool, **options: Any) -> None:
    """Find the best setting of a study, and report it on items that did not choose it.

    STUDY is a file or a shipped study, such as search. All settings of its `vary` answer a few
    items, the better half goes on to more, and so on. The best three, the soup, both experts and
    the base then answer the other items. Finished work is reused: the same command goes on.
    """
    refuse_json_of(dry_run=dry_run, as_json=as_json)
    with watched("loading the libraries"):
        from ablations.runner.run import RunOptions
        from ablations.search.run import dry_run_of_search, run_search

        run_options = RunOptions(
            settings=pop_settings(options, "evaluate."),
            isolation=pop_isolation(options),
            **options,
        )
        if dry_run:
            from ablations.power import power_line_of_search

            text, searched = dry_run_of_search(study, run_options, budget)
            text = f"{text}\n{power_line_of_search(searched)}"
        else:
            show_log(logging.INFO)
            result = run_search(study, run_options, budget)
    if dry_run:
        print_line(text)
        return
    print_line(f"{result}\nTables and figures: layerswap report {result.folder}")
    if as_json:
        print_json(
            folder=result.folder.absolute(),
            taken=result.taken,
            finalists=result.finalists,
            rival=result.rival,
            answer=result.sentences,
            scores=result.scores,
            comparisons=result.comparisons,
            rounds=result.rounds,
        )


@click.command(short_help="Write the report of a run and print its answer.")
@click.argument("run", type=FILE)
@names_option("--format", "What to write, joined by commas.", default="html,md,latex,csv")
@folder_option("--out", "Folder to write to.  [default: RUN/report]")
@json_option
def report(run: Path, format: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Write tables, figures and tests of a run, and print its answer.

    RUN is a folder that `layerswap run` wrote, finished or not, or one of `layerswap search`.
    Missing results are marked. The observations, one row per item, and the comparisons are also
    written as parquet. Figures need matplotlib: pip install 'layerswap[plot]'. Other files in the
    folder stay.
    """
    with watched("loading the libraries"):
        from ablations.report.run_tables import report_run
        from ablations.runs.records import is_search
        from ablations.search.result import load_search, report_search

        if is_search(run):
            result = report_search(load_search(run), format, out)
        else:
            result = report_run(run, format, out)
    if as_json:
        files = [file.absolute() for file in result.files]
        print_json(folder=result.folder.absolute(), files=files, answer=result.answer)
    else:
        print_line(str(result))


@click.command()
@click.argument(
    "models", nargs=-1, required=True, metavar="MODEL MODEL...", shell_complete=complete_run_model
)
@names_option(
    "--tasks", "Names joined by commas: compare these only.  [default: those that all models have]"
)
@click.option("--metric", default="", help="Compare by this.  [default: each task's first]")
@json_option
def compare(models: tuple[str, ...], tasks: tuple[str, ...], metric: str, as_json: bool) -> None:
    """Test two or more evaluated models against each other.

    MODEL is a folder that `layerswap evaluate` wrote, or a model or cell of a study: RUN:MODEL,
    with the folder that `layerswap run` wrote and the name in its report, such as
    'runs/layer_count:soup'; a model that was evaluated here, whose run is found by its weights; or
    an output of lm-eval itself, by its --output_path and --log_samples.

    The models are compared on the items that all have. Ours must have answered the same prompts;
    what differs between outputs of lm-eval is said. The statistics are those of `layerswap report`;
    p is corrected for all comparisons of the call. The share of answers in the right language is
    compared as well, without a correction.
    """
    with watched("comparing item by item"):
        from ablations.report.compare_models import compare_models
        from ablations.runs.records import as_input_errors

        with as_input_errors():
            result = compare_models(models, tasks, metric)
    if as_json:
        print_json(**_comparison_object(result))
    else:
        print_line(str(result))


def _comparison_object(compared: ModelComparison) -> dict[str, Any]:
    return {
        "models": compared.models,
        "places": compared.places,
        "warnings": compared.warnings,
        "scores": compared.scores,
        "comparisons": compared.comparisons,
    }


@click.command()
@click.argument("folder", type=FILE, default=Path("runs"))
@json_option
def runs(folder: Path, as_json: bool) -> None:
    """List what was evaluated here: where, model, tasks, when.

    Of FOLDER, which is runs in the working directory by default, all run folders at most three
    folders down are listed, the newest first.
    """
    with watched("reading the runs"):
        from ablations.drawing.text_table import terminal_width
        from ablations.runs.evaluated_models import list_runs

        result = list_runs(folder)
    for warning in result.warnings:
        print_line(f"Warning: {warning}", err=True)
    if as_json:
        print_json(runs=result.runs, warnings=result.warnings)
    else:
        print_line(result.text(terminal_width()))


@click.command(short_help="Say how large differences a study can show.")
@click.argument("study", metavar="STUDY|RUN")
@click.option(
    "--items", type=COUNT, metavar="N", help="Items of each task.  [default: the study's]"
)
@click.option(
    "--difference", type=float, metavar="POINTS", help="Add how many items or experts show this."
)
@click.option(
    "--base-rate", type=float, metavar="PERCENT", help="Assume this score of a study's models."
)
@click.option(
    "--disagreement",
    type=float,
    metavar="PERCENT",
    help="Assume that two models as good disagree on this share of the items.",
)
@click.option(
    "--expert-sd",
    type=float,
    metavar="POINTS",
    help="Assume this standard deviation between the experts of a role.",
)
@json_option
def power(study: str, as_json: bool, **options: Any) -> None:
    """Say which differences the planned comparisons of a study would probably show.

    Of a RUN, its answers say on how many items two models disagree, and how experts differ. Of a
    STUDY that has not run, that is assumed from our results, which are named, or as you state. A
    difference is seen
    with a probability of 80 %, at the study's level, corrected for all planned comparisons.
    """
    with watched("simulating studies"):
        from ablations.power import power_of
        from ablations.runs.records import as_input_errors

        with as_input_errors():
            result = power_of(study, **options)
    if as_json:
        print_json(
            answer=result.sentence,
            comparisons=result.table,
            grid=result.grid_rows(),
            alpha=result.alpha,
            notes=result.notes,
        )
    else:
        print_line(str(result))


@click.command()
@click.argument("model", metavar="RUN[:MODEL]|MODEL", shell_complete=complete_run_model)
@click.option(
    "--task",
    metavar="NAME",
    shell_complete=complete_run_task,
    help="The task; needed where the run has several.",
)
@click.option("--wrong", is_flag=True, help="Show only the items that the model has wrong.")
@click.option("--item", type=click.IntRange(min=0), help="Show this item only, with whole texts.")
@click.option(
    "--against",
    metavar="MODEL",
    shell_complete=complete_other_model,
    help="Show a second model next to it: of the same run, RUN:MODEL or MODEL; items that differ.",
)
@click.option("--all", is_flag=True, help="With --against, show the items that do not differ, too.")
@click.option("--html", type=FILE, help="Write a page to search and filter; print how many items.")
@json_option
def answers(model: str, html: Path | None, as_json: bool, **options: Any) -> None:
    """Show what a model answered: prompt, answer, what filters took, target, right or wrong.

    RUN is a folder that `layerswap evaluate` or `layerswap run` wrote; of a study, MODEL is a name
    in its report, such as 'runs/layer_count:soup'. A MODEL alone that was evaluated here is found
    by its weights.

    The texts are in the folder of answers that runs share. A run folder itself has a few of them
    (examples.jsonl), which are shown where the others are gone. An answer is right where the task's
    first metric has its best value. Two models differ on an item where one of them is right and
    the other wrong.
    """
    with watched("reading the answers"):
        from ablations.report.answers import print_answers, select_answers, write_page
        from ablations.runs.records import as_input_errors

        with as_input_errors():
            is_wrong, is_all = options.pop("wrong"), options.pop("all")
            selected = select_answers(model, is_wrong=is_wrong, is_all=is_all, **options)
    for note in selected.notes:
        print_line(f"Warning: {note}", err=True)
    if html is not None:
        write_page(selected, html)
        print_line(f"{html}: {selected.selection}")
    if as_json:
        print_json(**selected.as_json())
    elif html is None:
        print_answers(selected)
