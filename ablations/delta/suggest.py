"""`layerswap suggest`: from references to a table and a recipe. Knows files; the rule is `suggest`.

Everything is read, computed and checked before a recipe is written.
"""

from __future__ import annotations

import functools
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from ablations.delta.suggest_rule import Suggestion, suggest_swap
from ablations.drawing.text_table import text_table
from ablations.machine.progress import counted
from ablations.machine.whole_files import check_place, told_if_unwritable, write_text
from ablations.models.find import Expert, find_model
from ablations.models.fit import compatibility_report
from layerswap_method.checkpoint.stored import DTYPES
from layerswap_method.drawing import draw_plan
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.methods.layer_swap_measure import UnitShare, measure
from layerswap_method.plan import build_plan
from layerswap_method.recipe.references import StreamInput, is_folder, path_problem


@dataclass(frozen=True)
class Models:
    """The models of a suggestion, found and fit for each other."""

    experts: tuple[StreamInput, ...]
    """Task experts, whose middle is to be kept, and language experts, whose ends are to be taken;
    several of a role are a soup."""

    base: StreamInput
    """Their shared pretrained parent."""

    given: dict[str, str]
    """Name of an expert -> the reference for a recipe."""

    num_layers: int
    """Decoder layers."""

    dtype: str
    """torch dtype of a merge that rounds nothing away: the widest that is stored."""


def suggest(
    task: Sequence[str],
    language: Sequence[str],
    base: str,
    *,
    threshold: float,
    recipe: Path | None = None,
    force: bool = False,
) -> Iterator[str]:
    """Propose a swap and yield what to tell; writes `recipe` if it is given.

    Args:
        task: folders, hub ids or ``base+adapter`` of the task expert; several are a soup.
        language: likewise of the language expert.
        base: folder or hub id of the pretrained parent.
        threshold: tau of the rule.
        recipe: file for the recipe; None writes none.
        force: whether `recipe` may exist.

    Raises:
        InputError: for what is wrong with a model, with them together, or with `recipe`.
        LayerSwapError: where a recipe is asked for and no swap is proposed; the table and the
            reason were yielded before, and nothing is written.
    """
    if recipe is not None:
        _check_target(recipe, force=force)
    models = _find_models(task, language, base)
    spec = LayerSwapSpec(placement="delta_share", delta_threshold=threshold)
    units = measure(spec, models.experts, models.base, models.num_layers, counted).units
    suggestion = suggest_swap(
        [unit.task_share for unit in units], [unit.language_share for unit in units], threshold
    )
    table = tuple(_table_lines(units))
    yield from table
    yield ""
    yield from _conclusion_lines(suggestion, threshold)
    if recipe is None:
        return
    if suggestion.refusal is not None:
        raise LayerSwapError(f"{recipe}: not written, because no swap is proposed")
    with told_if_unwritable(recipe):
        write_text(recipe, _recipe_text(models, suggestion, table, threshold, recipe))
    yield ""
    yield f"{recipe}  (mergekit-yaml {shlex.quote(str(recipe))} OUT{_cache_option(models)})"


def _find_models(task: Sequence[str], language: Sequence[str], base: str) -> Models:
    """Return the models on this machine, checked against each other by their headers."""
    found: dict[str, Expert] = {}
    given: dict[str, str] = {}
    problems: list[str] = []
    experts = [reference.rstrip("/") for reference in (*task, *language)]
    for number, reference in enumerate(experts):
        if reference in experts[:number]:  # a recipe refuses it as well
            problems.append(f"{reference} is named twice; an expert has one role")
    for name, reference in _named(task, language, base):
        try:
            found[name] = find_model(reference, name=name)
            given[name] = _for_recipe(reference)
        except InputError as error:
            problems.append(error.message)
    if not problems:
        checkpoints, problems = compatibility_report(
            [found["base"], *(expert for name, expert in found.items() if name != "base")],
            aligned=False,
        )
    if problems:
        raise InputError.from_problems("suggest", problems)
    num_layers = checkpoints[0].num_layers
    if num_layers is None:
        raise InputError(f"the config of {base} does not say how many layers it has")
    stored = {tensor.dtype for each in checkpoints for tensor in each.tensors.values()}
    known = [DTYPES[dtype].torch_name for dtype in stored]
    dtypes = [getattr(torch, each) for each in known if each is not None]
    widest = functools.reduce(torch.promote_types, dtypes, torch.bool)
    base_input, *others = (
        StreamInput(name, each.folder, role=name.split()[0], adapter=each.adapter)
        for name, each in found.items()
    )
    return Models(
        experts=tuple(others),
        base=replace(base_input, role=None),
        given=given,
        num_layers=num_layers,
        dtype=str(widest).removeprefix("torch."),
    )


