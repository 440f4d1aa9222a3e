"""What an engine generates is kept as it arrives: HF's batch by batch, vLLM's answer by answer.

Knows how lm-eval's two model classes call their engines; imports neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ablations.engines.kept_answers import KeptAnswers, key_of


@contextmanager
def keeping(lm: Any, path: Path | None) -> Iterator[KeptAnswers | None]:
    """Keep what `lm` generates in the file `path`, and generate nothing that is in it.

    Args:
        lm: lm-eval's model object, of `ablations.engines.watched`; of others nothing is kept.
        path: None keeps nothing.
    """
    if path is None or not hasattr(lm, "kept"):
        yield None
        return
    lm.kept = KeptAnswers(path)
    try:
        yield lm.kept
    finally:
        lm.kept.close()
        lm.kept = None


def hf_batch(
    kept: KeptAnswers | None,
    generate: Callable[..., Any],
    context: Any,
    max_length: int,
    stop: list[str],
    options: dict[str, Any],
) -> Any:
    """Return what `generate` makes of a batch of prompts, or what was kept of it.

    Batches are the same in every call of a task, so an answer is that of an undisturbed run.

    Args:
        kept: None generates.
        generate: of lm-eval's ``HFLM``; it may empty the options that it is given.
        context: tokens of the prompts, padded to one length.
        max_length: of prompt and answer, in tokens.
        stop: strings that end an answer.
        options: of generation; attention masks follow from the prompts.
    """
    if kept is None:
        return generate(context, max_length, stop, **options)
    asked = {name: each for name, each in options.items() if name != "attention_mask"}
    key = key_of("hf", context.tolist(), max_length, stop, asked)
    rows = kept.take(key, len(context))
    if rows is None:
        found = generate(context, max_length, stop, **options)
        kept.keep(key, found.tolist())
        return found
    if options.get("do_sample"):  # the next batch would be drawn with this one's random numbers
        import torch

        torch.manual_seed(int(key[:8], 16))
    return context.new_tensor(rows)


def vllm_outputs(
    lm: Any,
    generate: Callable[..., Any],
    requests: Sequence[list[int]],
    parameters: Sequence[Any],
) -> tuple[list[Any], int]:
    """Return vLLM's outputs for all requests, in their order, and how many of them were kept.

    Args:
        lm: lm-eval's ``VLLM``, with `kept`.
        generate: its own way to have outputs made.
        requests: tokens of each prompt.
        parameters: vLLM's ``SamplingParams`` of each.
    """
    kept: KeptAnswers = lm.kept
    pairs = zip(requests, parameters, strict=True)
    keys = [key_of("vllm", prompt, repr(each)) for prompt, each in pairs]
    found = [kept.take(key) for key in keys]
    outputs = [None if each is None else _output(*each) for each in found]
    left = [place for place, each in enumerate(found) if each is None]
    if left:
        asked = [requests[place] for place in left]
        with _kept_one_by_one(lm.model.llm_engine, kept, asked, [keys[place] for place in left]):
            generated = generate(
                requests=asked,
                generate=True,
                sampling_params=[parameters[place] for place in left],
            )
        for place, output in zip(left, generated, strict=True):
            outputs[place] = output
    return outputs, len(requests) - len(left)


@contextmanager
def _kept_one_by_one(
    engine: Any, kept: KeptAnswers, requests: Sequence[list[int]], keys: Sequence[str]
) -> Iterator[None]:
    """Keep each answer when vLLM's engine hands it out; lm-eval gets them when all are there."""
    waiting: dict[tuple[int, ...], deque[str]] = {}
    for prompt, key in zip(requests, keys, strict=True):
        waiting.setdefault(tuple(prompt), deque()).append(key)
    # Of equal prompts with seeds of their own, an output does not say which one it is of.
    waiting = {prompt: keys for prompt, keys in waiting.items() if len(set(keys)) == 1}
    step = engine.step

    def step_and_keep() -> Any:
        outputs = step()
        for output in outputs:
            if output.finished:
                answer = output.outputs[0]
                if keys := waiting.get(tuple(output.prompt_token_ids)):
                    kept.keep(keys.popleft(), [answer.text, answer.finish_reason])
        return outputs

    engine.step = step_and_keep
    try:
        yield
    finally:
        del engine.step


def _output(text: str, finish_reason: str) -> Any:
    """Return as much of vLLM's output as lm-eval and `ablations.engines.watched` read."""
    return SimpleNamespace(outputs=[SimpleNamespace(text=text, finish_reason=finish_reason)])
