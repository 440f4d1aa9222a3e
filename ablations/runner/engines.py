"""From a work item to scores: streamed into a live engine, or through a checkpoint on disk.

Knows which merges can be streamed, and what to fall back on; not how an engine loads a tensor.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ablations.atomic import write_text
from ablations.evaluation.evaluator import EngineOptions
from ablations.evaluation.scores import Backend, Evaluation
from ablations.runner.work import Done, Work
from ablations.study.experts import Expert
from layerswap_method.errors import LayerSwapError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
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

    work: Path
    """Folder for checkpoints that are needed for a while."""

    materialize: bool = False
    """Whether every merge goes through mergekit-yaml and a checkpoint on disk."""

    def __call__(self) -> StudyEngine:
        """Return an evaluator that has started nothing yet."""
        return StudyEngine(self)


class StudyEngine:
    """Evaluates the work items of a study; starts its engine at the first one that needs it."""

    def __init__(self, setup: EngineSetup):
        """Start nothing."""
        self._setup = setup
        self._cold: Any = None

    def evaluate(self, work: Work) -> Done:
        """Return the scores of a work item.

        Raises:
            LayerSwapError: where experts have changed, or a merge or an evaluation fails.
        """
        self._check_experts(work)
        done = self._evaluate(work)
        self._check_experts(work)
        return done

    def close(self) -> None:
        """Give back what runs."""
        self._cold = None

    def _evaluate(self, work: Work) -> Done:
        with self._checkpoint(work) as (folder, seconds):
            evaluation, spent = self._evaluate_cold(folder, work)
        return Done(
            evaluation,
            {"load": seconds, "evaluate": evaluation.elapsed_s, "start": spent},
            {"weights": "checkpoint"},
        )

    def _evaluate_cold(self, folder: Path, work: Work) -> tuple[Evaluation, float]:
        """Evaluate a checkpoint on a fresh engine; also return the seconds around its tasks."""
        from ablations.evaluation.lm_eval_backend import CheckpointEvaluator

        started = time.monotonic()
        evaluator = CheckpointEvaluator(self._setup.backend, self._setup.options)
        evaluation = evaluator.evaluate(folder, work.request)
        return evaluation, time.monotonic() - started - evaluation.elapsed_s

    @contextmanager
    def _checkpoint(self, work: Work) -> Iterator[tuple[Path, float]]:
        """Yield the work's checkpoint and the seconds it took; what was merged vanishes after."""
        single = self._single(work)
        if single is not None and single.adapter is None:
            yield single.folder, 0.0
            return
        from ablations.merging import merge

        folder = self._setup.work / work.score_key
        recipe = self._setup.work / f"{work.score_key}.yml"
        adapters = any(expert.adapter is not None for expert in self._used(work))
        cache = ["--lora-merge-cache", str(self._setup.work / "adapters")]
        started = time.monotonic()
        for left in self._setup.work.glob(f".{work.score_key}*"):  # of a runner that was killed
            shutil.rmtree(left, ignore_errors=True)
        try:
            write_text(recipe, yaml.safe_dump(dict(work.merge), sort_keys=False))
            merge(recipe, folder, fingerprint=work.score_key, options=cache if adapters else [])
            yield folder, time.monotonic() - started
            folder.with_suffix(".log").unlink(missing_ok=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            recipe.unlink(missing_ok=True)

    def _single(self, work: Work) -> Expert | None:
        """Return the expert that the work is about as it is; None for a merge."""
        models = list(work.merge.get("models") or ())
        if work.merge["merge_method"] != "passthrough" or len(models) != 1:
            return None
        return self._setup.experts[models[0]["model"]]

    def _used(self, work: Work) -> list[Expert]:
        text = yaml.safe_dump(dict(work.merge))
        return [expert for ref, expert in self._setup.experts.items() if ref in text]

    def _check_experts(self, work: Work) -> None:
        """Check that the experts that the work reads are those that its key stands for.

        Raises:
            LayerSwapError: where one is gone or was changed.
        """
        from ablations.study.identity import folder_state

        for expert in self._used(work):
            for folder in (expert.folder, *([expert.adapter] if expert.adapter else [])):
                if not any(folder.glob("*.safetensors")):
                    raise LayerSwapError(
                        f"expert {expert.name!r} has disappeared: no weights in {folder} any more; "
                        "put it back and run the study again"
                    )
                if self._setup.states.get(str(folder)) not in (None, folder_state(folder)):
                    raise LayerSwapError(
                        f"expert {expert.name!r} has changed since the study began ({folder}); "
                        "run the study again"
                    )
