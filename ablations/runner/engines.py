"""From a work item to scores: streamed into a live engine, or through a checkpoint on disk."""

from __future__ import annotations

import contextlib
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
from ablations.engines.options import EngineOptions
from ablations.machine.mergekit_program import measured_of, read_measured
from ablations.machine.progress import Step, tell
from ablations.models.find import Expert, here
from ablations.runner.checkpoints import checkpoint_of
from ablations.runner.stored_answers import answer_file, recalled, store_prompts
from ablations.runner.work import Done, ModelFailed, Work
from ablations.scoring.records import Backend, Evaluation
from ablations.study.documents import unmerged, with_references
from layerswap_method.checkpoint.lora import is_lora
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.recipe.references import named_models

if TYPE_CHECKING:
    from ablations.engines.in_place import SwapFailed
    from ablations.engines.live import LiveEvaluator
    from ablations.study.planning import StudyPlan
    from layerswap_method.recipe.document import Merge, Recipe

logger = logging.getLogger(__name__)

_Ask = Callable[..., Evaluation]
"""Takes a request and a file of ``answers``; asks a model what is not in the file."""

_Opened = tuple[_Ask, Mapping[str, Any], dict[str, float]]
"""What asks a model, how it got into its engine, and the seconds that took."""


@dataclasses.dataclass(frozen=True)
class EngineSetup:
    """How to evaluate the cells of one study; picklable."""

    backend: Backend
    """The engine."""

    options: EngineOptions
    """How it runs."""

    base: Expert
    """On whose folder a live engine starts."""

    experts: Mapping[str, Expert]
    """Reference, as recipes write it -> expert."""

    states: Mapping[str, str]
    """Folder -> `folder_state` when the study was planned: what is evaluated must be that."""

    out: Path
    """The run folder: checkpoints are in it for a while."""

    answers: Path
    """Folder of the answers, which runs share."""

    materialize: bool = False
    """Whether every merge goes through a checkpoint on disk."""

    @classmethod
    def of(cls, plan: StudyPlan, out: Path, *, materialize: bool, answers: Path) -> EngineSetup:
        """Return the setup of a planned study; the other arguments are the fields'."""
        return cls(
            backend=plan.backend,
            options=plan.options,
            base=plan.base,
            experts={expert.reference: expert for expert in plan.experts.values()},
            states=plan.states,
            out=out,
            answers=answers,
            materialize=materialize,
        )

    @property
    def work(self) -> Path:
        """Folder for checkpoints that are needed for a while."""
        return self.out / ".work"

    def single(self, merge: Mapping[str, Any]) -> Expert | None:
        """Return the expert that a recipe is about as it is; None for a merge."""
        reference = unmerged(merge)
        return None if reference is None else self.experts[reference]

    def used(self, merge: Mapping[str, Any]) -> list[Expert]:
        """Return the experts that a recipe names."""
        named = set(named_models(merge))
        return [expert for reference, expert in self.experts.items() if reference in named]

    def on_this_machine(self) -> EngineSetup:
        """Return the setup with the experts where they are here: the plan may be another machine's.

        Raises:
            InputError: where the base is neither here nor on the hub.
        """
        experts = dict(self.experts)
        for reference, expert in experts.items():
            with contextlib.suppress(InputError):  # of one that is not here the cells fail
                experts[reference] = here(expert)
        return dataclasses.replace(self, base=here(self.base), experts=experts)

    def check_unchanged(self, merge: Mapping[str, Any]) -> None:
        """Check that the experts of a recipe are there, and as they were when it was planned.

        Raises:
            LayerSwapError: where one is gone or was changed.
        """
        from ablations.study.identity import folder_state

        for expert in self.used(merge):
            for folder in filter(None, (expert.folder, expert.adapter)):
                if not any(any(folder.glob(kind)) for kind in ("*.safetensors", "*.bin")):
                    raise LayerSwapError(
                        f"expert {expert.name!r} has disappeared: no weights in {folder} any more; "
                        "put it back and run the study again"
                    )
                if self.states.get(str(folder)) not in (None, folder_state(folder)):
                    raise LayerSwapError(
                        f"expert {expert.name!r} has changed since the study began ({folder}); "
                        "run the study again"
                    )

    def __call__(self) -> StudyEngine:
        """Return an evaluator that has started nothing yet."""
        return StudyEngine(self)


