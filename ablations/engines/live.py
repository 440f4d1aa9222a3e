"""An evaluator whose engine stays; each model is loaded into it whole.

What must hold so that the scores are those of a cold engine on the checkpoint that `mergekit-yaml`
writes is checked here. How tensors get in: `ablations.engines.in_place`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.engines.answers import AnswerFile
from ablations.engines.backends import resolve_backend
from ablations.engines.donor import differences
from ablations.engines.in_place import HfEngine, SwapFailed, VllmEngine
from ablations.engines.lm_eval_backend import run_tasks
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.engines.probe import Baseline, ProbeAnswers, ask_probe
from ablations.engines.task_loading import check_tasks
from ablations.machine.progress import Step, tell
from ablations.scoring.records import Backend, Evaluation, EvaluationRequest
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.methods.read import merge_of_one
from layerswap_method.recipe.document import Merge
from layerswap_method.recipe.references import Model

if TYPE_CHECKING:
    from layerswap_method.tensors import TensorMix

_CORRUPTION = -1024
"""By what the final norm is multiplied to see whether loading changes anything. A model that is
sure of its tokens then denies them, and one that prefers none prefers some."""


def open_live(
    base_folder: Path, backend: BackendChoice = "auto", options: EngineOptions | None = None
) -> LiveEvaluator:
    """Return an evaluator with one engine for every model of one architecture.

    The engine starts at the first model, or with `LiveEvaluator.start`, from the checkpoint in
    `base_folder`, which gives config and tokenizer.

    Raises:
        InputError: for a folder that holds no checkpoint, or a backend that is not installed.
    """
    engine = VllmEngine() if resolve_backend(backend) == "vllm" else HfEngine()
    base = merge_of_one(Model(str(base_folder), Path(base_folder)))
    return LiveEvaluator(engine, base, options or EngineOptions())


class LiveEvaluator:
    """Evaluates `Merge`s. Its engine outlives them; nothing else of them stays.

    Greedy generations are those of a cold engine, log-likelihoods equal to rounding. Where that
    cannot be promised (other config or tokenizer, other dtype, names the engine does not know) a
    model is refused with `SwapFailed`, and can be evaluated from a checkpoint on disk.

    The engine proves itself: at its start the base is loaded over itself, and a probe must be
    answered as before (`ablations.engines.probe`). `check` puts the base back and repeats it.
    """

    def __init__(self, engine: HfEngine | VllmEngine, base: Merge, options: EngineOptions) -> None:
        """Take an engine that is not started, and what it will be started with."""
        self._engine = engine
        self._base = base
        self._options = options
        self._lm: Any = None
        self._loaded: Mapping[str, TensorMix] | None = None
        self._disabled: str | None = None
        """Why no model can be put into it any more."""

    @property
    def backend(self) -> Backend:
        """The engine that runs the models."""
        return self._engine.backend

    def start(self) -> float:
        """Start the engine if it does not run; return the seconds that took.

        Raises:
            InputError: when the base cannot be loaded.
            SwapFailed: when no model can be put into an engine of this architecture, or the base
                loaded over itself is no longer the base.
        """
        started = time.perf_counter()
        if self._disabled is not None:
            raise SwapFailed(self._disabled)
        if self._lm is None:
            self._lm = self._engine.start(self._base.donor, self._options)
            with self._ended_by_errors(self._base, for_good=True):
                self._engine.check(tuple(self._base.tensors))
                self._prove()
        return time.perf_counter() - started

    def swap(self, model: Merge) -> dict[str, float]:
        """Load `model` into the engine; return the seconds of ``start`` and ``load``.

        Raises:
            SwapFailed: when that did not work, or would not give the scores of a cold engine. The
                engine is then as good as new at the next call: restarted if it has to be.
        """
        self._check_fit(model)
        start_s = self.start()
        started = time.perf_counter()
        with self._ended_by_errors(model):
            self._load(model.tensors)
        return {"start": start_s, "load": time.perf_counter() - started}

    def check(self) -> None:
        """Put the base back and repeat the probe; do nothing where no engine runs.

        Raises:
            SwapFailed: for good, when the probe is not answered as at the start: what was
                evaluated since the last check may be wrong.
        """
        if self._lm is not None:
            with self._ended_by_errors(self._base, for_good=True):
                self._load(self._base.tensors)
                self._compare("with the base's weights back in place")

    def evaluate(
        self, model: Merge, request: EvaluationRequest, answers: AnswerFile | None = None
    ) -> Evaluation:
        """Return scores and records of `model`; for `answers` see `run_tasks`.

        Raises:
            InputError: for unknown tasks, before anything is loaded.
            SwapFailed: when the model could not be put into the engine.
        """
        check_tasks(request)
        self.swap(model)
        name, backend, folder = str(model.donor), self.backend, model.donor
        try:
            return run_tasks(
                self._lm, request, model=name, backend=backend, folder=folder, answers=answers
            )
        except InputError:  # the request is at fault, and nothing was asked yet
            raise
        except BaseException:
            self.close()  # requests may be under way in it; the next call starts another
            raise

    def close(self) -> None:
        """End the engine; a later call would start it again."""
        lm, self._lm, self._loaded = self._lm, None, None
        if lm is not None:
            self._engine.stop()

    def _prove(self) -> None:
        """Load the base over itself and check that the model answers the probe as before.

        Before that one small tensor is changed, which the probe must notice: an engine that loads
        nothing would pass otherwise.
        """
        tell(Step("checking that weights can be loaded into the engine"))
        tensors = self._base.tensors
        self._baseline = Baseline(self._ask_probe(), self._ask_probe())
        if (name := _final_norm(self._base)) is not None:
            mix = tensors[name].model_copy(update={"factor": _CORRUPTION})
            self._load({**tensors, name: mix})
            if self._baseline.mismatch(self._ask_probe()) is None:
                raise SwapFailed(
                    f"{self._base.donor}: the probe does not notice that {name} was multiplied by "
                    f"{_CORRUPTION} in the engine, so loading weights has no effect"
                )
        self._load(tensors)
        self._compare("with every tensor of the base loaded over itself")

    def _compare(self, when: str) -> None:
        if (mismatch := self._baseline.mismatch(self._ask_probe())) is not None:
            raise SwapFailed(
                f"{self._base.donor}: {when}, {self.backend} answers otherwise than at its start "
                f"({mismatch}); weights loaded into it are not what they should be"
            )

    def _ask_probe(self) -> ProbeAnswers:
        self._engine.reset_cache()
        return ask_probe(self._lm)

    def _load(self, tensors: Mapping[str, TensorMix]) -> None:
        """Load a whole model, unless it is loaded."""
        if tensors == self._loaded:
            return
        tell(Step("loading the weights"))
        self._loaded = None
        self._engine.load(tensors)
        self._loaded = tensors
        self._engine.reset_cache()

    @contextmanager
    def _ended_by_errors(self, model: Merge, *, for_good: bool = False) -> Iterator[None]:
        """End the engine at an error, which may leave half of `model` in it."""
        try:
            yield
        except Exception as error:
            self.close()
            message = error.message if isinstance(error, LayerSwapError) else str(error)
            if not isinstance(error, SwapFailed):
                kind = "" if isinstance(error, LayerSwapError) else f"{type(error).__name__}: "
                place = f"{model.donor}: its tensors did not get into the engine"
                message = f"{place}: {kind}{message}"
            self._disabled = message if for_good else None
            raise SwapFailed(message) from error

    def _check_fit(self, model: Merge) -> None:
        """Check that the engine with these tensors would be the merged checkpoint's model."""
        problems = []
        if odd := sorted(set(model.tensors) ^ set(self._base.tensors)):
            problems.append(
                f"it does not have the same tensors as the engine's ({', '.join(odd[:3])})"
            )
        if self._options.dtype == "auto" and model.dtype != self._base.dtype:
            problems.append(f"it is a {model.dtype} model and the engine runs {self._base.dtype}")
        if differing := differences(model.donor, self._base.donor):
            problems.append(
                f"its {', '.join(differing)} (from {model.donor}) would differ from the engine's "
                f"(from {self._base.donor})"
            )
        if problems:
            raise SwapFailed(f"{model.donor}: {'; '.join(problems)}")


def _final_norm(base: Merge) -> str | None:
    """Return the weight of the norm after the last layer, None where no name says so."""
    outside = (name for name in base.tensors if not re.search(r"\.\d+\.", name))
    return next((name for name in outside if re.search(r"norm\w*\.weight$", name)), None)
