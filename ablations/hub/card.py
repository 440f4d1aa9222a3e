"""The model card of a merge for the hub: mergekit's card, completed.

mergekit's front matter and text stay; what is added stands between two marks and is written anew
by the next call. Parsed and written by huggingface_hub's own card classes.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.gallery.find import languages as header_languages
from ablations.gallery.find import read_header
from ablations.gallery.plan import describe, supply_of
from ablations.hub.origins import common_licence, licence_note, licence_of
from ablations.hub.scores import (
    benchmark_ids,
    cell_of,
    check_same_model,
    model_index,
    notes,
    result_files,
    score_table,
)
from ablations.machine.whole_files import check_place, told_if_unwritable, write_text
from ablations.runner.records import CellRecord, load_run
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.output import PLAN_FILE, REVERT_PLAN_FILE
from layerswap_method.recipe.references import is_folder, named_models
from layerswap_method.recipe.strict_yaml import read_text_and_yaml

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

LOG = logging.getLogger("layerswap")

CARD = "README.md"
RECIPE = "mergekit_config.yml"
RESULTS = ".eval_results"
BEGIN, END = "<!-- layerswap card: begin -->", "<!-- layerswap card: end -->"
_PACKAGES = ("layerswap", "mergekit", "torch", "transformers")


class CardOptions(Frozen):
    """What the user sets of a card."""

    results: Path | None = None
    """A run folder with the model's scores; None for a card without an evaluation."""

    cell: str | None = None
    """Label of the cell in `results`; None looks for the one that was read from the model."""

    languages: tuple[str, ...] = ()
    """Codes; () takes those of the recipe's header."""

    license: str | None = None
    """Of the merge; None goes by the merged models' cards."""

    benchmarks: tuple[str, ...] = ()
    """``TASK=OWNER/DATASET[:TASK_ID]``, for `.eval_results`."""

    hub: bool = True
    """Whether licences of models that are not here may be fetched from the hub."""


def write_card(model: Path, options: CardOptions) -> list[Path]:
    """Complete the card in a merged model's folder; return what was written.

    Args:
        model: the folder that `mergekit-yaml` or `layerswap merge` wrote.
        options: of the user.

    Raises:
        InputError: for a folder that is no merge, a card that huggingface_hub cannot read, a run
            without scores of the model, or benchmarks that were not evaluated.
    """
    if options.benchmarks and options.results is None:
        raise InputError("--benchmark says which scores to write: it needs --results RUN")
    for name in (CARD, RECIPE):
        if not (model / name).is_file():
            raise InputError(
                f"{model}: holds no {name}; give the folder that mergekit-yaml or layerswap merge "
                "wrote (without --no-write-model-card)"
            )
    check_place(model / CARD)
    text, document = _read_recipe(model)
    card = read_card(model)
    references = _references(document)
    licences = {each: licence_of(each, hub=options.hub) for each in references}
    run = None if options.results is None else load_run(options.results)
    cell = None if run is None else cell_of(run, model, options.cell)
    if run is not None and cell is not None:
        check_same_model(run, cell, model)
    files = {} if cell is None else result_files(cell, benchmark_ids(options.benchmarks))
    _complete(card.data, model, options, text, common_licence(licences), cell)
    sections = [*_plan_section(model), *_recipe_section(model, document)]
    if cell is not None and run is not None:
        said = "\n".join(f"- {note}" for note in notes(cell, run))
        sections += ["## Evaluation", score_table(cell), said]
    sections += ["## Licence", _licence_text(options.license, licences)]
    content = _with_section(str(card.text), "\n\n".join(sections))
    written = {model / RESULTS / name: entry for name, entry in files.items()}
    with told_if_unwritable(model):
        for path, entry in written.items():
            write_text(path, entry)
        write_text(model / CARD, f"---\n{card.data.to_yaml()}\n---\n{content}")
    return [model / CARD, *written]


def read_card(model: Path) -> ModelCard:
    """Return the card in a model's folder.

    Raises:
        InputError: for a card that huggingface_hub cannot read.
    """
    from huggingface_hub import ModelCard

    try:
        card: ModelCard = ModelCard.load(model / CARD)
    except Exception as error:
        raise InputError(f"{model / CARD}: is not a card that the hub can read: {error}") from error
    return card


def local_paths(model: Path) -> list[str]:
    """Return the folders of this machine that a merge's recipe names: others do not have them.

    Raises:
        InputError: where the recipe cannot be read.
    """
    _, document = _read_recipe(model)
    return [
        each for each in _references(document) if is_folder(each) or each.startswith((".", "/"))
    ]


def _read_recipe(model: Path) -> tuple[str, dict[str, Any]]:
    text, document = read_text_and_yaml(model / RECIPE)
    if not isinstance(document, dict) or "merge_method" not in document:
        raise InputError(f"{model / RECIPE}: is not a recipe; it has no merge_method:")
    return text, document


def _references(document: Any) -> list[str]:
    """Return every model and adapter of a recipe, each once."""
    return list(dict.fromkeys(p for each in named_models(document) for p in each.split("+")))


def _complete(
    data: Any,
    model: Path,
    options: CardOptions,
    recipe: str,
    licence: str | None,
    cell: CellRecord | None,
) -> None:
    """Add to a card's front matter what mergekit's lacks."""
    data.base_model_relation = "merge"
    data.pipeline_tag = "text-generation"
    codes = list(options.languages) or header_languages(read_header(recipe))
    if codes:
        data.language = codes
    data.license = options.license or licence
    if data.license is None:
        LOG.warning("no licence is written: the merged models' cards state none, or several")
    if cell is not None:
        data.model_name = model.resolve().name
        data.eval_results = model_index(cell)


def _plan_section(model: Path) -> list[str]:
    if not (model / PLAN_FILE).is_file():
        return []
    return ["## Layers", "\n".join(["```text", *describe(supply_of(str(model))), "```"])]


def _recipe_section(model: Path, document: Any) -> list[str]:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    plans = [model / name for name in (PLAN_FILE, REVERT_PLAN_FILE)]
    made = next((f" of layerswap {_version_of(path)}" for path in plans if path.is_file()), "")
    return [
        "## Reproduce",
        f"The exact recipe is [`{RECIPE}`]({RECIPE}), merged by "
        f"`{document['merge_method']}`{made}. This card was written with {', '.join(versions)}.",
        f"```console\n$ mergekit-yaml {RECIPE} ./merged{_adapter_option(document)}\n```",
    ]


def _adapter_option(document: Any) -> str:
    """Return what mergekit needs where a recipe names adapters."""
    has_adapter = any("+" in model for model in named_models(document))
    return " --lora-merge-cache ./adapters" if has_adapter else ""


def _version_of(plan: Path) -> str:
    """Return which layerswap wrote a plan file."""
    try:
        return str(json.loads(plan.read_text(encoding="utf-8"))["layerswap_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{plan}: is damaged; merge the recipe again") from error


def _licence_text(given: str | None, licences: dict[str, str | None]) -> str:
    note = licence_note(licences)
    if given is None:
        return note
    rows = note.partition("\n\n")[2]
    return f"{given}, as stated by whoever wrote this card. The merged models state:\n\n{rows}"


def _with_section(text: str, section: str) -> str:
    """Return a card's text with our section at its end, in place of an earlier one."""
    marked = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    kept = marked.sub("", text).strip("\n")
    return f"\n{kept}\n\n{BEGIN}\n\n{section}\n\n{END}\n"
