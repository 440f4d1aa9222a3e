"""Commands on recipes: to list, check and draw them, and those that write a model."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ablations.cli.completion import complete_recipe, complete_recipe_name
from ablations.cli.json_output import json_option, print_json, printed_log
from ablations.cli.log import print_line, watched
from ablations.cli.options import (
    COUNT,
    FILE,
    Place,
    choice_option,
    download_option,
    shard_size_option,
)
from ablations.machine.progress import byte_progress
from ablations.study.start_files import COMMANDS_OF_KINDS, write_start_file


@click.group(short_help="List or copy the shipped recipes.")
def recipes() -> None:
    """List or copy the recipes that come with the package."""


@recipes.command("list")
@click.option("--language", help="Only recipes for this language, such as sw or swahili.")
@json_option
def list_(language: str | None, as_json: bool) -> None:
    """List every recipe with languages, base and settings."""
    from ablations.drawing.text_table import terminal_width
    from ablations.recipe_commands.find import describe_recipes, list_recipes

    listed = list_recipes(language)
    if as_json:
        print_json(recipes=listed)
    else:
        click.echo(describe_recipes(listed, terminal_width()))


@recipes.command()
@click.argument("name", shell_complete=complete_recipe_name)
@click.argument("out", type=FILE, default=".")
def copy(name: str, out: Path) -> None:
    """Copy the recipe NAME to OUT, a folder or a file ending in .yml."""
    from ablations.recipe_commands.find import copy_recipe

    click.echo(copy_recipe(name, out))


@click.group(short_help="List or copy the shipped studies.")
def studies() -> None:
    """List or copy the studies that come with the package."""


@studies.command("list")
@json_option
def studies_list(as_json: bool) -> None:
    """List every study with its question and the experts file that it runs on."""
    from ablations.drawing.text_table import terminal_width
    from ablations.study.shipped import describe_studies, list_studies

    listed = list_studies()
    if as_json:
        print_json(studies=listed)
    else:
        click.echo(describe_studies(listed, terminal_width()))


@studies.command("copy")
@click.argument("name")
@click.argument("out", type=FILE, default=".")
def studies_copy(name: str, out: Path) -> None:
    """Copy the study NAME to OUT, a folder or a file ending in .yml.

    The copy runs on the same experts. In a file of another name it is a study of that name, with a
    run folder of its own.
    """
    from ablations.study.shipped import copy_study

    click.echo(copy_study(name, out))


@click.command(short_help="Show what can be seen to be wrong with recipes.")
@click.argument(
    "recipes", nargs=-1, required=True, metavar="RECIPE...", shell_complete=complete_recipe
)
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("--offline", is_flag=True, help="Fetch nothing from the hub.")
@json_option
def check(recipes: tuple[str, ...], strict: bool, offline: bool, as_json: bool) -> None:
    """Show what can be seen to be wrong with recipes, before any merge.

    A RECIPE is a file, a folder of recipes, or the name of a shipped one. Looks at keys, roles,
    layer counts, the models' compatibility, dtypes and revisions, and says how much a merge will
    download. Downloads no weights: of a model that is not on this machine, config, tokenizer and
    the headers of its weights are fetched. Exit code 2: a recipe is wrong.
    """
    with watched("checking"):
        from ablations.recipe_commands.check import check_recipes

        result = check_recipes(recipes, hub=not offline)
    if as_json:
        print_json(recipes=result.recipes, errors=result.errors, warnings=result.warnings)
    else:
        print_line(str(result))
    sys.exit(2 if result.errors or (strict and result.warnings) else 0)


@click.command(short_help="Draw which expert supplies each layer of a recipe.")
@click.argument("recipe", shell_complete=complete_recipe)
@click.option(
    "--layers",
    type=COUNT,
    metavar="N",
    help="Depth of the models; by default read from a config, local or on the hub.",
)
@json_option
def plan(recipe: str, layers: int | None, as_json: bool) -> None:
    """Draw which expert supplies each layer of RECIPE, and everything outside the layers.

    RECIPE is a file, the name of a shipped recipe, or the folder of a finished layer_swap merge.
    Only configs are read, never weights.
    """
    from ablations.recipe_commands.recipe_plan import plan_recipe

    recipe_plan = plan_recipe(recipe, layers)
    if as_json:
        print_json(**vars(recipe_plan))
    else:
        print_line(str(recipe_plan))


@click.command()
@click.argument("kind", type=click.Choice(list(COMMANDS_OF_KINDS)))
@click.argument("file", required=False, type=FILE)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(kind: str, file: Path | None, force: bool) -> None:
    """Write a commented file to start from.

    It is a study, a mergekit recipe, an experts file or a training file. FILE is study.yml,
    recipe.yml, experts.yml or train.yml unless you name another. It works as it is on the models of
    layerswap pocket build; its comments say what to change for your own.
    """
    click.echo(write_start_file(kind, file, force=force))


@click.command()
@click.argument("recipe", shell_complete=complete_recipe)
@click.argument("out")
@click.argument("mergekit_options", nargs=-1, type=click.UNPROCESSED)
@shard_size_option
@click.option(
    "--threads",
    type=COUNT,
    help="Number of tensors that are written at once.  [default: processors, at most 4]",
)
@choice_option("--device", ["cpu", "cuda"], "Where averages are computed.")
@click.option("--verify", is_flag=True, help="Read the output again and compare every tensor.")
@download_option
@json_option
def merge(
    recipe: str,
    out: str,
    mergekit_options: tuple[str, ...],
    shard_size: int,
    threads: int | None,
    device: str,
    verify: bool,
    download: str,
    as_json: bool,
) -> None:
    """Merge RECIPE, a file or the name of a shipped one, into the folder OUT, in little memory.

    The tensors are the same as those of mergekit-yaml. Recipes that need mergekit itself
    (tokenizer:, its own methods) are passed on to it. Options after -- are passed to mergekit.
    """
    from ablations.recipe_commands.find import open_recipe
    from ablations.recipe_commands.recipe_merge import MergekitFailed, merge_recipe
    from layerswap_method.merge import WriteOptions

    options = WriteOptions(shard_bytes=shard_size, threads=threads, verify=verify, device=device)
    try:
        with (
            watched("reading the recipe and the models"),
            printed_log(as_json=as_json, folder=Path(out)) as log,
        ):
            merge_recipe(
                open_recipe(recipe),
                out,
                options,
                log,
                mergekit_options=mergekit_options,
                bar=byte_progress,
                download=download,
            )
    except MergekitFailed as error:
        if as_json:
            failure = click.ClickException(error.message)
            failure.exit_code = error.exit_code  # type: ignore[misc]
            raise failure from error
        sys.exit(error.exit_code)


@click.command(short_help="Write models of different architectures in a common one.")
@click.argument("models", nargs=-1, required=True, metavar="A B [MODEL]...")
@click.option("--out", type=Place(), required=True, help="Each model gets a folder in it.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Dtype of the new weights.  [default: that of each tensor]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Give every model the RoPE base and scaling of A. This changes what the others compute.",
)
@shard_size_option
def harmonize(
    models: tuple[str, ...], out: str, dtype: str | None, force: bool, shard_size: int
) -> None:
    """Write models A, B, ... in one common architecture. Each computes the same as before.

    Models are folders or hub ids: Llamas and Mistrals together, Qwen2 models, or Qwen3 models.
    Key-value heads are repeated; MLPs and depth are padded with neurons and layers that add
    nothing; the residual stream is copied or padded. Vocabularies stay: the recipe of the merge
    aligns them (tokenizer: {source: union}).
    """
    from ablations.harmonize.run import harmonize as write
    from ablations.models.find import find_model

    with watched("reading the models"):
        write(
            [find_model(model) for model in models],
            out,
            print_line,
            dtype=dtype,
            force=force,
            shard_bytes=shard_size,
            bar=byte_progress,
        )


@click.command("swap-adapters", short_help="Swap the layers of LoRA adapters or of prefixes.")
@click.argument("recipe", shell_complete=complete_recipe)
@click.option("--out", type=Place(), required=True, help="Folder of the new adapter.")
@click.option(
    "--rank",
    type=COUNT,
    help="Highest rank of the new adapter: higher ranks are cut by SVD, and the error is "
    "printed.  [default: nothing is cut]",
)
@json_option
def swap_adapters(recipe: str, out: str, rank: int | None, as_json: bool) -> None:
    """Write the adapter that is the layer swap of RECIPE, without merged weights.

    RECIPE is a layer_swap recipe whose models are BASE+ADAPTER: LoRA adapters, or prefixes. The new
    adapter loads in peft, a LoRA adapter also in vLLM. Base and LoRA adapter together are what
    layerswap merge makes of the same recipe, to rounding.
    """
    from ablations.models.find import find_model
    from ablations.recipe_commands.find import open_recipe
    from layerswap_method.adapter_swap.run import swap_adapters as swap

    with (
        watched("swapping the adapters"),
        printed_log(as_json=as_json, folder=Path(out)) as log,
    ):
        swap(open_recipe(recipe), find_model, out, log, rank)
