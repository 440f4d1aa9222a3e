"""The model card of a merge for the hub: mergekit's card, completed.

mergekit's front matter and text stay; what is added stands between two marks and is written anew
by the next call. Parsed and written by huggingface_hub's own card classes.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.gallery.find import languages as header_languages
from ablations.gallery.find import read_header
from ablations.gallery.plan import describe, supply_of
from ablations.hub.scores import cell_of, check_same_model, model_index, score_section
from ablations.machine.whole_files import write_errors, write_text
from ablations.runner.records import load_run
from layerswap_method.errors import InputError
from layerswap_method.output import PLAN_FILE, REVERT_PLAN_FILE
from layerswap_method.recipe.references import is_folder, named_models
from layerswap_method.recipe.strict_yaml import read_text_and_yaml

LOG = logging.getLogger("layerswap")

CARD = "README.md"
RECIPE = "mergekit_config.yml"
BEGIN, END = "<!-- layerswap card: begin -->", "<!-- layerswap card: end -->"
_PACKAGES = ("layerswap", "mergekit", "torch", "transformers")


def write_card(
    model: Path,
    *,
    results: Path | None = None,
    cell: str | None = None,
    languages: Sequence[str] = (),
    license: str | None = None,
    hub: bool = True,
) -> Path:
    """Complete the card in a merged model's folder; return its file.

    Args:
        model: the folder that `mergekit-yaml` or `layerswap merge` wrote.
        results: a run folder with the model's scores; None for a card without an evaluation.
        cell: label of the cell in `results`; None looks for the one that was read from the model.
        languages: codes; none takes those of the recipe's header.
        license: of the merge; None goes by the merged models' cards.
        hub: whether licences of models that are not here may be fetched from the hub.

    Raises:
        InputError: for a folder that is no merge, a card that huggingface_hub cannot read, or a run
            without scores of the model.
    """
    from huggingface_hub import ModelCard

    for name in (CARD, RECIPE):
        if not (model / name).is_file():
            raise InputError(
                f"{model}: holds no {name}; give the folder that mergekit-yaml or layerswap merge "
                "wrote (without --no-write-model-card)"
            )
    text, document = read_text_and_yaml(model / RECIPE)
    if not isinstance(document, dict) or "merge_method" not in document:
        raise InputError(f"{model / RECIPE}: is not a recipe; it has no merge_method:")
    try:
        card = ModelCard.load(model / CARD)
    except Exception as error:
        raise InputError(f"{model / CARD}: is not a card that the hub can read: {error}") from error
    references = list(dict.fromkeys(p for m in named_models(document) for p in m.split("+")))
    local = [each for each in references if is_folder(each) or each.startswith((".", "/"))]
    if local:
        LOG.warning("the recipe names folders that others lack: %s", ", ".join(local))
    licences = {each: _licence_of(each, hub=hub) for each in references}
    data = card.data
    data.base_model_relation = "merge"
    data.pipeline_tag = "text-generation"
    if codes := list(languages) or header_languages(read_header(text)):
        data.language = codes
    data.license = license or _common(licences)
    if data.license is None:
        LOG.warning("no licence is written: the merged models' cards state none, or several")
    sections = [*_plan_section(model), *_recipe_section(model, document)]
    if results is not None:
        run = load_run(results)
        scored = cell_of(run, model, cell)
        check_same_model(run, scored, model)
        data.model_name = model.resolve().name
        data.eval_results = model_index(scored)
        sections += ["## Evaluation", score_section(scored, run)]
    sections += ["## Licence", _licence_text(license, licences)]
    with write_errors(model):
        content = _with_section(str(card.text), "\n\n".join(sections))
        write_text(model / CARD, f"---\n{data.to_yaml()}\n---\n{content}")
    return model / CARD


def _plan_section(model: Path) -> list[str]:
    if not (model / PLAN_FILE).is_file():
        return []
    return ["## Layers", "\n".join(["```text", *describe(supply_of(str(model))), "```"])]


def _recipe_section(model: Path, document: Mapping[str, Any]) -> list[str]:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    plans = [model / name for name in (PLAN_FILE, REVERT_PLAN_FILE)]
    made = next((f" of layerswap {_version_of(path)}" for path in plans if path.is_file()), "")
    has_adapter = any("+" in model for model in named_models(document))
    options = " --lora-merge-cache ./adapters" if has_adapter else ""
    return [
        "## Reproduce",
        f"The exact recipe is [`{RECIPE}`]({RECIPE}), merged by "
        f"`{document['merge_method']}`{made}. This card was written with {', '.join(versions)}.",
        f"```console\n$ mergekit-yaml {RECIPE} ./merged{options}\n```",
    ]


def _version_of(plan: Path) -> str:
    """Return which layerswap wrote a plan file."""
    try:
        return str(json.loads(plan.read_text(encoding="utf-8"))["layerswap_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{plan}: is damaged; merge the recipe again") from error


def _licence_of(reference: str, *, hub: bool) -> str | None:
    """Return the licence that a model's own card states; None where none can be read."""
    from huggingface_hub import ModelCard, model_info

    stated: object = None
    try:  # a card that the hub would refuse as well; no such model, no network, no access
        if (card := Path(reference) / CARD).is_file():
            stated = ModelCard.load(card).data.license
        elif hub and not is_folder(reference):
            name, _, revision = reference.partition("@")
            found = model_info(name, revision=revision or None).card_data
            stated = found.license if found is not None else None
    except Exception:
        return None
    return stated if isinstance(stated, str) and stated else None


def _common(licences: Mapping[str, str | None]) -> str | None:
    """Return the one licence of all models; None where they differ or one is unknown."""
    stated = set(licences.values())
    return next(iter(stated)) if len(stated) == 1 else None


def _licence_text(given: str | None, licences: Mapping[str, str | None]) -> str:
    rows = "\n".join(f"- `{model}`: {stated or 'not stated'}" for model, stated in licences.items())
    if given is not None:
        said = f"{given}, as stated by whoever wrote this card. The merged models state:"
    elif (one := _common(licences)) is not None:
        said = f"All merged models are under {one}, and so is this one."
    else:
        unknown = None in licences.values()
        why = (
            "not every merged model states one" if unknown else "those of the merged models differ"
        )
        said = (
            f"No licence is stated for this model, because {why}. Whoever uses or shares it must "
            "follow the terms of all of them:"
        )
    return f"{said}\n\n{rows}"


def _with_section(text: str, section: str) -> str:
    """Return a card's text with our section at its end, in place of an earlier one."""
    marked = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    kept = marked.sub("", text).strip("\n")
    return f"\n{kept}\n\n{BEGIN}\n\n{section}\n\n{END}\n"
