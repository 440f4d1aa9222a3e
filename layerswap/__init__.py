"""The commands of `layerswap` as functions, for notebooks and programs; see docs/python.md.

Importing it imports nothing heavy: torch and its like are imported by the functions that need them.
Names and meaning of arguments are those of the command line's options, with `_` for `-`.
The command line is `ablations.cli`; the method itself is `layerswap_method`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from layerswap._arguments import checked
from layerswap_method import NOT_ON_WINDOWS, __version__
from layerswap_method.errors import InputError, LayerSwapError

if TYPE_CHECKING:
    import pandas as pd

    from ablations.explain.explanation import Explanation
    from ablations.models.verify import Comparison
    from ablations.recipe_commands.findings import Finding
    from ablations.recipe_commands.recipe_merge import Merged
    from ablations.recipe_commands.recipe_plan import RecipePlan
    from ablations.report.model_comparison import ModelComparison
    from ablations.report.power import PowerTable
    from ablations.report.run_tables import RunTables
    from ablations.runner.run import RunOptions
    from ablations.search.result import SearchResult

if sys.platform == "win32":
    raise ImportError(NOT_ON_WINDOWS)

_SUITE = Path(__file__).parents[1] / "ablations"
"""The package of evaluation, studies and training, which comes with this one."""

_found = importlib.util.find_spec("ablations")
_origin = None if _found is None else _found.origin
if _origin is not None and not Path(_origin).parent.samefile(_SUITE):
    raise ImportError(
        f"another package called ablations ({_origin}) is in front of the one of layerswap "
        f"({_SUITE}): start Python in another folder, or rename the package"
    )

__all__ = [
    "Comparison",
    "Explanation",
    "Finding",
    "InputError",
    "LayerSwapError",
    "Merged",
    "ModelComparison",
    "PowerTable",
    "RecipePlan",
    "RunTables",
    "SearchResult",
    "__version__",
    "check",
    "compare",
    "evaluate",
    "explain",
    "load_run",
    "merge",
    "plan",
    "power",
    "run",
    "search",
    "swap_adapters",
    "verify",
]

_TYPES = {
    "Comparison": "ablations.models.verify",
    "Explanation": "ablations.explain.explanation",
    "Finding": "ablations.recipe_commands.findings",
    "Merged": "ablations.recipe_commands.recipe_merge",
    "ModelComparison": "ablations.report.model_comparison",
    "PowerTable": "ablations.report.power",
    "RecipePlan": "ablations.recipe_commands.recipe_plan",
    "RunTables": "ablations.report.run_tables",
    "SearchResult": "ablations.search.result",
}
"""Type -> the module that has it, which is imported when the type is asked for."""


PathLike = str | os.PathLike[str]
Paths = PathLike | Sequence[PathLike]

RecipeLike = PathLike | Mapping[str, Any]
"""A recipe: a file, the name of a shipped one such as ``swahili``, or its content as a dict."""

StudyLike = PathLike | Mapping[str, Any]
"""A study: a file, the name of a shipped one such as ``layer_count``, or its content as a dict."""

Names = str | Sequence[str]
"""Several names, or a text that joins them by commas, as on the command line."""

Settings = Mapping[str, Any]
"""Keys of a study or a task -> values."""

Backend = Literal["auto", "hf", "vllm"]
Download = Literal["whole", "ranges"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Executor = Literal["local", "ray"]
Isolation = Literal["bwrap", "none"]


def __getattr__(name: str) -> Any:
    """Return a type of `__all__`."""
    import importlib

    if name not in _TYPES:
        cell = "" if name.startswith("_") else f"; a command runs in a cell as !layerswap {name}"
        raise AttributeError(f"module 'layerswap' has no attribute {name!r}{cell}")
    return getattr(importlib.import_module(_TYPES[name]), name)


def __dir__() -> list[str]:
    """Return what is offered, types included, and not what this module imports."""
    return [*__all__]


@checked
def check(recipe: RecipeLike, *, offline: bool = False) -> list[Finding]:
    """Return what can be seen to be wrong with a recipe before any merge, errors first.

    An empty list is a recipe without a finding. A finding has a `level` (``error``, ``warning`` or
    ``note``) and a `message`. Nothing is raised for a recipe that is wrong.

    Args:
        recipe: a file, the name of a shipped recipe, or a dict.
        offline: whether to fetch nothing from the hub.

    Raises:
        InputError: where there is no such recipe.
    """
    from ablations.recipe_commands.check import check_recipe
    from ablations.recipe_commands.find import recipe_path

    content = recipe if isinstance(recipe, Mapping) else recipe_path(recipe)
    return check_recipe(content, hub=not offline)


@checked
def plan(recipe: RecipeLike, *, layers: int | None = None) -> RecipePlan:
    """Return which expert supplies each layer of a recipe; ``print`` it for the picture.

    Only configs are read, never weights.

    Args:
        recipe: a file, the name of a shipped recipe, a dict, or the folder of a finished
            layer_swap: of a merge, or of an adapter that `swap_adapters` wrote.
        layers: depth of the models; None reads it from a config, local or on the hub.

    Raises:
        InputError: for a recipe that is wrong, a method without a plan, or an unknown depth.
    """
    from ablations.recipe_commands.recipe_plan import plan_recipe

    return plan_recipe(recipe, layers)


@checked
def merge(
    recipe: RecipeLike,
    out: PathLike,
    *,
    shard_size: int | str = "5B",
    threads: int | None = None,
    device: str = "cpu",
    verify: bool = False,
    download: Download | None = None,
    mergekit_options: Names = (),
) -> Merged:
    """Merge a recipe into a folder, in little memory; the tensors are those of mergekit-yaml.

    Recipes that need mergekit itself are passed on to it, as by the command. Models are named as on
    the command line: relative folders are those of the working directory.

    Args:
        recipe: a file, the name of a shipped recipe, or a dict.
        out: the folder to write, which appears when it is whole.
        shard_size: size of the largest weight file: bytes, or a text with K, M or B (billion).
        threads: number of tensors that are written at once; None is the processors, at most 4.
        device: where averages are computed, such as ``cuda``.
        verify: whether the output is read again and compared, tensor by tensor.
        download: what is fetched of models of the hub; None is what LAYERSWAP_DOWNLOAD says, or
            ``whole``: the files that are read. ``ranges``: the byte ranges that are.
        mergekit_options: options of mergekit-yaml, which then merges the recipe.

    Raises:
        InputError: for a recipe, a model, a folder or an option that is wrong.
        LayerSwapError: where something cannot be written, or mergekit failed.
    """
    from layerswap_method.output import output_folder

    folder = output_folder(os.fspath(out))  # before anything else: a process may go elsewhere
    from ablations.recipe_commands.find import open_recipe
    from ablations.recipe_commands.recipe_merge import Merged, merge_recipe
    from layerswap_method.command_line import read_size
    from layerswap_method.merge import WriteOptions

    options = WriteOptions(
        shard_bytes=read_size(str(shard_size)),
        threads=threads,
        verify=verify,
        device=device,
    )
    lines: list[str] = []
    merge_recipe(
        open_recipe(recipe),
        str(folder),
        options,
        lines.append,
        mergekit_options=_names(mergekit_options),
        download=download,
    )
    return Merged(lines=tuple(lines), folder=folder)


@checked
def swap_adapters(recipe: RecipeLike, out: PathLike, *, rank: int | None = None) -> Merged:
    """Write the adapter that is the layer swap of a recipe's adapters, without merged weights.

    The `plan` of the result, or ``layerswap.plan(folder)`` of an adapter that was written before,
    says which expert supplied which layer, and what was cut.

    Args:
        recipe: a layer_swap recipe whose models are BASE+ADAPTER: LoRA adapters, or prefixes.
        out: the folder of the new adapter.
        rank: highest rank of a LoRA adapter's changes; None leaves all exact.

    Raises:
        InputError: for a recipe, models or a folder that are wrong.
        LayerSwapError: where something cannot be written.
    """
    from layerswap_method.output import output_folder
    from layerswap_method.recipe.references import working_folder

    folder, here = output_folder(os.fspath(out)), working_folder()
    from ablations.models.find import find_model
    from ablations.recipe_commands.find import open_recipe
    from ablations.recipe_commands.recipe_merge import Merged
    from layerswap_method.adapter_swap.run import swap_adapters as swap

    find = functools.partial(find_model, folder=here)
    lines: list[str] = []
    swap(open_recipe(recipe), find, str(folder), lines.append, rank)
    return Merged(lines=tuple(lines), folder=folder)


@checked
def verify(merged: PathLike, published: PathLike) -> Comparison:
    """Compare two checkpoints tensor by tensor, in the memory of a block of a tensor.

    `is_equal` of the result says whether they are one model, bit for bit; `differences` names the
    tensors that are not equal, with layer and size of the difference.

    Args:
        merged: a folder, a hub id, ``BASE+ADAPTER``, or what `merge` returned.
        published: the one that differences are measured against.

    Raises:
        InputError: for a model that does not exist or cannot be read.
    """
    from ablations.models.verify import verify_models

    return verify_models(os.fspath(merged), os.fspath(published))


@checked
def explain(merged: PathLike, parents: Paths, *, recipe: PathLike | None = None) -> Explanation:
    """Read the recipe of a merge back from a sample of every tensor of it and of its parents.

    `rows()` of the result says which layers are copies of which parent, or which sum; `recipe` is
    a recipe that gives these tensors, for `merge`, or None where no known method does. Print it, or
    show it in a cell, for both in words.

    Args:
        merged: a folder, a hub id, or what `merge` returned.
        parents: the models it may be made of, and their base where that may be a part of it.
        recipe: a new file that the recipe is written to.

    Raises:
        InputError: for a model that does not exist or cannot be read, or for an adapter; for a file
            that exists.
    """
    from ablations.explain.explanation import explain as read_back

    listed = [parents] if isinstance(parents, str | os.PathLike) else parents
    names = [os.fspath(parent) for parent in listed]
    return read_back(os.fspath(merged), names, _path(recipe))


@overload
def evaluate(model: PathLike, /, **options: Any) -> pd.DataFrame: ...


@overload
def evaluate(
    model: PathLike, second: PathLike, /, *models: PathLike, **options: Any
) -> ModelComparison: ...


@checked  # type: ignore[misc]
def evaluate(
    *models: PathLike,
    languages: Names = (),
    benchmarks: Names = (),
    tasks: Names = (),
    include_path: Paths | None = None,
    limit: int | None = None,
    dtype: Dtype | None = None,
    max_model_len: int | None = None,
    data_dir: PathLike | None = None,
    metadata: Settings | None = None,
    backend: Backend = "auto",
    answers: PathLike | None = None,
    allow_code_execution: bool = False,
    code_isolation: Isolation = "bwrap",
    settings: Settings | None = None,
    name: str | None = None,
    out: PathLike | None = None,
) -> pd.DataFrame | ModelComparison:
    """Evaluate a model and return its scores, a row for each task; compare several models.

    A row has the metric that tables show. The interval of ``value`` is from ``low`` to ``high``,
    over the ``n`` items. The frame's ``attrs`` have the run ``folder`` (a text), whose scores.csv
    has all metrics, ``warnings``, ``notes``, and the ``report`` that the command prints. Of several
    models the comparison is returned, as `compare` does. Finished tasks are reused.

    Args:
        models: one or several, each a folder, a hub id, BASE+ADAPTER, or what `merge` returned.
        languages: codes, of the benchmarks, of tasks in `include_path` whose metadata name one, and
            in place of ``{lang}`` in a task's name; none are the paper's.
        benchmarks: names of the paper's benchmarks; none are all five.
        tasks: other tasks by lm-eval's names. Without benchmarks, and without languages where no
            name has ``{lang}``, only these.
        include_path: folder with lm-eval task files of your own, or several.
        limit: items of each task, from the first.
        dtype: of the weights in memory; ``auto`` is that of the checkpoint.
        max_model_len: context in tokens, prompt and answer.
        data_dir: folder with the data of the benchmarks, in place of the hub.
        metadata: arguments that tasks ask for, as lm-eval's ``--metadata``.
        backend: the engine; ``auto`` is vLLM if it is installed, else transformers.
        answers: folder of the answers that runs share.
        allow_code_execution: whether programs that models write (MBPP) are run.
        code_isolation: what holds those programs; "none" also allows tasks that run programs by
            themselves.
        settings: key of a study's ``evaluate`` -> value, as ``--set KEY=VALUE``.
        name: of the only model in tables; None is the last part of its path.
        out: folder for the records of the only model; None is runs/evaluate/MODEL/BACKEND.

    Raises:
        InputError: for a model, task, language or setting that is wrong.
        LayerSwapError: when a task fails; what was finished before it stays.
    """
    from ablations.evaluate import compare_results, evaluate_models
    from ablations.runner.run import RunOptions

    options = RunOptions(
        out=_path(out),
        backend=backend,
        answers=_path(answers),
        isolation=code_isolation if allow_code_execution else None,
        settings=_settings(
            settings,
            limit=limit,
            dtype=dtype,
            max_model_len=max_model_len,
            data_dir=_path(data_dir),
            metadata=metadata,
            tasks=_names(tasks),
            benchmarks=_names(benchmarks),
            include_path=_paths(include_path),
        ),
    )
    names = [os.fspath(model) for model in models]
    results = evaluate_models(names, options, _names(languages), name)
    if len(results) > 1:
        return compare_results(results)
    (result,) = results
    scores = result.shown_scores
    scores.attrs = {  # plain values, as a Parquet file has them as JSON
        "folder": str(result.out.absolute()),
        "warnings": result.warnings,
        "notes": result.notes,
        "report": result.report(),
    }
    return scores


@checked
def run(
    study: StudyLike,
    *,
    experts: PathLike | None = None,
    out: PathLike | None = None,
    executor: Executor = "local",
    address: str = "auto",
    jobs: int | None = None,
    only: Names = (),
    materialize: bool = False,
    limit: int | None = None,
    dtype: Dtype | None = None,
    max_model_len: int | None = None,
    data_dir: PathLike | None = None,
    metadata: Settings | None = None,
    backend: Backend = "auto",
    answers: PathLike | None = None,
    allow_code_execution: bool = False,
    code_isolation: Isolation = "bwrap",
    download: Download | None = None,
    settings: Settings | None = None,
) -> RunTables:
    """Merge and evaluate all models of a study, and return the tables of its run.

    Finished cells are reused. A cell that fails does not stop the others: it is in `failures` of
    the result, and the same call tries it again.

    Args:
        study: a file, a shipped study such as ``layer_count``, or a dict.
        experts: experts file, or a shipped one such as ``pocket``; None is the one of the study.
        out: run folder; None is runs/STUDY, with what is not the study's own in its name.
        executor: ``local`` is this machine, ``ray`` a running Ray cluster.
        address: of the Ray cluster.
        jobs: number of engines at once; None is 1, and on Ray as many as fit.
        only: a condition NAME=VALUE on the cells, such as ``kind=recipe``, or several; none for
            all. A text is one condition, whatever commas it has.
        materialize: whether every merge is written to disk first.
        limit: items of each task, from the first.
        dtype: of the weights in memory; ``auto`` is that of the checkpoint.
        max_model_len: context in tokens, prompt and answer.
        data_dir: folder with the data of the benchmarks, in place of the hub.
        metadata: arguments that tasks ask for, as lm-eval's ``--metadata``.
        backend: the engine; ``auto`` is vLLM if it is installed, else transformers.
        answers: folder of the answers that runs share.
        allow_code_execution: whether programs that models write (MBPP) are run.
        code_isolation: what holds those programs; "none" also allows tasks that run programs by
            themselves.
        download: what is fetched of models of the hub, as in `merge`.
        settings: key of the study -> value, as ``--set KEY=VALUE``.

    Raises:
        InputError: with every problem of the study, or for a folder that is another's.
    """
    from ablations.report.run_tables import RunTables
    from ablations.runner.run import run_study

    options = _run_options(
        experts=experts,
        out=out,
        backend=backend,
        executor=executor,
        address=address,
        jobs=jobs,
        only=(only,) if isinstance(only, str) else tuple(only),
        materialize=materialize,
        answers=answers,
        isolation=code_isolation if allow_code_execution else None,
        download=download,
        settings=_settings(
            settings,
            "evaluate.",
            limit=limit,
            dtype=dtype,
            max_model_len=max_model_len,
            data_dir=_path(data_dir),
            metadata=metadata,
        ),
    )
    result = run_study(_study(study), options)
    return RunTables(result.run)


@checked
def search(
    study: StudyLike,
    *,
    experts: PathLike | None = None,
    out: PathLike | None = None,
    budget: float | None = None,
    executor: Executor = "local",
    address: str = "auto",
    jobs: int | None = None,
    materialize: bool = False,
    limit: int | None = None,
    dtype: Dtype | None = None,
    max_model_len: int | None = None,
    data_dir: PathLike | None = None,
    metadata: Settings | None = None,
    backend: Backend = "auto",
    answers: PathLike | None = None,
    allow_code_execution: bool = False,
    code_isolation: Isolation = "bwrap",
    download: Download | None = None,
    settings: Settings | None = None,
) -> SearchResult:
    """Find the best setting of a study, and report it on items that did not choose it.

    `taken` of the result is what to take: a setting that was shown to be better than the best of
    soup and experts, or else that one. `comparisons` has the held-out comparisons, `rounds` who was
    dropped when; ``print`` it for the answer. Finished work is reused: the same call goes on.

    Args:
        study: a file, a shipped study such as ``search``, or a dict.
        experts: experts file, or a shipped one such as ``pocket``; None is the one of the study.
        out: folder of the search; None is runs/search/STUDY, with what is not the study's own.
        budget: minutes; the last rounds that do not fit are left out. None is no limit.
        executor: ``local`` is this machine, ``ray`` a running Ray cluster.
        address: of the Ray cluster.
        jobs: number of engines at once; None is 1, and on Ray as many as fit.
        materialize: whether every merge is written to disk first.
        limit: items of each task, from the first, which are split.
        dtype: of the weights in memory; ``auto`` is that of the checkpoint.
        max_model_len: context in tokens, prompt and answer.
        data_dir: folder with the data of the benchmarks, in place of the hub.
        metadata: arguments that tasks ask for, as lm-eval's ``--metadata``.
        backend: the engine; ``auto`` is vLLM if it is installed, else transformers.
        answers: folder of the answers that runs share.
        allow_code_execution: whether programs that models write (MBPP) are run.
        code_isolation: what holds those programs; "none" also allows tasks that run programs by
            themselves.
        download: what is fetched of models of the hub, as in `merge`.
        settings: key of the study -> value, as ``--set KEY=VALUE``.

    Raises:
        InputError: with every problem of the study, or for a folder that holds something else.
        LayerSwapError: where a model fails; the same call tries it again.
    """
    from ablations.search.run import run_search

    options = _run_options(
        experts=experts,
        out=out,
        executor=executor,
        address=address,
        jobs=jobs,
        materialize=materialize,
        backend=backend,
        answers=answers,
        isolation=code_isolation if allow_code_execution else None,
        download=download,
        settings=_settings(
            settings,
            "evaluate.",
            limit=limit,
            dtype=dtype,
            max_model_len=max_model_len,
            data_dir=_path(data_dir),
            metadata=metadata,
        ),
    )
    return run_search(_study(study), options, budget)


def _study(study: StudyLike) -> str | Mapping[str, Any]:
    return study if isinstance(study, Mapping) else os.fspath(study)


def _run_options(
    experts: PathLike | None, out: PathLike | None, answers: PathLike | None, **options: Any
) -> RunOptions:
    """Return the options of a run, with the paths as they stand in a command."""
    from ablations.runner.run import RunOptions

    return RunOptions(
        experts=None if experts is None else os.fspath(experts),
        out=_path(out),
        answers=_path(answers),
        **options,
    )


@checked
def load_run(folder: PathLike | pd.DataFrame) -> RunTables:
    """Return a run as an object whose tables are frames: scores, comparisons, observations.

    ``print`` it for question and answer; `report` writes the report.

    Args:
        folder: what `run`, `evaluate` or their commands wrote, finished or not, or a copy of it;
            or the frame that `evaluate` returned.

    Raises:
        InputError: where there is no run, or one that cannot be read.
    """
    from ablations.report.run_tables import load_tables

    return load_tables(Path(_path_text(folder)))


@checked
def power(
    study: StudyLike,
    *,
    items: int | None = None,
    difference: float | None = None,
    base_rate: float | None = None,
    disagreement: float | None = None,
    expert_sd: float | None = None,
) -> PowerTable:
    """Say which differences the planned comparisons of a study would probably show.

    `table` of the result has a row for each of them, `grid` what other numbers of items and experts
    would do. ``print`` it for both in words. Differences are on the scale of the score.

    Args:
        study: a run folder, whose answers say what differences vary by; or a study's file, name or
            dict, of which that is assumed from our results.
        items: of each task, in place of the run's, or of the study's limit.
        difference: in points; `table` then says how many items or experts show it.
        base_rate: score of the models in percent; for a study, in place of what is assumed.
        disagreement: of two models that are as good, in percent of the items; likewise.
        expert_sd: standard deviation between the experts of a role, in points; likewise.

    Raises:
        InputError: for what is neither, a study that does not say how many items a task has, or
            assumptions that cannot be.
    """
    from ablations.power import power_of
    from ablations.runs.records import as_input_errors

    with as_input_errors():
        return power_of(
            _study(study),
            items=items,
            difference=difference,
            base_rate=base_rate,
            disagreement=disagreement,
            expert_sd=expert_sd,
        )


@checked
def compare(
    *models: PathLike | pd.DataFrame, tasks: Names = (), metric: str = ""
) -> ModelComparison:
    """Test two or more evaluated models against each other, on the same items.

    `comparisons` of the result has a row for each pair and task, with difference, interval, p and
    verdict; `scores` one for each model and task. ``print`` it, or show it in a cell, for one line
    a task. Items are paired by the hash of their document.

    Args:
        models: frames that `evaluate` returned, folders that it wrote, RUN:MODEL for a model or
            cell of a study, models that were evaluated here, or outputs of
            ``lm_eval --output_path DIR --log_samples``.
        tasks: those to compare; none compares the tasks that all have, with a warning on others.
        metric: of the tasks; empty takes the first of each that all have.

    Raises:
        InputError: for models that cannot be compared, with what differs.
    """
    from ablations.report.compare_models import compare_models
    from ablations.runs.records import as_input_errors

    names = [_path_text(model) for model in models]
    with as_input_errors():
        return compare_models(names, _names(tasks), metric)


def _path_text(path: PathLike | pd.DataFrame) -> str:
    """Return the text of a path, or the run folder of a frame of `evaluate`."""
    return os.fspath(path) if isinstance(path, str | os.PathLike) else str(path.attrs["folder"])


def _names(names: Names) -> tuple[str, ...]:
    if not isinstance(names, str):
        return tuple(names)
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _path(path: PathLike | None) -> Path | None:
    from layerswap_method.output import output_folder

    return None if path is None else output_folder(os.fspath(path))


def _paths(paths: Paths | None) -> tuple[str, ...]:
    listed = [paths] if isinstance(paths, str | os.PathLike) else paths or ()
    return tuple(str(Path(path).absolute()) for path in listed)


def _settings(settings: Settings | None, block: str = "", **options: Any) -> dict[str, Any]:
    """Return the settings of the options, in `block`, and those that are set by their keys."""
    from ablations.machine.overrides import joined_settings, short_settings

    return joined_settings(short_settings(options, block), settings or {})
