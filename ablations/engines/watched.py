"""Both engines asked alike, and watched: each request's outcome, which lm-eval does not tell.

These classes stand before its model classes (``class Model(WatchedHf, HFLM)``):

- An answer may take half of the context at most. lm-eval reserves the task's `max_gen_toks`, which
  may be more than a small model has: HF then stops with an assertion, and of vLLM's prompt its cut
  leaves nothing. A limit that the user asked for may take all that the longest prompt leaves.
- With a `think_end_token`, the task's stop strings count only after the thinking, as with vLLM;
  lm-eval has HF stop at one inside it.
- A sampled answer has a seed of its own on vLLM, by seed, repeat and item: it does not depend on
  what else is asked. HF draws whole batches, from torch's seed.
- A prompt that does not fit beside the answer is cut from the left, as lm-eval does: examples go
  first. For log-likelihoods lm-eval leaves HF two tokens more than vLLM; here both have vLLM's.
- Special tokens inside an answer stay in its text, as with vLLM, where stop strings must see them;
  the token that ends an answer, and what follows it, does not. (Word-level tokenizers put a space
  before each on HF; lm-eval tells vLLM to put none.)
- Answers are kept on disk as they arrive, and what was kept is not generated again
  (`ablations.engines.keeping`).
- An answer is the text that follows the prompt, as with vLLM. lm-eval has HF decode it alone, where
  many tokenizers (SentencePiece's, word-level ones) drop the space before the first word; those of
  byte-level BPE do not.

Knows lm-eval's model interface by its methods' names; imports neither lm-eval nor an engine.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

from ablations.engines.item_progress import AnswerHook, EngineBar, ItemProgress
from ablations.engines.keeping import hf_batch, vllm_outputs
from ablations.engines.kept_answers import KeptAnswers, key_of
from ablations.scoring.outcomes import Outcome, outcomes

_LIMIT_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What a task may call the limit of an answer; lm-eval takes the first in this order."""

_TAIL = 8
"""Tokens of a prompt before which an answer is decoded: enough that none is at a text's start."""


