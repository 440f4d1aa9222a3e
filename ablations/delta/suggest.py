"""`layerswap suggest`: from references to a table and a recipe. Knows files; the rule is `suggest`.

Everything is read, computed and checked before a recipe is written.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ablations.delta.suggest_rule import Suggestion, suggest_swap
from ablations.machine.whole_files import check_place, told_if_unwritable, write_text
from ablations.models.find import Expert, find_model
from ablations.models.fit import compatibility_report
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.layer_swap.placements import build_plan
from layerswap_method.layer_swap.spec import LayerSwapSpec
from layerswap_method.recipe.references import path_problem

if TYPE_CHECKING:
    from layerswap_method.checkpoints.model_files import StreamInput
    from layerswap_method.layer_swap.measure import UnitShare

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Models:
    """The models of a suggestion, found and fit for each other."""

    task: tuple[Expert, ...]
    """Experts whose middle is to be kept; several are a soup."""

    language: tuple[Expert, ...]
    """Experts whose ends are to be taken; several are a soup."""

    base: Expert
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
    models = find_models(task, language, base)
    units = measure_layers(models, threshold)
    suggestion = suggest_swap(
        [unit.task for unit in units], [unit.language for unit in units], threshold
    )
    table = tuple(table_lines(units))
    yield from table
    yield ""
    yield from conclusion_lines(suggestion, threshold)
    if recipe is None:
        return
    if suggestion.refusal is not None:
        raise LayerSwapError(f"{recipe}: not written, because no swap is proposed")
    with told_if_unwritable(recipe):
        write_text(recipe, recipe_text(models, suggestion, table, threshold, recipe))
    yield ""
    yield f"{recipe}  (mergekit-yaml {shlex.quote(str(recipe))} OUT{_cache_option(models)})"


def find_models(task: Sequence[str], language: Sequence[str], base: str) -> Models:
    """Return the models on this machine, checked against each other by their headers.

    Raises:
        InputError: with every problem.
    """
    found: dict[str, Expert] = {}
    given: dict[str, str] = {}
    problems: list[str] = []
    experts = [reference.rstrip("/") for reference in (*task, *language)]
    for number, reference in enumerate(experts):
        if reference in experts[:number]:  # a recipe refuses it as well
            problems.append(f"{reference} is named twice; an expert plays one role, once")
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
    stored = {dtype for each in checkpoints for dtype in each.dtypes.values()}
    return Models(
        task=tuple(found[name] for name in found if name.startswith("task")),
        language=tuple(found[name] for name in found if name.startswith("language")),
        base=found["base"],
        given=given,
        num_layers=num_layers,
        dtype=_widest(stored),
    )


def measure_layers(models: Models, threshold: float) -> tuple[UnitShare, ...]:
    """Return every layer's share of each side's change, read in one pass over the checkpoints.

    Args:
        models: the experts and their base.
        threshold: tau, up to which a layer is a tie.

    Raises:
        InputError: for experts of another base or that changed nothing, or files that do not read.
    """
    from layerswap_method.layer_swap.measure import measure

    experts = [_stream_input(expert, "task") for expert in models.task]
    experts += [_stream_input(expert, "language") for expert in models.language]
    spec = LayerSwapSpec(placement="delta_share", delta_threshold=threshold)
    return measure(spec, experts, _stream_input(models.base, None), models.num_layers).units


def table_lines(units: Sequence[UnitShare]) -> Iterator[str]:
    """Yield one line a layer, the embedding side first: both shares, the difference, the winner."""
    yield "share of each expert's whole change, by layer (relative norms; each column sums to 1)"
    yield f"{'layer':>5}  {'language':>8}  {'task':>8}  {'difference':>10}  wins"
    for unit in units:
        winner = "tie: average" if unit.source == "average" else unit.source
        yield (
            f"{unit.layer:>5}  {unit.language:8.4f}  {unit.task:8.4f}  "
            f"{unit.language - unit.task:+10.4f}  {winner}"
        )


def conclusion_lines(suggestion: Suggestion, threshold: float) -> Iterator[str]:
    """Yield what follows from the table, and what it leaves out."""
    if suggestion.refusal is not None:
        yield f"no swap is proposed: {suggestion.refusal}"
        return
    b, u, t_b, t_u = suggestion.counts().values()
    yield f"proposed: b={b} u={u} t_b={t_b} t_u={t_u} (difference above {threshold:g} wins a layer)"
    plan = build_plan(
        len(suggestion.winners),
        bottom_layers=b,
        top_layers=u,
        bottom_transition=t_b,
        top_transition=t_u,
    )
    yield plan.draw()
    for remark in suggestion.remarks:
        yield f"note: {remark}"
    yield (
        "note: where weights changed most is no proof of where skill sits; evaluate the swap "
        "beside the soup before you rely on it"
    )


def recipe_text(
    models: Models, suggestion: Suggestion, table: Sequence[str], threshold: float, path: Path
) -> str:
    """Return the recipe as YAML with a header that says where its numbers come from."""
    fields = {
        "What": "Layer Swapping with the layers that `layerswap suggest` read off the deltas.",
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
    lines = []
    for name, text in fields.items():
        if name == "Run":  # a command is not broken
            lines.append(f"# {name + ':':<9} {text}")
            continue
        wrapped = textwrap.wrap(text, 86)
        lines += [
            f"# {name + ':':<9} {wrapped[0]}",
            *(f"#           {more}" for more in wrapped[1:]),
        ]
    document: dict[str, Any] = {
        "merge_method": "layer_swap",
        "models": [
            {"model": models.given[expert.name], "parameters": {"role": role}}
            for role, experts in (("task", models.task), ("language", models.language))
            for expert in experts
        ],
        "base_model": models.given["base"],
        "parameters": suggestion.counts(),
        "dtype": models.dtype,
    }
    reasons = [f"# {line}".rstrip() for line in ("", *table)]
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return "\n".join((*lines, *reasons)) + f"\n{text}"


def _check_target(recipe: Path, *, force: bool) -> None:
    if recipe.is_dir():
        raise InputError(f"{recipe}: is a folder; give a file such as {recipe / 'recipe.yml'}")
    if recipe.exists() and not force:
        raise InputError(f"{recipe}: exists; add --force to replace it, or give another name")
    check_place(recipe)


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
    whole = Path(reference)
    parts = [reference] if whole.is_dir() else reference.split("+")
    shown = [str(Path(part).resolve()) if Path(part).is_dir() else part for part in parts]
    for part in shown:
        if (problem := path_problem(part)) is not None:
            raise InputError(problem)
    return "+".join(shown)


def _widest(stored: set[str]) -> str:
    kinds = [dtype for dtype in _DTYPES if dtype in stored]
    if {"F16", "BF16"} <= set(kinds):  # neither holds the other
        return "float64" if "F64" in kinds else "float32"
    return _DTYPES[kinds[0]] if kinds else "float32"


def _cache_option(models: Models) -> str:
    adapters = any(expert.adapter is not None for expert in (*models.task, *models.language))
    return " --lora-merge-cache ./merged/lora_cache" if adapters else ""


def _stream_input(expert: Expert, role: str | None) -> StreamInput:
    from layerswap_method.checkpoints.model_files import StreamInput

    return StreamInput(expert.name, expert.folder, role=role, adapter=expert.adapter)
