"""The model card of a merge for the hub: mergekit's card, completed.

mergekit's front matter and text stay; our section stands between two marks and is written anew by
the next call. huggingface_hub's own card classes parse and write the card.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.engines.chat import has_template
from ablations.machine.fingerprint import HASHES, FileHashes
from ablations.machine.whole_files import write_errors, write_text
from ablations.recipe_commands.find import languages as header_languages
from ablations.recipe_commands.find import read_recipe_header
from ablations.report.answer_words import markdown_text
from ablations.report.notes import items_text
from ablations.runner.run import default_answers_folder
from ablations.runs.cell_of_model import cell_of
from ablations.runs.records import CellRecord, TaskRecord
from ablations.runs.run import Run, load_run
from ablations.scoring.evaluation import EvaluationSettings, TaskScore
from ablations.scoring.observed import OBSERVED
from ablations.statistics.as_text import with_interval
from ablations.study.identity import Fingerprints
from ablations.tasks.catalog import list_tasks
from layerswap_method.errors import InputError
from layerswap_method.file_names import MERGED_RECIPE
from layerswap_method.methods.read import read_recipe, read_recipe_file
from layerswap_method.methods.table import PLAN_FILES
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.references import is_folder

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


LOG = logging.getLogger("layerswap")

CARD = "README.md"
BEGIN, END = "<!-- layerswap card: begin -->", "<!-- layerswap card: end -->"
_PACKAGES = ("layerswap", "mergekit", "torch", "transformers")


def complete_card(
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
        cell: label of the cell in `results`; None looks for the one that has the model's weights.
        languages: codes; none takes those of the recipe's header.
        license: of the merge; None goes by the merged models' cards.
        hub: whether licences of models that are not local may be fetched from the hub.

    Raises:
        InputError: for a folder that is not a merge, a card that the hub cannot read, or a run
            without scores of the model.
    """
    from huggingface_hub import ModelCard

    for name in (CARD, MERGED_RECIPE):
        if not (model / name).is_file():
            raise InputError(
                f"{model}: holds no {name}; give the folder that mergekit-yaml or layerswap merge "
                "wrote (without --no-write-model-card)"
            )
    file = read_recipe_file(model / MERGED_RECIPE)
    recipe = read_recipe(file.document)
    try:
        card = ModelCard.load(model / CARD)
    except Exception as error:
        raise InputError(f"{model / CARD}: is not a card that the hub can read: {error}") from error
    parts = (part for reference in recipe.references for part in reference.split("+"))
    references = list(dict.fromkeys(parts))
    local = [name for name in references if is_folder(name) or name.startswith((".", "/"))]
    if local:
        LOG.warning("the recipe names folders that others lack: %s", ", ".join(local))
    licences = {reference: _licence_of(reference, hub=hub) for reference in references}
    data = card.data
    data.base_model_relation = "merge"
    data.pipeline_tag = "text-generation"
    data.language = list(languages) or header_languages(read_recipe_header(file.text)) or None
    data.model_name = data.eval_results = None  # of an earlier card
    data.license = license or _common(licences)
    if data.license is None:
        LOG.warning("no licence is written: the merged models' cards state none, or several")
    sections = [*_recipe_section(model, recipe), *_use_section(model)]
    if results is not None:
        run = load_run(results)
        fingerprints = Fingerprints(FileHashes(default_answers_folder(run.path) / HASHES))
        record = cell_of(run, model, cell, recipe, fingerprints)
        data.model_name = model.resolve().name
        data.eval_results = model_index(record)
        sections += ["## Evaluation", score_section(record, run)]
    sections += ["## Licence", _licence_text(license, licences)]
    with write_errors(model):
        content = _with_section(str(card.text), "\n\n".join(sections))
        write_text(model / CARD, f"---\n{data.to_yaml()}\n---\n{content}")
    return model / CARD


def _recipe_section(model: Path, recipe: Recipe) -> list[str]:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    plans = [model / name for name in PLAN_FILES]
    plan = next((path for path in plans if path.is_file()), None)
    layerswap = "" if plan is None else f" of layerswap {_version_of(plan)}"
    has_adapter = any("+" in reference for reference in recipe.references)
    options = " --lora-merge-cache ./adapters" if has_adapter else ""
    return [
        "## Reproduce",
        f"The exact recipe is [`{MERGED_RECIPE}`]({MERGED_RECIPE}), merged by "
        f"`{recipe.merge_method}`{layerswap}. This card was written with "
        f"{', '.join(versions)}.",
        f"```console\n$ mergekit-yaml {MERGED_RECIPE} ./merged{options}\n```",
    ]


def _use_section(model: Path) -> list[str]:
    """Return how the model answers in transformers and vLLM; its place is to be filled in."""
    name = f"OWNER/{model.resolve().name}"
    inputs = 'inputs = tokenizer("12 + 30 =", return_tensors="pt")'
    if has_template(model):
        inputs = """\
messages = [{"role": "user", "content": "12 + 30 = ?"}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)"""
    return [
        "## Use",
        f"`{name}` stands for the place of the model: a repository of the hub, or this folder.",
        f"""\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForCausalLM.from_pretrained("{name}", dtype="auto")
{inputs}
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0]))
```""",
        f"```console\n$ vllm serve {name}\n```",
    ]