class Watched:
    """What both engines share: limits, and outcomes per item in `outcomes`."""

    _progress: ItemProgress | None = None
    """Of the task that is asked now."""

    think_end_token: str | None = None
    """Ends the thinking, which is no part of an answer."""

    keeps_asked_limit: bool = False
    """Whether the limit of an answer is the user's own."""

    sample_seed: str = ""
    """What the seeds of sampled answers are derived from."""

    _round: int = 0
    """How often the prompts that are asked now were asked before."""

    cache_hook: Any
    """lm-eval's, which is called with every answer."""

    kept: KeptAnswers | None = None
    """Answers of the task that is asked now, on disk."""

    @property
    def chats(self) -> dict[str, str]:
        """Prompt -> key of the chat that a template made it of; see `history_key`."""
        found: dict[str, str] = self.__dict__.setdefault("_chats", {})
        return found

    def apply_chat_template(self, chat_history: Any, *arguments: Any, **options: Any) -> str:
        """Return the prompt of a chat; see lm-eval."""
        text = str(super().apply_chat_template(chat_history, *arguments, **options))  # type: ignore[misc]
        self.chats[text] = history_key(chat_history)
        return text

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return an answer per request; see lm-eval."""
        answers = [""] * len(requests)
        self._progress = ItemProgress(requests) if requests else None
        rounds = _rounds([request.args[0] for request in requests])
        for self._round, places in enumerate(rounds):
            chosen = [requests[place] for place in places]
            found = self._generate_round(chosen, disable_tqdm)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness per request; see lm-eval."""
        self._asked_keys = deque((request.task_name, request.doc_id) for request in requests)
        kept: Any = self.cache_hook
        self._progress = ItemProgress(requests) if requests else None
        if self._progress is not None:
            self.cache_hook = AnswerHook(kept, self._progress)
        try:
            found = super().loglikelihood(requests, disable_tqdm=disable_tqdm)  # type: ignore[misc]
        finally:
            self.cache_hook = kept
            self._progress = None
            del self._asked_keys
        return list(found)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        room = self.max_length - 1  # type: ignore[attr-defined]
        keys = getattr(self, "_asked_keys", None)
        fitted = []
        for names, context, continuation in requests:
            length = len(context) + len(continuation)
            if keys:
                outcome = Outcome(length > room, length, room + 1)
                outcomes(self).setdefault(keys.popleft(), []).append(outcome)
            kept = context if length <= room else context[-max(1, room - len(continuation)) :]
            fitted.append((names, kept, continuation))
        return list(super()._loglikelihood_tokens(fitted, **options))  # type: ignore[misc]

    def _generate_round(self, requests: Sequence[Any], disable_tqdm: bool) -> list[str]:
        """Answer requests of which no two have the same prompt."""
        context: int = self.max_length  # type: ignore[attr-defined]
        limits = [_asked(request.args[1], self.max_gen_toks) for request in requests]  # type: ignore[attr-defined]
        longest = None
        if self.keeps_asked_limit and max(limits) > context // 2:
            longest = max(len(self.tok_encode(request.args[0])) for request in requests)  # type: ignore[attr-defined]
        fitted = []
        for request, asked in zip(requests, limits, strict=True):
            with_limit = copy.copy(request)
            limit = _within(asked, context, longest)
            options = _limited(request.args[1], limit)
            with_limit.arguments = (request.args[0], self._seeded(request, options))
            fitted.append(with_limit)
        hook = _Hook(self.cache_hook)
        self._ends = hook.ends
        self.cache_hook = hook
        try:
            answers = super().generate_until(fitted, disable_tqdm=disable_tqdm)  # type: ignore[misc]
        finally:
            self.cache_hook = hook.kept
        for request, asked in zip(fitted, limits, strict=True):
            prompt, options = request.args
            length = len(self.tok_encode(prompt))  # type: ignore[attr-defined]
            limit = options["max_gen_toks"]
            outcome = Outcome(
                is_cut=length > context - limit,
                prompt_tokens=length,
                context_tokens=context,
                is_truncated=hook.found[prompt].is_at_limit,
                limit_tokens=limit,
                asked_tokens=asked,
            )
            outcomes(self).setdefault((request.task_name, request.doc_id), []).append(outcome)
        asked_in_order = (request.args[0] for request in fitted)
        return [
            hook.found[prompt].lead + answer
            for prompt, answer in zip(asked_in_order, answers, strict=True)
        ]

    def _seeded(self, request: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a request, with a seed of its own where the engine takes one."""
        del request
        return options


class WatchedHf(Watched):
    """Stands before lm-eval's ``HFLM``."""

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = False) -> str:
        """Return the text up to the token that ends it, special tokens included."""
        if not isinstance(tokens, int):
            tokens = self._ended(tokens)
        text = super().tok_decode(tokens, skip_special_tokens=skip_special_tokens)  # type: ignore[misc]
        return str(text)

    def _model_generate(
        self, context: Any, max_length: int, stop: list[str], **options: Any
    ) -> Any:
        if self.think_end_token:
            end = str(super().tok_decode(self.eot_token_id, skip_special_tokens=False))  # type: ignore[misc,attr-defined]
            stop = [each for each in stop if each == end]
        generate = super()._model_generate  # type: ignore[misc]
        found = hf_batch(self.kept, generate, context, max_length, stop, options)
        # A batch runs until its last row is done: rows may hold more than their answer.
        for prompt, row in zip(
            context[:, -_TAIL:].tolist(), found[:, context.shape[1] :].tolist(), strict=True
        ):
            answer = self._ended(row)
            text = self.tok_decode(answer)
            is_at_limit = len(answer) == len(row) and not any(
                each and each in text for each in stop
            )
            self._ends.append(_End(is_at_limit, self._lead(prompt, answer, text)))
        if self._progress is not None:
            self._progress.add(len(found))
        return found

    def _ended(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens before the first that ends an answer."""
        final = self._final()
        ended = (place for place, token in enumerate(tokens) if token in final)
        return tokens[: next(ended, len(tokens))]

    def _lead(self, prompt: list[int], answer: Sequence[int], text: str) -> str:
        """Return the white space between a prompt and its answer that is not in its `text`."""
        if self.think_end_token:  # lm-eval strips the white space before an answer after thinking
            return ""
        # Not the `tok_decode` above: a prompt may hold, or be padded with, tokens that end answers.
        before, both = (
            str(super(WatchedHf, self).tok_decode(tokens, skip_special_tokens=False))  # type: ignore[misc]
            for tokens in (prompt, [*prompt, *answer])
        )
        if not (both.startswith(before) and both.endswith(text)):
            return ""
        lead = both[len(before) : len(both) - len(text)]
        return lead if lead.isspace() else ""

    def _final(self) -> set[int]:
        """Return the tokens that end an answer: the model's, and the tokenizer's."""
        config = getattr(self.model, "generation_config", None)  # type: ignore[attr-defined]
        stated = getattr(config, "eos_token_id", None)
        ids = stated if isinstance(stated, (list, tuple)) else [stated]
        return {each for each in (*ids, self.eot_token_id) if each is not None}  # type: ignore[attr-defined]


class WatchedVllm(Watched):
    """Stands before lm-eval's ``VLLM``."""

    def _seeded(self, request: Any, options: dict[str, Any]) -> dict[str, Any]:
        if not options.get("temperature") or options.get("do_sample") is False:
            return options
        place = f"{request.task_name} {request.doc_id} {request.idx} {self._round}"
        text = f"{self.sample_seed} {place}"
        seed = int.from_bytes(sha256(text.encode()).digest()[:4])
        return {**options, "seed": seed}

    def _model_generate(self, *arguments: Any, generate: bool = False, **options: Any) -> Any:
        ask = super()._model_generate  # type: ignore[misc]
        with self._told():
            if generate and self.kept is not None:
                prompts, parameters = options["requests"], options["sampling_params"]
                found, before = vllm_outputs(self, ask, prompts, parameters)
                if before and self._progress is not None:
                    self._progress.add(before)
            else:
                found = ask(*arguments, generate=generate, **options)
        if generate:
            self._ends.extend(_End(each.outputs[0].finish_reason == "length") for each in found)
        return found

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Have vLLM tell how far it is; lm-eval switches its bar off."""
        engine, progress = self.model, self._progress  # type: ignore[attr-defined]
        if progress is None:
            yield
            return
        ask, bar = engine.generate, EngineBar(progress)
        engine.generate = lambda *given, **options: ask(*given, **(options | {"use_tqdm": bar}))
        try:
            yield
        finally:
            del engine.generate


class _End(NamedTuple):
    """What lm-eval does not tell of an answer."""

    is_at_limit: bool
    """Whether it stopped at its limit."""

    lead: str = ""
    """White space before it that lm-eval's text of it lacks."""


class _Hook:
    """Stands in for lm-eval's cache hook, which is called with every answer in their order."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept
        self.ends: deque[_End] = deque()
        self.found: dict[str, _End] = {}

    def add_partial(self, attr: str, req: Iterable[Any], res: Any) -> None:
        """Take note of an answer and pass it on."""
        prompt = next(iter(req))
        end = self.found[prompt] = self.ends.popleft()
        self.kept.add_partial(attr, req, end.lead + res)


def history_key(chat_history: Any) -> str:
    """Return a hash of a chat, whatever template is applied to it."""
    return key_of("chat", [dict(each) for each in chat_history])


def answer_limit(
    options: Mapping[str, Any],
    context: int | None,
    default: int = 256,
    longest: int | None = None,
) -> int:
    """Return how many tokens an answer may take.

    Args:
        options: what the task, or the user in its place, says of generation.
        context: of the model, in tokens; None where that is not known.
        default: lm-eval's own limit.
        longest: tokens of the longest prompt, where the user gave the limit.
    """
    asked = _asked(options, default)
    return asked if context is None else _within(asked, context, longest)


def _within(asked: int, context: int, longest: int | None = None) -> int:
    """Return the limit of an answer: half of the context, or what the longest prompt leaves."""
    room = context // 2 if longest is None else max(context // 2, context - longest)
    return min(asked, max(1, room))


def _rounds(prompts: Sequence[str]) -> Iterator[list[int]]:
    """Yield indices so that no prompt comes twice in a round; nearly always one round."""
    rounds: list[list[int]] = []
    seen: dict[str, int] = {}
    for place, prompt in enumerate(prompts):
        number = seen[prompt] = seen.get(prompt, -1) + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(place)
    yield from rounds


def _asked(options: Mapping[str, Any], default: int) -> int:
    named = (options[name] for name in _LIMIT_NAMES if options.get(name) is not None)
    return int(next(named, default))


def _limited(options: Mapping[str, Any], limit: int) -> dict[str, Any]:
    others = {name: value for name, value in options.items() if name not in _LIMIT_NAMES}
    return {**others, "max_gen_toks": limit}
