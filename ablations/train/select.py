"""The choice of the checkpoints of a run that stay: the best on some tasks (section 3.1)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from ablations.engines.backends import resolve_backend
from ablations.engines.live import LiveEvaluator, SwapFailed
from ablations.engines.lm_eval_backend import run_tasks, start_model
from ablations.engines.options import EngineOptions
from ablations.engines.task_loading import check_data
from ablations.machine.progress import Step, show_step
from ablations.requests.resolve import ResolvedTasks, resolve
from ablations.sandbox import Isolation
from ablations.scoring.evaluation import Evaluation, EvaluationRequest, TaskScore
from ablations.train.config import Select
from ablations.train.folder import step_of
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.merge import WriteOptions, write_merge
from layerswap_method.methods.passthrough import merge_of_one
from layerswap_method.recipe.references import Model

logger = logging.getLogger(__name__)


def selection_tasks(
    select: Select, isolation: Isolation | None, file: str, *, chat: bool
) -> ResolvedTasks:
    """Return what every checkpoint is evaluated on; check all that can be before training.

    `file` has the choice, for messages. `isolation` is the sandbox of programs that models write;
    None leaves such tasks out.

    Raises:
        InputError: for unknown tasks, groups, only skipped tasks, or a missing engine.
    """
    names = chain(*_names((*select.tasks, *select.secondary)))
    request = EvaluationRequest(
        tasks=tuple(dict.fromkeys(names)),
        include_path=select.include_path,
        data_dir=None if select.data_dir is None else Path(select.data_dir),
        limit=select.limit,
        apply_chat_template=chat,
        isolation=isolation,
    )
    resolve_backend(select.backend)
    try:
        resolved = resolve(request)
    except InputError as error:
        raise InputError(f"{file}: select: {error.message}") from error
    groups = [name for name in request.tasks if name not in (*resolved.chosen, *resolved.skipped)]
    if groups:
        raise InputError(
            f"{file}: select: {', '.join(groups)}: a group; list its tasks, of "
            f"{', '.join(resolved.chosen)}"
        )
    for block in (select.tasks, select.secondary):
        if block and not {*chain(*_names(block))} & {*resolved.chosen}:
            reasons = "; ".join(resolved.skipped.values())
            raise InputError(f"{file}: select: all tasks are skipped: {reasons}")
    return resolved


def check_selection_data(tasks: ResolvedTasks, file: str) -> None:
    """Load the data of `selection_tasks` once, so that an error comes before training.

    Raises:
        InputError: where the user can mend a problem.
        LayerSwapError: where a hub cannot be reached.
    """
    try:
        check_data([tasks])
    except LayerSwapError as error:
        raise type(error)(f"{file}: select: {error.message}") from error


def select_checkpoint(
    checkpoints: Sequence[Path],
    select: Select,
    tasks: ResolvedTasks,
    base: Path,
    *,
    are_adapters: bool,
) -> tuple[Path, list[dict[str, Any]]]:
    """Evaluate every checkpoint in one live engine; return the best, and all scores, best first.

    Checkpoints that are above the base on the secondary tasks come first, then the score on the
    primary ones counts; of equal ones the earlier is better. Nothing is removed.

    All run in the dtype of the base, as the expert does in a study. One that the live engine does
    not take, or after which the base does not come back, is evaluated from disk.

    Raises:
        LayerSwapError: where the evaluation fails.
    """
    options = EngineOptions(batch_size=select.batch_size)
    options = options.with_stored_dtype(read_checkpoint(str(base), base).dtype)
    engine = LiveEvaluator(base, select.backend, options)

    def evaluate(name: str, folder: Path, adapter: Path | None = None) -> Evaluation:
        model = Model(name, folder, adapter)
        try:
            evaluation = engine.evaluate(merge_of_one(model), tasks)
            engine.check()
            return evaluation
        except SwapFailed as error:
            logger.warning("%s: cannot use the live engine: %s", name, error.message)
        engine.close()  # two models need not fit into memory
        with (
            _on_disk(model) as whole,
            closing(start_model(whole, engine.backend, options)) as cold,
        ):
            return run_tasks(cold, tasks, whole, engine.backend)

    rows: list[dict[str, Any]] = []
    try:
        base_score: float | None = None
        if select.secondary:
            base_score = _mean(evaluate(str(base), base), select.secondary)
        for done, checkpoint in enumerate(checkpoints):
            position = f"checkpoint {done + 1} of {len(checkpoints)}"
            show_step(Step(position, done, len(checkpoints), unit="checkpoints", scope="command"))
            if are_adapters:
                evaluation = evaluate(checkpoint.name, base, checkpoint)
            else:
                evaluation = evaluate(checkpoint.name, checkpoint)
            row: dict[str, Any] = {
                "step": step_of(checkpoint),
                "score": _mean(evaluation, select.tasks),
            }
            if base_score is not None:
                row["secondary"] = _mean(evaluation, select.secondary)
                row["secondary_of_base"] = base_score
            row["tasks"] = [
                score.model_dump(mode="json", exclude_defaults=True)
                for score in _shown_scores(evaluation)
            ]
            rows.append(row)
            logger.info("checkpoint of step %d: %.4f", row["step"], row["score"])
    finally:
        engine.close()

    def rank(row: dict[str, Any]) -> tuple[bool, float, int]:
        is_below = base_score is not None and row["secondary"] <= base_score
        return is_below, -row["score"], row["step"]

    rows.sort(key=rank)
    for number, row in enumerate(rows):
        row["kept"] = number < select.keep
    by_step = {step_of(checkpoint): checkpoint for checkpoint in checkpoints}
    return by_step[rows[0]["step"]], rows


@contextmanager
def _on_disk(model: Model) -> Iterator[Path]:
    """Yield the folder of a whole model; a base with an adapter is merged, and vanishes after."""
    if model.adapter is None:
        yield model.folder
        return
    show_step(Step("merging to disk"))
    place = model.adapter.with_name(".merged.partial")
    shutil.rmtree(place, ignore_errors=True)  # of a run that was killed
    try:
        place.mkdir()
        write_merge(merge_of_one(model), place, WriteOptions())
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _shown_scores(evaluation: Evaluation) -> list[TaskScore]:
    """Return the score of each task that tables show."""
    tasks = dict.fromkeys(score.task for score in evaluation.scores)
    return [evaluation.shown_score(task) for task in tasks]


def _names(tasks: Sequence[str | tuple[str, ...]]) -> list[Sequence[str]]:
    return [(entry,) if isinstance(entry, str) else entry for entry in tasks]


def _mean(evaluation: Evaluation, tasks: Sequence[str | tuple[str, ...]]) -> float:
    """Return the mean over tasks that were not skipped; scores that should be low are negated."""
    values = {
        score.task: score.value if score.higher_is_better else -score.value
        for score in _shown_scores(evaluation)
    }
    means = []
    for names in _names(tasks):
        entry_values = [values[name] for name in names if name in values]
        if entry_values:
            means.append(fmean(entry_values))
    return fmean(means)
