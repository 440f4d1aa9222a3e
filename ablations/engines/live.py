"""An evaluator whose model stays in memory; a cell changes the tensors that differ, no more.

Knows which content every tensor in the engine has, and what must hold so that the scores are those
of a cold engine on the checkpoint that `mergekit-yaml` writes. Not how tensors get in
(`ablations.engines.in_place`), nor what a recipe is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.engines.answers import AnswerFile
from ablations.engines.backends import resolve_backend
from ablations.engines.donor import differences
from ablations.engines.errors import SwapFailed
from ablations.engines.in_place import Engine, HfEngine, VllmEngine
from ablations.engines.lm_eval_backend import run_tasks
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.engines.probe import Expected, Said, ask_probe
from ablations.engines.task_loading import check_tasks
from ablations.machine.progress import Step, tell
from ablations.scoring.records import Backend, Evaluation, EvaluationRequest
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.methods.read import merge_of_one
from layerswap_method.recipe.document import Merge
from layerswap_method.recipe.references import Model

if TYPE_CHECKING:
    from layerswap_method.tensors import TensorMix

_SPOILED = -1024
"""By what the final norm is multiplied to see whether loading changes anything. A model that is
sure of its tokens then denies them, and one that prefers none prefers some."""


@dataclass(frozen=True)
class SwapReport:
    """What it took to put a model into the engine."""

    tensors: int
    """Tensors loaded: those that differed, and their siblings in fused modules."""

    bytes: int
    """Size of those tensors."""

    seconds: float
    """Wall time, without a start of the engine."""

    start_s: float = 0.0
    """Wall time of a start of the engine, in seconds; about 0 where it ran."""


def open_live(
    base_folder: Path, backend: BackendChoice = "auto", options: EngineOptions | None = None
) -> LiveEvaluator:
    """Return an evaluator with one engine for every model of one architecture.

    The engine starts at the first model, or with `LiveEvaluator.start`.

    Args:
        base_folder: checkpoint that the engine starts from; gives config and tokenizer.
        backend: ``auto`` is vLLM when it is installed, else HF.
        options: how the model is run.

    Raises:
        InputError: for a folder that holds no checkpoint, or a backend that is not installed.
    """
    chosen = resolve_backend(backend)
    engine: Engine = VllmEngine() if chosen == "vllm" else HfEngine()
    return LiveEvaluator(
        engine, merge_of_one(Model(str(base_folder), Path(base_folder))), options or EngineOptions()
    )


class LiveEvaluator:
    """Evaluates `Merge`s. Its engine outlives them; nothing else of them stays.

    Greedy generations are those of a cold engine, log-likelihoods equal to rounding. Where that
    cannot be promised (other config or tokenizer, other dtype, names the engine does not know) a
    model is refused with `SwapFailed`, and can be evaluated from a checkpoint on disk.

    The engine proves itself: at its start every tensor of the base is loaded over itself, and a
    probe must be answered as before (`ablations.engines.probe`). `check` puts the base back and
    asks the probe again.
    """

    def __init__(self, engine: Engine, base: Merge, options: EngineOptions) -> None:
        """Take an engine that is not started, and what it will be started with."""
        self._engine = engine
        self._base = base
        self._options = options
        self._lm: Any = None
        self._loaded: dict[str, TensorMix] = {}
        self._unfit: str | None = None
        self._expected: Expected | None = None

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
        if self._unfit is not None:
            raise SwapFailed(self._unfit, lasting=True)
        if self._lm is None:
            _check_tied(self._base)
            self._lm = self._engine.start(self._base.donor, self._options)
            self._loaded = dict(self._base.tensors)
            try:
                self._engine.check(tuple(self._base.tensors))
                self._prove()
            except SwapFailed as error:
                self._give_up(error)
                raise
        return time.perf_counter() - started

    def swap(self, stream: Merge) -> SwapReport:
        """Make the engine's model the one of `stream`, changing only what differs.

        Raises:
            SwapFailed: when that did not work, or would not give the scores of a cold engine. The
                engine is then as good as new at the next call: restarted if it has to be.
        """
        self._check(stream)
        start_s = self.start()
        started = time.perf_counter()
        try:
            tell(Step("loading the weights that differ"))
            sent, read = self._put(stream.tensors)
        except Exception as error:
            failure = error if isinstance(error, SwapFailed) else _as_failure(stream, error)
            self._give_up(failure)
            raise failure from error
        return SwapReport(sent, read, time.perf_counter() - started, start_s)

    def check(self) -> None:
        """Put the base back and ask the probe again; do nothing where no engine runs.

        Raises:
            SwapFailed: for good, when the probe is not answered as at the start: what was
                evaluated since the last check may be wrong.
        """
        if self._lm is None:
            return
        try:
            self._put(self._base.tensors)
            self._compare("with the base's weights back in place")
        except Exception as error:
            failure = _lasting(self._base, error)
            self._give_up(failure)
            raise failure from error

    def evaluate(
        self, model: Merge, request: EvaluationRequest, answers: AnswerFile | None = None
    ) -> Evaluation:
        """Return scores and records of `model`.

        Args:
            model: the weights.
            request: what to ask.
            answers: see `run_tasks`.

        Raises:
            InputError: for unknown tasks, before anything is loaded.
            SwapFailed: when the model could not be put into the engine.
        """
        check_tasks(request)
        self.swap(model)
        try:
            return run_tasks(
                self._lm,
                request,
                model=str(model.donor),
                backend=self.backend,
                folder=model.donor,
                answers=answers,
            )
        except InputError:  # the request is at fault, and nothing was asked yet
            raise
        except BaseException:
            self.close()  # requests may be under way in it; the next call starts another
            raise

    def close(self) -> None:
        """End the engine; a later call would start it again."""
        lm, self._lm, self._loaded = self._lm, None, {}
        if lm is not None:
            self._engine.stop()

    def _prove(self) -> None:
        """Load the base over itself and check that the model answers the probe as before.

        Before that one small tensor is changed, which the probe must notice: an engine that loads
        nothing would pass otherwise.
        """
        tell(Step("checking that weights can be loaded into the engine"))
        try:
            self._expected = Expected(self._ask_probe(), self._ask_probe())
            if (name := _final_norm(self._base)) is not None:
                mix = self._base.tensors[name]
                self._put({**self._base.tensors, name: mix.model_copy(update={"factor": _SPOILED})})
                if self._expected.why_not(self._ask_probe()) is None:
                    raise SwapFailed(
                        f"{self._base.donor}: the probe does not notice that {name} was "
                        f"multiplied by {_SPOILED} in the engine, so loading changes nothing in it",
                        lasting=True,
                    )
            self._loaded.clear()  # so that every tensor is loaded
            self._put(self._base.tensors)
            self._compare("with every tensor of the base loaded over itself")
        except Exception as error:
            raise _lasting(self._base, error) from error

    def _compare(self, when: str) -> None:
        expected = self._expected
        found = None if expected is None else expected.why_not(self._ask_probe())
        if found is not None:
            raise SwapFailed(
                f"{self._base.donor}: {when}, {self.backend} says other things than at its start "
                f"({found}); weights loaded into it are not what they should be",
                lasting=True,
            )

    def _ask_probe(self) -> Said:
        self._engine.forget()
        return ask_probe(self._lm)

    def _put(self, mixes: Mapping[str, TensorMix]) -> tuple[int, int]:
        """Load what differs from what is loaded; return how many tensors and bytes were."""
        changed = [name for name in mixes if self._loaded.get(name) != mixes[name]]
        sent = self._engine.expand(changed, tuple(mixes))
        if missing := set(changed) - set(sent):
            raise SwapFailed(f"{len(missing)} changed tensors would not be loaded: {missing}")
        read = self._load({name: mixes[name] for name in sent}) if sent else 0
        self._engine.forget()
        return len(sent), read

    def _load(self, mixes: Mapping[str, TensorMix]) -> int:
        """Load `mixes`; while they go in, their content counts as unknown."""
        for name in mixes:
            self._loaded.pop(name, None)
        read = self._engine.load(mixes)
        self._loaded.update(mixes)
        return read

    def _give_up(self, failure: SwapFailed) -> None:
        """End an engine that may hold half of a model; remember what cannot be mended."""
        if failure.lasting:
            self._unfit = failure.message
        self.close()

    def _check(self, stream: Merge) -> None:
        """Check that the engine with these tensors would be the merged checkpoint's model."""
        problems = []
        if odd := sorted(set(stream.tensors) ^ set(self._base.tensors)):
            problems.append(
                f"it does not have the same tensors as the engine's ({', '.join(odd[:3])})"
            )
        if self._options.dtype == "auto" and stream.dtype != self._base.dtype:
            problems.append(f"it is a {stream.dtype} model and the engine runs {self._base.dtype}")
        if differing := differences(stream.donor, self._base.donor):
            problems.append(
                f"its {', '.join(differing)} (from {stream.donor}) would differ from the engine's "
                f"(from {self._base.donor})"
            )
        if problems:
            raise SwapFailed(f"{stream.donor}: {'; '.join(problems)}")


def _final_norm(base: Merge) -> str | None:
    """Return the weight of the norm after the last layer, None where no name says so."""
    outside = (name for name in base.tensors if not re.search(r"\.\d+\.", name))
    return next((name for name in outside if re.search(r"norm\w*\.weight$", name)), None)


def _as_failure(stream: Merge, error: Exception) -> SwapFailed:
    text = (
        error.message if isinstance(error, LayerSwapError) else f"{type(error).__name__}: {error}"
    )
    return SwapFailed(f"{stream.donor}: its tensors did not get into the engine: {text}")


def _lasting(stream: Merge, error: Exception) -> SwapFailed:
    failure = error if isinstance(error, SwapFailed) else _as_failure(stream, error)
    return SwapFailed(failure.message, lasting=True)


def _check_tied(base: Merge) -> None:
    """Refuse a tied model that stores its output embedding besides: engines differ on those."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(base.donor)
    tied = any(
        getattr(each, "tie_word_embeddings", False) for each in (config, config.get_text_config())
    )
    if tied and any(name.endswith("lm_head.weight") for name in base.tensors):
        raise SwapFailed(
            f"{base.donor}: its config ties the embeddings and it stores an lm_head besides; "
            "engines decide at the start which of them counts",
            lasting=True,
        )