def _table_lines(units: Sequence[UnitShare]) -> Iterator[str]:
    """Yield one line a layer, the embedding side first: both shares, the difference, the winner."""
    yield "share of each expert's whole change, by layer (relative norms; each column sums to 1)"
    rows = [
        (
            str(unit.layer),
            *(f"{share:.4f}" for share in (unit.language_share, unit.task_share)),
            f"{unit.language_share - unit.task_share:+.4f}",
            "tie: average" if unit.source == "average" else unit.source,
        )
        for unit in units
    ]
    head = ("layer", "language", "task", "difference", "wins")
    yield from text_table(head, rows, sides="rrrrl").splitlines()


def _conclusion_lines(suggestion: Suggestion, threshold: float) -> Iterator[str]:
    """Yield what follows from the table, and what it leaves out."""
    if suggestion.refusal is not None:
        yield f"no swap is proposed: {suggestion.refusal}"
        return
    b, u, t_b, t_u = suggestion.counts.values()
    yield f"proposed: b={b} u={u} t_b={t_b} t_u={t_u} (difference above {threshold:g} wins a layer)"
    plan = build_plan(
        len(suggestion.winners),
        bottom_layers=b,
        top_layers=u,
        bottom_transition=t_b,
        top_transition=t_u,
    )
    yield draw_plan(plan)
    for remark in suggestion.remarks:
        yield f"note: {remark}"
    yield (
        "note: the layers that changed most need not be those that matter; compare the swap with "
        "the soup before you rely on it"
    )


def _recipe_text(
    models: Models, suggestion: Suggestion, table: Sequence[str], threshold: float, path: Path
) -> str:
    """Return the recipe as YAML with a header that says where its numbers come from."""
    fields = {
        "What": "Layer Swapping with the layers that `layerswap suggest` chose by the changes.",
        "Run": shlex.join(["mergekit-yaml", str(path), f"./merged/{path.stem}"])
        + _cache_option(models),
        "Needs": "the models below, as they were measured.",
        "Source": (
            "arXiv 2410.01335, Algorithm 1; the winner of a layer as in arXiv 2601.22620, "
            f"threshold {threshold:g}."
        ),
        "Expected": "not measured; evaluate it beside the soup of the two experts.",
        "To change": "the counts; compare neighbours with a study (layerswap run).",
    }
    lines = [
        f"# {name + ':':<9} {text}"
        if name == "Run"  # a command is not broken
        else textwrap.fill(
            text, 98, initial_indent=f"# {name + ':':<9} ", subsequent_indent=f"#{'':11}"
        )
        for name, text in fields.items()
    ]
    document: dict[str, Any] = {
        "merge_method": "layer_swap",
        "models": [
            {"model": models.given[expert.name], "parameters": {"role": expert.role}}
            for expert in models.experts
        ],
        "base_model": models.given["base"],
        "parameters": suggestion.counts,
        "dtype": models.dtype,
    }
    reasons = [f"# {line}".rstrip() for line in ("", *table)]
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return "\n".join((*lines, *reasons)) + f"\n{text}"


def _check_target(recipe: Path, *, force: bool) -> None:
    check_place(recipe)
    if recipe.is_dir():
        raise InputError(f"{recipe}: is a folder; give a file such as {recipe / 'recipe.yml'}")
    if recipe.exists() and not force:
        raise InputError(f"{recipe}: exists; add --force to replace it, or give another name")


def _named(task: Sequence[str], language: Sequence[str], base: str) -> Iterator[tuple[str, str]]:
    yield "base", base
    for role, references in (("task", task), ("language", language)):
        for i, reference in enumerate(references, start=1):
            yield (role if len(references) == 1 else f"{role} {i}"), reference


def _for_recipe(reference: str) -> str:
    """Return a reference as mergekit takes it: folders absolute, hub ids as they are.

    Raises:
        InputError: for a path that mergekit would misread.
    """
    parts = [reference] if is_folder(reference) else reference.split("+")
    shown = [str(Path(part).resolve()) if is_folder(part) else part for part in parts]
    for part in shown:
        if (problem := path_problem(part)) is not None:
            raise InputError(problem)
    return "+".join(shown)


def _cache_option(models: Models) -> str:
    adapters = any(expert.adapter is not None for expert in models.experts)
    return " --lora-merge-cache ./merged/lora_cache" if adapters else ""
