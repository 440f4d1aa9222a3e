"""From a task of a cell to scores, and where the answers are that they are computed from.

A model is streamed into a live engine, or goes through a checkpoint on disk.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ablations.engines.answers import AnswerFile
from ablations.engines.backends import backend_versions, engine_facts
from ablations.engines.questions import hash_settings
from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.progress import Step, show_step
from ablations.machine.whole_files import DiskFull, write_text
from ablations.models.find import Expert
from ablations.models.fit import context_of
from ablations.runner.work import ModelFailed, Work
from ablations.scoring.evaluation import Evaluation, Sample
from ablations.study.documents import with_references
from ablations.study.made_by import headers_tell
from ablations.train.side_adapters import backend_beside, is_side_adapter, with_adapter
from layerswap_method.errors import LayerSwapError
from layerswap_method.methods.table import METHODS, Method

if TYPE_CHECKING:
    from ablations.engines.live import LiveEvaluator
    from ablations.study.cells import PlannedCell
    from ablations.study.planning import StudyPlan
    from layerswap_method.tensors import Merge

logger = logging.getLogger(__name__)

_TAIL_LINES = 15

NOT_LOADED = "not loaded: every answer was stored"
"""Provenance of the weights of a model that was not asked."""

_Ask = Callable[..., Evaluation]
"""Takes `ResolvedTasks` and an open `AnswerFile`; asks a model what is not in the file."""


class _Ready(NamedTuple):
    """A model that can be asked.

    In a live engine it was loaded once, so that it can be; the check after each task puts the base
    back, and `LiveEvaluator.evaluate` loads the model again.
    """

    weights_key: str
    ask: _Ask
    provenance: Mapping[str, Any]
    """The way of its weights into the engine."""

    is_live: bool
    """Whether it is in the live engine."""


class SharedEngine:
    """The live engine of several run folders, one after the other in this process."""

    def __init__(self) -> None:
        """Start nothing."""
        self._live: LiveEvaluator | None = None

    def fitting(self, model: Merge, plan: StudyPlan) -> LiveEvaluator | None:
        """Return the engine if a model of this plan can be loaded into it, else end it."""
        live = self._live
        if live is not None and not live.fits(model, plan.backend, plan.options):
            self.close()
        return self._live

    def hold(self, live: LiveEvaluator) -> None:
        """Have `live` as the engine for the models that follow; there is none before."""
        self._live = live

    def stop(self) -> None:
        """End the engine; a later model that fits starts it again."""
        if self._live is not None:
            self._live.close()

    def close(self) -> None:
        """End the engine and forget it."""
        self.stop()
        self._live = None


class StudyEngine:
    """Evaluates the tasks of a study; starts its engine at the first one that needs it.

    A loaded model stays for the next task of the same weights.
    """

    def __init__(
        self,
        plan: StudyPlan,
        out: Path,
        answers_folder: Path,
        *,
        materialize: bool = False,
        shared: SharedEngine | None = None,
    ):
        """Start nothing.

        Args:
            plan: of the study.
            out: the run folder.
            answers_folder: the folder of stored answers that runs share.
            materialize: see `RunOptions`.
            shared: see `RunOptions`.
        """
        self.plan, self.out, self.answers_folder = plan, out, answers_folder
        self._materialize = materialize
        self.models_by_reference = {expert.reference: expert for expert in plan.experts.values()}
        self._contexts: dict[Path, int | None] = {}
        """Folder of a config -> `context_of` it."""
        self._merge: tuple[str, Merge] | None = None
        """Weights key and merge of the last model that `_merge_of` has merged itself."""
        self._ready: _Ready | None = None
        """The model of the last task; `_stack` ends what is its alone."""
        self._stack = ExitStack()
        self._live: LiveEvaluator | None = None
        self._shared = shared

    def single(self, cell: PlannedCell) -> Expert | None:
        """Return the expert that a cell evaluates as it is; None for a merge."""
        reference = cell.recipe.unmerged
        return None if reference is None else self.models_by_reference[reference]

    def answer_file(self, work: Work, *, is_checked: bool = True) -> AnswerFile:
        """Return the file of a model's answers to a task; equal weights have one, in all runs."""
        plan, folder = self.plan, work.cell.donor or self.plan.base.folder
        if folder not in self._contexts:
            self._contexts[folder] = context_of(str(folder))
        settings: dict[str, Any] = {
            "backend": plan.backend,
            "options": plan.options.of_backend(plan.backend).identity(),
            "context": plan.options.max_model_len or self._contexts[folder],
            "versions": backend_versions(plan.backend),
        }
        if plan.backend == "hf":
            settings["likelihoods"] = "float32"  # answers from before were in the model's dtype
        name = work.task.replace("/", "_")
        path = self.answers_folder / work.cell.weights_key / f"{name}.jsonl"
        settings_hash = hash_settings(work.resolved.request, settings)
        return AnswerFile(path, settings_hash, is_checked=is_checked)

    def evaluate(self, work: Work) -> tuple[Evaluation, dict[str, Any]]:
        """Return the scores of a task with its samples, and their provenance.

        A live engine is checked after it; until then its answers are not those of the model.

        Raises:
            DiskFull: where answers cannot be stored for want of room.
            ModelFailed: where experts have changed, or a merge fails.
            LayerSwapError: where the evaluation fails, or the check after it.
        """
        with self._of_the_model():
            self._check_unchanged(work)
        answer_file = self.answer_file(work)
        if (evaluation := self._rescore(work, answer_file)) is not None:
            weights = {"weights": NOT_LOADED}
            return evaluation, self._provenance(work, answer_file, evaluation, weights)
        if (ready := self._ready) is None or ready.weights_key != work.cell.weights_key:
            self._close_model()
            with self._of_the_model():
                ready = self._ready = self._open(work)
                self._check_unchanged(work)  # before answers of other weights are stored
        try:
            with self.answer_file(work, is_checked=not ready.is_live) as answer_file:
                evaluation = ready.ask(work.resolved, answer_file=answer_file)
                if ready.is_live:
                    self._check_unchanged(work)  # before its answers are stored
                    self._check_live(answer_file)
        except BaseException:
            self._close_model()
            raise
        self._check_unchanged(work)
        return evaluation, self._provenance(work, answer_file, evaluation, ready.provenance)

    @contextmanager
    def _of_the_model(self) -> Iterator[None]:
        """Raise what is wrong with the model as `ModelFailed`: none of its tasks can be asked."""
        try:
            yield
        except DiskFull:
            raise
        except LayerSwapError as error:
            self._close_model()
            raise ModelFailed(error.message) from error

    def _check_live(self, answer_file: AnswerFile) -> None:
        """Check the engine that gave the new answers of a file, which are stored if it is right.

        Raises:
            LayerSwapError: where it is not.
        """
        from ablations.engines.live import SwapFailed

        assert self._live is not None
        try:
            self._live.check()
        except SwapFailed as error:
            answer_file.withdraw()
            raise LayerSwapError(f"{error.message}; run it again with --materialize") from error
        answer_file.confirm()

    def _rescore(self, work: Work, answer_file: AnswerFile) -> Evaluation | None:
        """Return the scores of a task whose answers are all stored, else None."""
        from ablations.engines.lm_eval_backend import rescore

        cell = work.cell
        # Of other merges only the merge itself tells what their records must say.
        is_known = self.single(cell) is not None or headers_tell(cell.recipe, cell.made_by)
        if not is_known or cell.donor is None or not answer_file.path.is_file():
            return None
        with answer_file:
            return rescore(work.resolved, cell.donor, self.plan.backend, answer_file)

    def _merge_of(self, cell: PlannedCell) -> Merge:
        """Return the merge of a cell that is made from files: that of the plan, if it has one.

        One that measures changes reads all weights; the last is kept, as tasks of one model follow
        it.
        """
        from layerswap_method.methods.table import merge_models

        planned = self.plan.merges.get(cell.weights_key)
        if planned is not None and not cell.recipe.needs_deltas:
            return planned
        if self._merge is None or self._merge[0] != cell.weights_key:
            self._merge = cell.weights_key, merge_models(cell.recipe, self.models_by_reference)
        return self._merge[1]

    def _provenance(
        self,
        work: Work,
        answer_file: AnswerFile,
        evaluation: Evaluation,
        weights: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return how an evaluation came about, without places of this machine."""
        prompts = store_prompts(self.answers_folder, work.task, evaluation.samples)
        out = self.out.resolve()  # a reader follows a link of the folder before `..`
        texts = [os.path.relpath(path.resolve(), out) for path in (answer_file.path, prompts)]
        names = {place: expert.name for place, expert in self.models_by_reference.items()}
        return {**with_references(weights, names), "texts": texts}

    def _check_unchanged(self, work: Work) -> None:
        """Check that the experts of a cell are as they were when the study was planned."""
        from ablations.study.identity import folder_state

        for reference in work.cell.recipe.references:
            expert = self.models_by_reference[reference]
            for folder in expert.folders:
                if self.plan.states[str(folder)] != folder_state(folder):
                    raise LayerSwapError(
                        f"expert {expert.name!r} has changed or disappeared since the study began "
                        f"({folder}); run the study again"
                    )

    def close(self) -> None:
        """End every engine."""
        show_step(Step("ending the engine"))
        self._close_model()
        if self._shared is None:
            self._close_live()

    def _close_live(self) -> None:
        """End the live engine, also of an earlier study; a later model may start it again."""
        if self._live is not None:
            self._live.close()
        if self._shared is not None:
            self._shared.stop()

    def _close_model(self) -> None:
        self._ready = None
        self._stack.close()

    def _open(self, work: Work) -> _Ready:
        from ablations.engines.live import SwapFailed

        cell, key = work.cell, work.cell.weights_key
        single = self.single(cell)
        if single is not None and is_side_adapter(single.adapter):
            self._close_live()
            ask = self._cold(single.folder, single.adapter)
            provenance = {"weights": "of the base, with an adapter next to them"}
            return _Ready(key, ask, provenance, is_live=False)
        folder, fallback = None, dict[str, Any]()
        if cell.made_by != "files" or self._materialize:
            folder = self._stack.enter_context(checkpoint_of(self, work))
        if cell.made_by == "engine":
            self._close_live()  # two models need not fit into memory
        elif not self._materialize:
            try:
                ask, weights = self._swapped(cell, folder)
                weights |= engine_facts(self.plan.backend)
                return _Ready(key, ask, weights, is_live=True)
            except SwapFailed as error:
                fallback = {"fallback": error.message}
                logger.warning("  %s: cannot use the live engine: %s", cell.label, error.message)
                self._close_live()
        if folder is None:
            folder = self._stack.enter_context(checkpoint_of(self, work))
        ask = self._cold(folder)
        weights = {"weights": "checkpoint", **fallback, **read_measured(folder)}
        return _Ready(key, ask, weights | engine_facts(self.plan.backend), is_live=False)

    def _swapped(self, cell: PlannedCell, folder: Path | None) -> tuple[_Ask, dict[str, Any]]:
        """Put a cell's model into the live engine; what mergekit has merged of it is in `folder`.

        Raises:
            SwapFailed: when its weights cannot be put there.
        """
        from ablations.engines.live import LiveEvaluator
        from layerswap_method.methods.passthrough import merge_of_one
        from layerswap_method.recipe.references import Model

        plan = self.plan
        if cell.made_by == "files":
            show_step(Step("preparing the merge"))
            stream = self._merge_of(cell)
            measured = measured_of(METHODS[cell.recipe.merge_method], stream.record)
            weights = {"weights": "streamed", **measured}
        else:
            assert folder is not None
            stream = merge_of_one(Model(str(folder), folder))
            weights = {"weights": "merged by mergekit-yaml, then streamed", **read_measured(folder)}
        if self._live is None and self._shared is not None:
            self._live = self._shared.fitting(stream, plan)
        if self._live is None:
            show_step(Step(f"loading the libraries of {plan.backend}"))
            self._live = LiveEvaluator(self._start_folder(), plan.backend, plan.options)
            if self._shared is not None:
                self._shared.hold(self._live)
        self._live.swap(stream)  # if it cannot be loaded there is a checkpoint, now and not later
        return functools.partial(self._live.evaluate, stream), weights

    def _start_folder(self) -> Path:
        """Return the model that the live engine starts on: the base, or one that is evaluated."""
        from layerswap_method.checkpoint.checkpoint import read_checkpoint
        from layerswap_method.hub.partial import is_partial

        singles = filter(None, map(self.single, self.plan.cells))
        folders = [self.plan.base.folder, *(single.folder for single in singles)]

        def is_whole(folder: Path) -> bool:
            stored = read_checkpoint(str(folder), folder).tensors.values()
            return not any(is_partial(tensor.file) for tensor in stored)

        return next(filter(is_whole, folders), folders[0])

    def _cold(self, folder: Path, adapter: Path | None = None) -> _Ask:
        """Start a fresh engine on a checkpoint, with an adapter next to its weights."""
        from ablations.engines.lm_eval_backend import run_tasks, start_model

        backend = self.plan.backend
        if adapter is not None:
            backend = backend_beside(backend, adapter)
        engine = start_model(folder, backend, self.plan.options)
        self._stack.callback(engine.close)
        if adapter is not None:
            from ablations.engines.hf_model import HfModel

            assert isinstance(engine, HfModel), "`backend_beside` has said so"
            engine.replace_network(with_adapter(engine.model, adapter))
        return functools.partial(run_tasks, engine, folder=folder, backend=backend)


def store_prompts(folder: Path, task: str, samples: Sequence[Sample]) -> Path:
    """Write the prompts and targets of a task into the folder of answers, once for all models."""
    first = {sample.doc_id: sample for sample in reversed(samples)}
    rows = []
    for item, sample in sorted(first.items()):
        row = {"item": item, "prompts": sample.prompts, "target": sample.target}
        rows.append({**row, "choices": sample.choices} if sample.choices else row)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    name = f"{task.replace('/', '_')}-{fingerprint_of(text=text)[:12]}.jsonl"
    path = folder / "prompts" / name
    with contextlib.suppress(OSError):  # a full disk: a warning says so of the answers
        if not path.is_file():
            write_text(path, text)
    return path


@contextmanager
def checkpoint_of(engine: StudyEngine, work: Work) -> Iterator[Path]:
    """Yield the folder of the work's checkpoint; what was merged vanishes after."""
    single = engine.single(work.cell)
    if single is not None and single.adapter is None:
        yield single.folder
        return
    from layerswap_method.merge import WriteOptions, write_merge
    from layerswap_method.methods.passthrough import merge_of_one

    show_step(Step("merging to disk"))
    place = engine.out / ".work" / work.cell.weights_key
    shutil.rmtree(place, ignore_errors=True)  # of a worker that was killed
    try:
        out, document = place / "model", work.cell.recipe.document
        text = yaml.safe_dump(document, sort_keys=False)
        write_text(place / "recipe.yml", text)
        if single is not None and work.cell.made_by == "files":
            # mergekit does not know the names of tensors in all files.
            out.mkdir()
            write_merge(merge_of_one(single), out, WriteOptions())
        else:
            run_mergekit(place / "recipe.yml", out, log=place.with_suffix(".log"))
        yield out
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run_mergekit(recipe: Path, folder: Path, *, log: Path) -> None:
    """Merge a recipe into `folder`.

    mergekit keeps the adapters that it has merged into their bases next to `folder`, and takes them
    again even where the adapter has changed since.

    Raises:
        LayerSwapError: when it fails, with the end of its output; all of it is in `log` then.
    """
    from layerswap_method.mergekit_plugin.run import mergekit_yaml

    adapters = ["--lora-merge-cache", str(folder.with_name("adapters"))]
    done = subprocess.run(
        [*mergekit_yaml(), str(recipe), str(folder), *adapters],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        write_text(log, done.stdout)
        tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
        raise LayerSwapError(
            f"mergekit-yaml failed with exit code {done.returncode}; all of its output is in {log}."
            f" It ended with:\n{tail}"
        )


def read_measured(merged: Path) -> dict[str, Any]:
    """Return what a merge of ours measured of the experts' changes, as provenance."""
    for method in METHODS.values():
        if method.plan_file is not None and (file := merged / method.plan_file).is_file():
            return measured_of(method, json.loads(file.read_text(encoding="utf-8")))
    return {}


def measured_of(method: Method, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the plan file of a merge says of the experts' changes, as provenance."""
    measured = method.measured and method.measured(record)
    return {} if measured is None else {"measured": measured}