def _version_of(plan: Path) -> str:
    """Return the version of layerswap that wrote a plan file."""
    try:
        return str(json.loads(plan.read_text(encoding="utf-8"))["layerswap_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{plan}: is damaged; merge the recipe again") from error


def _licence_of(reference: str, *, hub: bool) -> str | None:
    """Return the licence that a model's own card states; None where none can be read."""
    from huggingface_hub import ModelCard, model_info

    licence: object = None
    try:  # a card that the hub would refuse as well; no such model, no network, no access
        if (card := Path(reference) / CARD).is_file():
            licence = ModelCard.load(card).data.license
        elif hub and not is_folder(reference):
            name, _, revision = reference.partition("@")
            data = model_info(name, revision=revision or None).card_data
            licence = data.license if data is not None else None
    except Exception:
        return None
    return licence if isinstance(licence, str) and licence else None


def _common(licences: Mapping[str, str | None]) -> str | None:
    """Return the one licence of all models; None where they differ or one is unknown."""
    names = set(licences.values())  # "other" has a name of its own, which may differ
    return next(iter(names)) if len(names) == 1 and names != {"other"} else None


def _licence_text(license: str | None, licences: Mapping[str, str | None]) -> str:
    rows = "\n".join(
        f"- `{model}`: {licence or 'not stated'}" for model, licence in licences.items()
    )
    if license is not None:
        claim = f"{license}, as stated by whoever wrote this card. The merged models state:"
    elif (common := _common(licences)) is not None:
        claim = f"All merged models are under {common}, and so is this one."
    else:
        claim = (
            "No licence is stated for this model, because the merged models do not state one and "
            "the same. Whoever uses or shares it must follow the terms of all of them:"
        )
    return f"{claim}\n\n{rows}"


def _with_section(text: str, section: str) -> str:
    """Return a card's text with our section at its end, in place of an earlier one."""
    ours = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    other_text = ours.sub("", text).strip("\n")
    return f"\n{other_text}\n\n{BEGIN}\n\n{section}\n\n{END}\n"


def _shown(cell: CellRecord) -> list[tuple[TaskRecord, TaskScore]]:
    """Return the scores that a card shows: the tasks' own metrics, without observations."""
    pairs = [(record, score) for record in cell.task_records for score in record.evaluation.scores]
    return [(record, score) for record, score in pairs if score.metric not in OBSERVED]


def score_section(cell: CellRecord, run: Run) -> str:
    """Return the scores with intervals and protocol as a Markdown table, and notes on them."""
    evaluate = run.study.evaluate
    protocols = _shipped_protocols(evaluate)
    lines = ["| task | metric | score | items | protocol |", "|---|---|---|---|---|"]
    for record, score in _shown(cell):
        value = with_interval(score.value, score.interval, score.is_share)
        protocol = protocols.get(score.task) or _protocol(record)
        lines.append(f"| `{score.task}` | {_metric(score)} | {value} | {score.n} | {protocol} |")
    first = cell.task_records[0].evaluation
    versions = ", ".join(f"{name} {version}" for name, version in sorted(first.versions.items()))
    intervals = [score.interval for _, score in _shown(cell) if score.interval is not None]
    notes = ["Scores are in percent where a metric is a share."]
    if intervals:
        level = f"{intervals[0].level:.0%}"
        notes[0] += f" An interval ({level}) is over the items of the task, not over trainings."
    notes.append(f"Evaluated by lm-eval on {cell.backend} with {versions}.")
    if evaluate.overrides_text:
        notes.append(
            f"In place of the tasks' own settings: {markdown_text(evaluate.overrides_text)}."
        )
    if evaluate.limit is not None or evaluate.items:
        notes.append(f"Items of each task that were used: {items_text(evaluate)}.")
    return "\n".join([*lines, "", *(f"- {note}" for note in dict.fromkeys((*notes, *cell.notes)))])


def _shipped_protocols(evaluate: EvaluationSettings) -> dict[str, str]:
    """Return shipped task -> how it was asked; {} where a folder of the user's has the tasks."""
    if evaluate.include_path:
        return {}
    limit = evaluate.gen_kwargs.max_gen_toks
    tasks = list_tasks()
    if limit is not None:
        tasks = tuple(
            task.model_copy(update={"max_gen_toks": task.max_gen_toks and limit}) for task in tasks
        )
    return {task.name: task.protocol for task in tasks}


def model_index(cell: CellRecord) -> list[EvalResult]:
    """Return every shown score as huggingface_hub's `EvalResult`; shares in percent."""
    from huggingface_hub import EvalResult

    sources = {task.name: task.source for task in list_tasks()}
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=sources.get(score.task, score.task),
            dataset_name=score.task,
            dataset_config=score.task,  # the hub shows scores of one type and config as one task's
            metric_type=score.metric,
            metric_name=_metric(score),
            metric_value=round(100 * score.value, 2) if score.is_share else round(score.value, 4),
        )
        for _, score in _shown(cell)
    ]


def _metric(score: TaskScore) -> str:
    return score.metric if score.filter == "none" else f"{score.metric} ({score.filter})"


def _protocol(record: TaskRecord) -> str:
    evaluation, task = record.evaluation, record.task
    parts = []
    if task in evaluation.num_fewshot:
        parts.append(f"{evaluation.num_fewshot[task]}-shot")
    if version := evaluation.task_versions.get(task):
        parts.append(f"version {version}")
    return ", ".join(parts)
