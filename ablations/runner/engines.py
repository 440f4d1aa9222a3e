"""From a task of a cell to scores: streamed into a live engine, or through a checkpoint on disk."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.engines.answers import AnswerFile
from ablations.engines.backends import engine_facts
from ablations.machine.progress import Step, tell
from ablations.models.find import Expert
from ablations.runner.checkpoints import checkpoint_of, measured_of, read_measured
from ablations.runner.stored_answers import answer_file, recalled, store_prompts
from ablations.runner.worker import ModelFailed, Work
from ablations.scoring.records import Evaluation
from ablations.study.documents import unmerged, with_references
from layerswap_method.checkpoint.lora import is_lora
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.recipe.references import named_models

if TYPE_CHECKING:
    from ablations.engines.live import LiveEvaluator
    from ablations.study.planning import StudyPlan
    from layerswap_method.recipe.document import Recipe

logger = logging.getLogger(__name__)

_Ask = Callable[..., Evaluation]
"""Takes a request and a file of ``answers``; asks a model what is not in the file."""


@dataclasses.dataclass(frozen=True)
class EngineSetup:
    """How to evaluate the cells of one study; picklable."""

    plan: StudyPlan

    out: Path
    """The run folder: checkpoints are in it for a while."""

    answers: Path
    """Folder of the answers, which runs share."""

    materialize: bool = False
    """Whether every merge goes through a checkpoint on disk."""

    @property
    def experts(self) -> dict[str, Expert]:
        """Reference, as recipes write it -> expert."""
        return {expert.reference: expert for expert in self.plan.experts.values()}

    def single(self, merge: Mapping[str, Any]) -> Expert | None:
        """Return the expert that a recipe is about as it is; None for a merge."""
        reference = unmerged(merge)
        return None if reference is None else self.experts[reference]

    def check_unchanged(self, merge: Mapping[str, Any]) -> None:
        """Check that the experts of a recipe are as they were when the study was planned.

        Raises:
            LayerSwapError: where one is gone or was changed.
        """
        from ablations.study.identity import folder_state

        for reference in named_models(merge):
            expert = self.experts[reference]
            for folder in filter(None, (expert.folder, expert.adapter)):
                if self.plan.states[str(folder)] != folder_state(folder):
                    raise LayerSwapError(
                        f"expert {expert.name!r} has changed or disappeared since the study began "
                        f"({folder}); run the study again"
                    )

    def __call__(self) -> StudyEngine:
        """Return an engine that has started nothing yet."""
        return StudyEngine(self)


@dataclasses.dataclass(frozen=True)
class _Model:
    """A model in an engine, ready to answer."""

    weights_key: str
    ask: _Ask
    how: Mapping[str, Any]
    """How its weights got there, as provenance."""

    timing_s: dict[str, float]
    """What that took; emptied once a record has it."""

    stack: ExitStack
    """Ends its engine and removes its checkpoint, where they are its alone."""


class StudyEngine:
    """Evaluates the tasks of a study; starts its engine at the first one that needs it.

    The model of a task stays for the next one of the same weights.
    """

    def __init__(self, setup: EngineSetup):
        """Start nothing."""
        self._setup = setup
        self._model: _Model | None = None
        self._live: LiveEvaluator | None = None
        self._streamed: dict[str, AnswerFile] = {}
        """Record key -> answers that the live engine gave since it was last known to be right."""
        self._suspect = dict[str, str]()

    def check(self) -> Mapping[str, str]:
        """Check the live engine; return record key -> why it is not to be trusted."""
        from ablations.engines.in_place import SwapFailed

        streamed, self._streamed = self._streamed, {}
        if self._live is not None and streamed:
            try:
                self._live.check()
            except SwapFailed as error:
                reason = f"{error.message}; run it again with --materialize"
                self._suspect |= dict.fromkeys(streamed, reason)
                for answers in streamed.values():
                    answers.withdraw()
        return self._suspect

    def evaluate(self, work: Work) -> tuple[Evaluation, dict[str, float], dict[str, Any]]:
        """Return the scores of a task with its samples, seconds by step, and provenance.

        Raises:
            ModelFailed: where experts have changed, or a merge fails.
            LayerSwapError: where the evaluation fails.
        """
        setup, merge = self._setup, work.cell.merge
        try:
            setup.check_unchanged(merge)
            answers = answer_file(setup, work)
            if (evaluation := recalled(setup, work, answers)) is not None:
                how = {"weights": "not loaded: every answer was stored"}
                return self._done(work, answers, evaluation, how, {})
            model = self._opened(work)
        except LayerSwapError as error:
            self._close_model()
            raise ModelFailed(error.message) from error
        if str(model.how["weights"]).endswith("streamed"):
            self._streamed[work.key] = answers
        try:
            evaluation = model.ask(work.request, answers=answers)
        except BaseException:
            self._close_model()
            raise
        setup.check_unchanged(merge)
        facts = {**model.how, **engine_facts(setup.plan.backend)}
        done = self._done(work, answers, evaluation, facts, model.timing_s)
        model.timing_s.clear()
        return done

    def _done(
        self,
        work: Work,
        answers: AnswerFile,
        evaluation: Evaluation,
        how: Mapping[str, Any],
        timing_s: Mapping[str, float],
    ) -> tuple[Evaluation, dict[str, float], dict[str, Any]]:
        """Return what was done, without places of this machine."""
        setup = self._setup
        prompts = store_prompts(setup.answers, work.task, evaluation.samples)
        names = {reference: expert.name for reference, expert in setup.experts.items()}
        texts = [os.path.relpath(path, setup.out) for path in (answers.path, prompts)]
        provenance = {**with_references(how, names), "texts": texts}
        return evaluation, {**timing_s, "evaluate": evaluation.elapsed_s}, provenance

    def close(self) -> None:
        """End every engine, unchecked: nobody would hear of it any more."""
        tell(Step("ending the engine"))
        self._close_model()
        if self._live is not None:
            self._live.close()

    def _close_live(self) -> None:
        if self._live is not None:
            self.check()
            self._live.close()

    def _close_model(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            model.stack.close()

    def _opened(self, work: Work) -> _Model:
        weights_key = work.cell.weights_key
        if self._model is None or self._model.weights_key != weights_key:
            self._close_model()
            with ExitStack() as stack:
                ask, how, timing_s = self._open(work, stack)
                self._model = _Model(weights_key, ask, how, timing_s, stack.pop_all())
        return self._model

    def _open(self, work: Work, stack: ExitStack) -> tuple[_Ask, dict[str, Any], dict[str, float]]:
        from ablations.engines.in_place import SwapFailed
        from layerswap_method.methods.read import recipe_by_files

        setup, merge, seed = self._setup, work.cell.merge, work.request.seed
        single = setup.single(merge)
        if single is not None and single.adapter is not None and not is_lora(single.adapter):
            self._close_live()
            how = {"weights": "of the base, with an adapter next to them"}
            ask, start_s = self._cold(single.folder, seed, stack, single.adapter)
            return ask, how, {"start": start_s}
        recipe, folder, merge_s, why = recipe_by_files(merge), None, 0.0, dict[str, Any]()
        if recipe is None or setup.materialize:
            folder, merge_s = stack.enter_context(checkpoint_of(setup, work))
        if not setup.materialize:
            try:
                ask, how, timing_s = self._swapped(recipe, folder)
                return ask, how, {"merge": merge_s, **timing_s}
            except SwapFailed as error:  # two models need not fit into memory
                logger.warning(
                    "  %s: cannot use the live engine: %s", work.cell.label, error.message
                )
                self._close_live()
                why = {"fallback": error.message}
        if folder is None:
            folder, merge_s = stack.enter_context(checkpoint_of(setup, work))
        ask, start_s = self._cold(folder, seed, stack)
        how = {"weights": "checkpoint", **why, **read_measured(folder)}
        return ask, how, {"merge": merge_s, "start": start_s}

    def _swapped(
        self, recipe: Recipe | None, folder: Path | None
    ) -> tuple[_Ask, dict[str, Any], dict[str, float]]:
        """Put a model into the live engine: of a recipe, or what mergekit has merged in `folder`.

        Raises:
            SwapFailed: when its weights cannot be put there.
        """
        from ablations.engines.in_place import SwapFailed
        from ablations.engines.live import open_live
        from layerswap_method.methods.read import merge_of_one
        from layerswap_method.recipe.references import Model

        plan = self._setup.plan
        if recipe is not None:
            tell(Step("planning the merge"))
            try:
                stream = recipe.merge(self._setup.experts)
            except InputError as error:  # some kinds of adapters
                raise SwapFailed(error.message) from error
            how = {"weights": "streamed", **measured_of(stream.record)}
        else:
            assert folder is not None
            stream = merge_of_one(Model(str(folder), folder))
            how = {"weights": "merged by mergekit-yaml, then streamed", **read_measured(folder)}
        if self._live is None:
            tell(Step(f"loading the libraries of {plan.backend}"))
            self._live = open_live(plan.base.folder, plan.backend, plan.options)
        timing_s = self._live.swap(stream)
        return functools.partial(self._live.evaluate, stream), how, timing_s

    def _cold(
        self, folder: Path, seed: int, stack: ExitStack, adapter: Path | None = None
    ) -> tuple[_Ask, float]:
        """Start a fresh engine on a checkpoint, with an adapter that changes none of its weights.

        Returns what asks it, and the seconds that took.
        """
        from ablations.engines.backends import resolve_backend
        from ablations.engines.lm_eval_backend import loaded, run_tasks
        from ablations.train.fusion import is_fusion
        from ablations.train.model import with_adapter

        started = time.monotonic()
        backend = resolve_backend(self._setup.plan.backend, beside=adapter)
        by_peft = None if adapter is None or is_fusion(adapter) else adapter
        options = self._setup.plan.options
        engine = stack.enter_context(loaded(folder, backend, options, seed, by_peft))
        if adapter is not None and by_peft is None:  # peft cannot load a fusion
            with_adapter(engine.model, adapter)
        name = str(adapter or folder)
        ask = functools.partial(run_tasks, engine, model=name, backend=backend, folder=folder)
        return ask, time.monotonic() - started
