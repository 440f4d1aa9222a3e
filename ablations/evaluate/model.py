"""A model as the user names it: where it is, and the engine that holds it. Knows no benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ablations.engines.lm_eval_backend import loaded, run_tasks
from ablations.evaluate.request import SuiteRequest
from ablations.models.find import Expert
from ablations.scoring.records import Backend, Evaluation, EvaluationRequest
from layerswap_method.errors import LayerSwapError


@contextmanager
def opened(
    expert: Expert, model: str, backend: Backend, request: SuiteRequest
) -> Iterator[Callable[[EvaluationRequest], Evaluation]]:
    """Give what asks the loaded model; end its engine afterwards.

    An adapter's change is added to the base in a live engine, as studies do it: no merged copy.
    """
    if expert.adapter is None:
        with loaded(expert.folder, backend, request.options, request.seed) as engine:
            yield lambda asked: run_tasks(engine, asked, model=model, backend=backend)
        return
    from ablations.engines.errors import SwapFailed
    from ablations.engines.live import open_live
    from layerswap_method.stream.weight_stream import checkpoint_stream

    stream = checkpoint_stream(expert.folder, expert.adapter)
    live = open_live(expert.folder, backend, request.options)
    try:
        live.swap(stream)
        yield lambda asked: live.evaluate(stream, asked)
    except SwapFailed as error:
        raise LayerSwapError(
            f"{model}: the adapter cannot be added to its base in the engine: {error.message}; "
            "merge it first (peft: merge_and_unload, save_pretrained) and give the folder"
        ) from error
    finally:
        live.close()
