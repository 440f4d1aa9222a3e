"""Commands on models: `compat`, `explain`, `verify`, `delta` and `card`."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path

import click

from ablations.cli.completion import complete_place
from ablations.cli.json_output import json_option, print_json, printed_log
from ablations.cli.log import print_line, watched
from ablations.cli.options import FILE, FOLDER, Place, folder_option, names_option
from layerswap_method.errors import size_text


@click.command(short_help="Show whether models can be merged as they are.")
@click.argument(
    "models", nargs=-1, required=True, metavar="A B [MODEL]...", shell_complete=complete_place
)
@click.option("--base", metavar="MODEL", help="Also check whether they descend from this model.")
@json_option
def compat(models: tuple[str, ...], base: str | None, as_json: bool) -> None:
    """Show whether the models A, B, ... can be merged as they are, and what a merge warns of.

    Models are folders, hub ids or base+adapter. Only configs, headers and tokenizers are read, and
    with --base a few rows of the weights. Exit code 1: the merge methods do not take them as they
    are.
    """
    from ablations.models.compat import check_compatibility

    with watched("reading configs, headers and tokenizers"):
        result = check_compatibility(models, base)
    if as_json:
        print_json(
            models=result.names,
            problems=result.problems,
            warnings=result.warnings,
            base=result.base,
            changes=result.changes,
            verdict=result.verdict(),
        )
    else:
        print_line(str(result))
    sys.exit(1 if result.problems else 0)


@click.command(short_help="List or remove what was downloaded in part.")
@click.argument("models", nargs=-1, metavar="[OWNER/NAME]...")
@click.option("--remove", is_flag=True, help="Remove them; without a name, all.")
@json_option
def cache(models: tuple[str, ...], remove: bool, as_json: bool) -> None:
    """List the models of the hub of which only the byte ranges that a merge read were downloaded.

    They are in a folder beside the hub's cache, which has whole files (hf cache list).
    """
    from layerswap_method.hub.cache import cached_models, describe_cache, remove_models

    listed = remove_models(models) if remove else cached_models(models)
    if as_json:
        print_json(models=listed, removed=remove)
    elif remove:
        for model in listed:
            print_line(f"{model.name}: removed, {size_text(model.nbytes)}")
        if not listed:
            print_line("nothing to remove")
    else:
        for line in describe_cache(listed):
            print_line(line)


@click.command(short_help="Compare two checkpoints tensor by tensor.")
@click.argument("merged", shell_complete=complete_place)
@click.argument("published", shell_complete=complete_place)
@json_option
def verify(merged: str, published: str, as_json: bool) -> None:
    """Compare the checkpoint MERGED with the checkpoint PUBLISHED, tensor by tensor.

    Each is a folder, a hub id or base+adapter. Says whether every tensor is equal bit for bit, or
    which layers differ and by how much. Neither model is loaded: a few million values are in memory
    at a time. Exit code 1: they differ.
    """
    from ablations.models.verify import verify_models

    with watched("reading the headers"):
        comparison = verify_models(merged, published)
    if as_json:
        print_json(is_equal=comparison.is_equal, **vars(comparison))
    else:
        print_line(str(comparison))
    sys.exit(0 if comparison.is_equal else 1)


@click.command(short_help="Read the recipe of a merge back from its weights.")
@click.argument("merged", shell_complete=complete_place)
@click.argument("parents", nargs=-1, metavar="A [B]...", shell_complete=complete_place)
@click.option("--parents", "has_word", is_flag=True, help="What follows are the parents.")
@click.option("--recipe", type=FILE, metavar="FILE", help="Write the recipe to a new file.")
@json_option
def explain(
    merged: str, parents: tuple[str, ...], has_word: bool, recipe: Path | None, as_json: bool
) -> None:
    """Say which layers of the merge MERGED come from which of its --parents A B ..., and how.

    Models are folders or hub ids, of which a few MB are read: headers, and a sample of every
    tensor. A tensor is a copy of a parent, a weighted sum of parents, or not explained. Name the
    base, too, where it may be a part. Where one of the known methods fits, a recipe is printed that
    gives these tensors; check it with layerswap verify. Exit code 1: something is not explained.
    """
    from ablations.explain.explanation import explain as read_back

    with watched():
        result = read_back(merged, parents, recipe_file=recipe)
    if as_json:
        print_json(
            merged=result.merged,
            parents=result.parents,
            places=[{"place": place, "text": text} for place, text in result.rows()],
            tensors=result.places(),
            recipe=result.recipe,
            nbytes=result.nbytes,
        )
    else:
        print_line(str(result))
    sys.exit(1 if result.unexplained else 0)


@click.command()
@click.argument("experts", nargs=-1, metavar="[EXPERT]...", shell_complete=complete_place)
@click.option("--base", metavar="MODEL", help="The model from which the experts were fine-tuned.")
@click.option(
    "--threshold",
    type=click.FloatRange(min=0),
    metavar="CHANGE",
    help="Count rows with a mean absolute change above this.  [default: the value that an eighth "
    "of the rows exceed]",
)
@folder_option("--out", "Folder to write to.", "runs/delta")
@click.option(
    "--reference",
    metavar="NAME",
    help="Draw a published expert of the paper, such as 'Swahili expert #1', alone or next to "
    "an EXPERT.",
)
@click.option(
    "--text",
    "texts",
    type=Place(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help='Also measure the drift of the hidden states on these lines of {"text": "..."}. A run of '
    "layerswap train leaves such a file, held_out.jsonl.",
)
@json_option
def delta(
    experts: tuple[str, ...],
    base: str | None,
    threshold: float | None,
    out: Path,
    reference: str | None,
    texts: Path | None,
    as_json: bool,
) -> None:
    """Show where fine-tuning changed a model, layer by layer.

    An EXPERT is a folder, a hub id or base+adapter. Prints how much changed; writes delta.csv, one
    row per tensor, and a heatmap as in the paper's Figure 2. Figures need matplotlib:
    pip install 'layerswap[plot]'. With --text also divergence.json and an
    experts file with the measured distances, for studies.
    """
    if threshold is not None and not math.isfinite(threshold):
        raise click.UsageError(f"--threshold is {threshold}; give a number of 0 or more")
    with watched():
        if texts is None:
            from ablations.delta.analysis import delta as analyse
        else:
            from ablations.train.divergence import delta_with_drift

            analyse = functools.partial(delta_with_drift, texts=texts)
        with printed_log(as_json=as_json, folder=out) as log:
            analyse(experts, base, log, out=out, threshold=threshold, reference=reference)


@click.command(short_help="Complete the model card of a merged folder.")
@click.argument("model", type=FOLDER)
@click.option(
    "--results",
    type=FOLDER,
    metavar="RUN",
    help="Run folder with the model's scores (layerswap evaluate, or layerswap run and --cell).",
)
@click.option("--cell", metavar="LABEL", help="Cell of the run, of several with the same weights.")
@names_option("--languages", "Codes, such as en,sw.  [default: the recipe's]")
@click.option("--license", metavar="ID", help="Licence of the merge.  [default: its models']")
@click.option("--offline", is_flag=True, help="Read no licence from the hub.")
@json_option
def card(
    model: Path,
    results: Path | None,
    cell: str | None,
    languages: tuple[str, ...],
    license: str | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Complete the model card of the merged folder MODEL, for the hub.

    mergekit's text stays. This adds the relation to the base, languages, licence, how to repeat the
    merge, how to use the model, and with --results the scores with intervals and protocol. Those of
    layerswap evaluate are found by the weights, whatever the folder was called.
    """
    from ablations.hub_card import complete_card

    with watched("writing the card"):
        path = complete_card(
            model,
            results=results,
            cell=cell,
            languages=languages,
            license=license,
            hub=not offline,
        )
    with printed_log(as_json=as_json, file=path) as log:
        log(str(path))
