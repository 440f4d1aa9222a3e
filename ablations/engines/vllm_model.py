"""An engine: lm-eval's vLLM model, whose answers are handed over as it ends them."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from lm_eval.models.vllm_causallms import VLLM, SamplingParams, TokensPrompt

from ablations.engines.options import EngineOptions
from ablations.engines.stored_answers_lm import Generated, Prompt, TextPair
from ablations.engines.vllm_engine import (
    clean_up,
    engine_arguments,
    is_cpu_build,
    torch_settings,
)
from ablations.models.load import check_complete, model_class, read_model_config
from layerswap_method.errors import LayerSwapError
from layerswap_method.tensors import MIXES, TensorMix

logger = logging.getLogger(__name__)

_PART = 1024
"""Texts that are handed to the engine at once to be scored."""

_LOOK_S = 5.0
"""Seconds between two looks at what the engine counts."""

_FEW = 10
"""How often requests may be stopped for want of room without a warning."""


class VllmModel(VLLM):  # type: ignore[misc]
    """A vLLM engine, which gets all requests at once and batches by itself."""

    def __init__(
        self,
        model: str,
        options: EngineOptions,
        **more: Any,
    ) -> None:
        """Start an engine on a checkpoint, with `more` arguments; call `prepare_vllm` before."""
        config = read_model_config(model)
        _check_weights(model, config)
        stored = getattr(config, "dtype", None)
        stored_dtype = None if stored is None else str(stored).removeprefix("torch.")
        with ExitStack() as stack:
            stack.callback(clean_up)
            stack.enter_context(torch_settings())
            super().__init__(
                pretrained=model,
                batch_size=sys.maxsize,
                worker_extension_cls="ablations.engines.vllm_worker.SwapExtension",
                **engine_arguments(options, stored_dtype),
                **more,
            )
            self._end = stack.pop_all()
        self._has_warned = False

    def check_names(self, names: Iterable[str]) -> None:
        """Do nothing: vLLM renames and fuses; what it made of a load is checked after it."""

    def load(self, mixes: Mapping[str, TensorMix]) -> None:
        """Have every worker load a whole model.

        Only names and paths go there, as JSON.

        Raises:
            LayerSwapError: when that failed; the engine is then of no more use.
        """
        text = MIXES.dump_json(dict(mixes)).decode()
        for problem in self.model.collective_rpc("layerswap_load", args=(text,)):
            if problem is not None:
                raise LayerSwapError(f"vLLM could not load the tensors: {problem}")

    def reset_cache(self) -> None:
        """Drop the prefix cache: keys and values of the weights before."""
        if not self.model.reset_prefix_cache():
            raise LayerSwapError("vLLM did not reset its prefix cache: requests are still running")

    def faulty_tensor(self) -> str | None:
        """Return the first weight that has NaN or infinity, None where none is seen to have."""
        names = self.model.collective_rpc("layerswap_faulty_tensor")
        return next((name for name in names if name is not None), None)

    def close(self) -> None:
        """End the engine."""
        self.model.llm_engine.engine_core.shutdown()
        self._end.close()

    def generate(self, prompts: Sequence[Prompt], keep: Callable[[int, Generated], None]) -> None:
        """Generate an answer to each prompt."""
        end = self.tokenizer.decode(self.eot_token_id) or self.tokenizer.eos_token
        order = sorted(range(len(prompts)), key=lambda place: prompts[place].longest_first)
        parameters, stops = [], []
        for prompt in (prompts[place] for place in order):
            options, until, limit = self.modify_gen_kwargs(dict(prompt.options), eos=end)
            if prompt.seed is not None:
                options["seed"] = prompt.seed
            # A stop string may stand in the thinking as well: the answer is cut afterwards.
            stop = [end] if prompt.may_think else until
            # The log-likelihood of the answer says whether the logits were numbers.
            parameters.append(SamplingParams(max_tokens=limit, stop=stop, logprobs=0, **options))
            stops.append(until)
        for rank, output in self._run([prompts[place].tokens for place in order], parameters):
            (answer,) = output.outputs
            is_truncated = answer.finish_reason == "length"
            is_finite = math.isfinite(answer.cumulative_logprob)
            keep(order[rank], Generated(answer.text, stops[rank], is_truncated, is_finite))

    def score(
        self, pairs: Sequence[TextPair], keep: Callable[[int, tuple[float, bool]], None]
    ) -> None:
        """Score each pair."""
        options = {"temperature": 0, "prompt_logprobs": 1, "max_tokens": 1, "detokenize": False}
        for first in range(0, len(pairs), _PART):
            part = [
                (place, context + continuation, len(context))
                for place, (context, continuation) in enumerate(
                    pairs[first : first + _PART], start=first
                )
            ]
            part.sort(key=lambda entry: (-len(entry[1]), entry[1]))
            texts = [text for _, text, _ in part]
            for rank, output in self._run(texts, [SamplingParams(**options) for _ in part]):
                place, text, length = part[rank]
                log_likelihood, is_greedy = self._parse_logprobs(text, output, length)
                keep(place, (float(log_likelihood), bool(is_greedy)))

    def _run(
        self, prompts: Sequence[Sequence[int]], parameters: Sequence[SamplingParams]
    ) -> Iterator[tuple[int, Any]]:
        """Yield place and output of each prompt, in the order in which the engine ends them."""
        tokens = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
        lora = self.lora_request
        names = self.model.enqueue(tokens, parameters, lora_request=lora, use_tqdm=False)
        # The engine adds to the names of requests what makes them its own.
        places = {name.partition("-")[0]: place for place, name in enumerate(names)}
        engine, ended, before = self.model.llm_engine, 0, self._preemptions()
        looked = time.monotonic()
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    ended += 1
                    yield places[output.request_id], output
            if not self._has_warned and time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                self._warn_of_cache(self._preemptions() - before, ended)

    def _preemptions(self) -> int:
        """Return how often the engine has taken a running request's keys and values away."""
        counts = (m.value for m in self.model.get_metrics() if m.name == "vllm:num_preemptions")
        return int(sum(counts))

    def _warn_of_cache(self, preempted: int, ended: int) -> None:
        """Warn once where more requests were stopped for want of room than have ended."""
        if preempted > max(_FEW, ended):
            self._has_warned = True
            memory = "kv_cache_gib" if is_cpu_build() else "gpu_memory_utilization"
            logger.warning(
                "the keys and values of the answers that run at once do not fit vLLM's cache: %d "
                "times one was stopped, to be computed again later, and %d answers have ended. "
                "Raise %s, or lower max_num_seqs",
                preempted,
                ended,
                memory,
            )


def _check_weights(model: str, config: Any) -> None:
    """Check that the checkpoint is complete by transformers' class of it.

    vLLM itself does not look: whatever it packs after loading counts as loaded, which is every
    linear layer, and of a fused tensor one part is enough.
    """
    kind = model_class(config)
    if kind is None or getattr(config, "quantization_config", None) is not None:
        reason = "is quantised" if kind is not None else "has a class that transformers does not"
        logger.warning("%s: %s, so it is not known whether its files are complete", model, reason)
    else:
        check_complete(model, kind)