@dataclasses.dataclass(frozen=True)
class _Model:
    """A model in an engine, ready to answer."""

    weights_key: str
    ask: _Ask
    how: Mapping[str, Any]
    """How its weights got there, as provenance."""

    timing_s: dict[str, float]
    """What that took; emptied once it has been said."""

    held: ExitStack
    """Ends its engine and removes its checkpoint, where they are its alone."""


class StudyEngine:
    """Evaluates the work items of a study; starts its engine at the first one that needs it.

    The model of an item stays for the next one of the same weights.
    """

    def __init__(self, setup: EngineSetup):
        """Start nothing."""
        self._setup = setup
        self._is_here = False
        self._model: _Model | None = None
        self._live: LiveEvaluator | None = None
        self._streamed: dict[str, AnswerFile] = {}
        """Score key -> answers that the live engine gave since it was last known to be right."""
        self._wrong = dict[str, str]()

    def check(self) -> Mapping[str, str]:
        """Check the live engine; return score key of a suspect record -> why."""
        from ablations.engines.in_place import SwapFailed

        streamed, self._streamed = self._streamed, {}
        if self._live is not None and streamed:
            try:
                self._live.check()
            except SwapFailed as error:
                reason = f"{error.message}; run it again with --materialize"
                self._wrong |= dict.fromkeys(streamed, reason)
                for answers in streamed.values():
                    answers.withdraw()
        return self._wrong

    def evaluate(self, work: Work) -> Done:
        """Return the scores of a work item.

        Raises:
            ModelFailed: where experts have changed, or a merge fails.
            LayerSwapError: where the evaluation fails.
        """
        try:
            if not self._is_here:
                self._setup, self._is_here = self._setup.on_this_machine(), True
            self._setup.check_unchanged(work.merge)
            answers = answer_file(self._setup, work)
            if (evaluation := recalled(self._setup, work, answers)) is not None:
                stored = {"weights": "not loaded: every answer was stored"}
                return self._done(work, answers, evaluation, stored, {})
            model = self._opened(work)
        except LayerSwapError as error:
            self._close_model()
            raise ModelFailed(error.message) from error
        if str(model.how["weights"]).endswith("streamed"):
            self._streamed[work.score_key] = answers
        try:
            evaluation = model.ask(work.request, answers=answers)
        except BaseException:
            self._close_model()
            raise
        self._setup.check_unchanged(work.merge)
        how: dict[str, Any] = {**model.how, **engine_facts(self._setup.backend)}
        done = self._done(work, answers, evaluation, how, model.timing_s)
        model.timing_s.clear()
        return done

    def _done(
        self,
        work: Work,
        answers: AnswerFile,
        evaluation: Evaluation,
        how: Mapping[str, Any],
        timing_s: Mapping[str, float],
    ) -> Done:
        """Return what was done, without places of this machine."""
        setup = self._setup
        prompts = store_prompts(setup.answers, work.task, evaluation.samples)
        names = {reference: expert.name for reference, expert in setup.experts.items()}
        provenance = {
            **with_references(how, names),
            "texts": [os.path.relpath(path, setup.out) for path in (answers.path, prompts)],
        }
        return Done(evaluation, {**timing_s, "evaluate": evaluation.elapsed_s}, provenance)

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
            model.held.close()

    def _opened(self, work: Work) -> _Model:
        if self._model is None or self._model.weights_key != work.weights_key:
            self._close_model()
            with ExitStack() as held:
                ask, how, timing_s = self._open(work, held)
                self._model = _Model(work.weights_key, ask, how, timing_s, held.pop_all())
        return self._model

    def _open(self, work: Work, held: ExitStack) -> _Opened:
        from ablations.engines.in_place import SwapFailed
        from layerswap_method.methods.read import merge_of_one, recipe_by_files
        from layerswap_method.recipe.references import Model

        single = self._setup.single(work.merge)
        if single is not None and single.adapter is not None and not is_lora(single.adapter):
            self._close_live()
            return self._with_adapter(single.folder, single.adapter, work.request.seed, held)
        is_live, why = not self._setup.materialize, dict[str, Any]()
        if is_live and (recipe := recipe_by_files(work.merge)) is not None:
            try:
                stream = self._stream(recipe)
                how = {"weights": "streamed", **measured_of(stream.record)}
                return self._swapped(stream, how, {"merge": 0.0})
            except SwapFailed as error:
                is_live, why = False, self._give_way(work, error)
        with ExitStack() as while_merged:
            folder, merge_s = while_merged.enter_context(checkpoint_of(self._setup, work))
            measured = read_measured(folder)
            if is_live:
                how = {"weights": "merged by mergekit-yaml, then streamed", **measured}
                try:
                    opened = self._swapped(
                        merge_of_one(Model(str(folder), folder)), how, {"merge": merge_s}
                    )
                    held.enter_context(while_merged.pop_all())
                    return opened
                except SwapFailed as error:
                    why = self._give_way(work, error)
            held.enter_context(while_merged.pop_all())
            how = {"weights": "checkpoint", **why, **measured}
            return self._cold(folder, work.request.seed, held, how, merge_s)

    def _give_way(self, work: Work, error: SwapFailed) -> dict[str, Any]:
        """End the live engine, for two models need not fit into memory; return why."""
        logger.warning("  %s: cannot use the live engine: %s", work.label, error.message)
        self._close_live()
        return {"fallback": error.message}

    def _stream(self, recipe: Recipe) -> Merge:
        tell(Step("planning the merge"))
        from ablations.engines.in_place import SwapFailed

        try:
            return recipe.merge(self._setup.experts)
        except InputError as error:
            raise SwapFailed(error.message) from error

    def _swapped(
        self, stream: Merge, how: Mapping[str, Any], timing_s: dict[str, float]
    ) -> _Opened:
        """Put a model into the live engine.

        Raises:
            SwapFailed: when its weights cannot be put there.
        """
        setup = self._setup
        if self._live is None:
            tell(Step(f"loading the libraries of {setup.backend}"))
            from ablations.engines.live import open_live

            self._live = open_live(setup.base.folder, setup.backend, setup.options)
        live = self._live
        timing_s |= live.swap(stream)
        return functools.partial(live.evaluate, stream), how, timing_s

    def _cold(
        self, folder: Path, seed: int, held: ExitStack, how: Mapping[str, Any], merge_s: float
    ) -> _Opened:
        """Start a fresh engine on a checkpoint on disk."""
        from ablations.engines.lm_eval_backend import loaded, run_tasks

        started, backend = time.monotonic(), self._setup.backend
        engine = held.enter_context(loaded(folder, backend, self._setup.options, seed))
        ask = functools.partial(
            run_tasks, engine, model=str(folder), backend=backend, folder=folder
        )
        return ask, how, {"merge": merge_s, "start": time.monotonic() - started}

    def _with_adapter(self, folder: Path, adapter: Path, seed: int, held: ExitStack) -> _Opened:
        """Start a fresh model with an adapter that changes none of its weights."""
        from ablations.engines.backends import resolve_backend
        from ablations.engines.lm_eval_backend import loaded, run_tasks
        from ablations.train.fusion import is_fusion
        from ablations.train.model import with_adapter

        started, backend = time.monotonic(), resolve_backend(self._setup.backend, beside=adapter)
        by_peft = None if is_fusion(adapter) else adapter  # peft cannot load a fusion
        engine = held.enter_context(loaded(folder, backend, self._setup.options, seed, by_peft))
        if by_peft is None:
            with_adapter(engine.model, adapter)
        ask = functools.partial(
            run_tasks, engine, model=str(adapter), backend=backend, folder=folder
        )
        how = {"weights": "of the base, with an adapter next to them"}
        return ask, how, {"merge": 0.0, "start": time.monotonic() - started}
