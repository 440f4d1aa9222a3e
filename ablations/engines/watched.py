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
- Answers are stored as they arrive, and what is stored is not asked again
  (`ablations.engines.answers`).
- An answer is the text that follows the prompt, as with vLLM. lm-eval has HF decode it alone, where
  many tokenizers (SentencePiece's, word-level ones) drop the space before the first word; those of
  byte-level BPE do not.

Knows lm-eval's model interface by its methods' names; imports neither lm-eval nor an engine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

from ablations.engines.answer_hooks import End, GenerationHook, LikelihoodHook
from ablations.engines.answers import Answer, AnswerFile
from ablations.engines.item_progress import EngineBar, ItemProgress
from ablations.engines.questions import (
    Question,
    asked_limit,
    draw_of,
    generation_key,
    is_sampled,
    likelihood_key,
    limited,
    rounds,
    within,
)
from ablations.scoring.outcomes import Outcome, outcomes

_PART = 1024
"""Log-likelihoods that vLLM is asked for at once: they are stored when all of them are there."""

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

    _hook: GenerationHook
    """Takes note of the answers of the round that is asked now."""

    cache_hook: Any
    """lm-eval's, which is called with every answer."""

    answers: AnswerFile | None = None
    """Answers that are stored; None stores nothing."""

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return an answer per request; see lm-eval."""
        answers = [""] * len(requests)
        self._progress = ItemProgress(requests) if requests else None
        for number, places in enumerate(rounds([request.args[0] for request in requests])):
            chosen = [requests[place] for place in places]
            found = self._generate_round(chosen, number, disable_tqdm)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness per request; see lm-eval."""
        self._progress = ItemProgress(requests) if requests else None
        room: int = self.max_length  # type: ignore[attr-defined]
        found = [self._stored(likelihood_key(self.answers, each), room) for each in requests]
        left = [each for each, answer in zip(requests, found, strict=True) if answer is None]
        self._count(len(requests) - len(left))
        hook = LikelihoodHook(self.cache_hook, self.answers, self._count)
        self.cache_hook = hook
        try:
            if left:
                super().loglikelihood(left, disable_tqdm=disable_tqdm)  # type: ignore[misc]
        finally:
            self.cache_hook = hook.next
            self._progress = None
        answers = [
            hook.found[each.args] if answer is None else answer
            for each, answer in zip(requests, found, strict=True)
        ]
        self._note(requests, answers)
        return [cast(tuple[float, bool], answer.response) for answer in answers]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        room = self.max_length - 1  # type: ignore[attr-defined]
        fitted = []
        for names, context, continuation in requests:
            length = len(context) + len(continuation)
            if isinstance(self.cache_hook, LikelihoodHook):
                self.cache_hook.outcomes[names] = Outcome(length > room, length, room + 1)
            kept = context if length <= room else context[-max(1, room - len(continuation)) :]
            fitted.append((names, kept, continuation))
        return list(super()._loglikelihood_tokens(fitted, **options))  # type: ignore[misc]

    def _generate_round(self, requests: Sequence[Any], number: int, disable: bool) -> list[str]:
        """Answer requests of which no two have the same prompt."""
        questions = self._questions(requests, number)
        found = [self._stored(question.key, question.outcome) for question in questions]
        pairs = zip(questions, found, strict=True)
        left = {each.prompt: each for each, answer in pairs if answer is None}
        self._count(len(questions) - len(left))
        self._hook = hook = GenerationHook(self.cache_hook, self.answers, left)
        self.cache_hook = hook
        try:
            if left:
                fitted = [question.request for question in left.values()]
                super().generate_until(fitted, disable_tqdm=disable)  # type: ignore[misc]
        finally:
            self.cache_hook = hook.next
        answers = [
            hook.found[question.prompt] if answer is None else answer
            for question, answer in zip(questions, found, strict=True)
        ]
        self._note(requests, answers)
        return [str(answer.response) for answer in answers]

    def _questions(self, requests: Sequence[Any], number: int) -> list[Question]:
        """Return requests with limits that fit; `number` is that of their round."""
        context: int = self.max_length  # type: ignore[attr-defined]
        limits = [asked_limit(request.args[1], self.max_gen_toks) for request in requests]  # type: ignore[attr-defined]
        prompts = [self.tok_encode(request.args[0]) for request in requests]  # type: ignore[attr-defined]
        longest = None
        if self.keeps_asked_limit and max(limits) > context // 2:
            longest = max(len(prompt) for prompt in prompts)
        found = []
        for request, asked, prompt in zip(requests, limits, prompts, strict=True):
            limit = within(asked, context, longest)
            draw = draw_of(self.sample_seed, request, number)
            fitted = copy.copy(request)
            options = self._seeded(limited(request.args[1], limit), draw)
            fitted.arguments = (request.args[0], options)
            found.append(
                Question(
                    fitted,
                    generation_key(self.answers, request, draw),
                    Outcome(
                        is_cut=len(prompt) > context - limit,
                        prompt_tokens=len(prompt),
                        context_tokens=context,
                        limit_tokens=limit,
                        asked_tokens=asked,
                        item=request.doc_id,
                    ),
                    hash(tuple(prompt)),
                )
            )
        return found

    def _stored(self, key: str, room: int | Outcome) -> Answer | None:
        """Return what is stored, where it was asked in the same `room`."""
        answer = None if self.answers is None else self.answers.take(key)
        if self.answers is None or answer is None:
            return None
        was = answer.outcome
        if room not in (was.context_tokens, replace(was, is_truncated=None)):
            return None
        self.answers.count(key)
        return answer

    def _count(self, answers: int) -> None:
        if answers and self._progress is not None:
            self._progress.add(answers)

    def _note(self, requests: Sequence[Any], answers: Sequence[Answer]) -> None:
        for request, answer in zip(requests, answers, strict=True):
            item = (request.task_name, request.doc_id)
            outcomes(self).setdefault(item, []).append(answer.outcome)

    def _seeded(self, options: dict[str, Any], draw: str) -> dict[str, Any]:
        """Return options of generation, with a seed of the draw where the engine takes one."""
        del draw
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
        found = super()._model_generate(context, max_length, stop, **options)  # type: ignore[misc]
        # A batch runs until its last row is done: rows may hold more than their answer.
        for prompt, row in zip(
            context[:, -_TAIL:].tolist(), found[:, context.shape[1] :].tolist(), strict=True
        ):
            answer = self._ended(row)
            text = self.tok_decode(answer)
            is_at_limit = len(answer) == len(row) and not any(
                each and each in text for each in stop
            )
            self._hook.ends.append(End(is_at_limit, self._lead(prompt, answer, text)))
        self._count(len(found))
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

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness per request, a part of them at a time."""
        parts = range(0, len(requests), _PART)
        found = [
            super(WatchedVllm, self).loglikelihood(requests[at : at + _PART], disable_tqdm)
            for at in parts
        ]
        return [answer for part in found for answer in part]

    def _seeded(self, options: dict[str, Any], draw: str) -> dict[str, Any]:
        if not is_sampled(options):
            return options
        return {**options, "seed": int.from_bytes(sha256(draw.encode()).digest()[:4])}

    def _model_generate(self, *arguments: Any, generate: bool = False, **options: Any) -> Any:
        ask = super()._model_generate  # type: ignore[misc]
        with self._told(), self._kept_one_by_one() if generate else nullcontext():
            found = ask(*arguments, generate=generate, **options)
        if generate:
            ends = (End(each.outputs[0].finish_reason == "length") for each in found)
            self._hook.ends.extend(ends)
        return found

    @contextmanager
    def _kept_one_by_one(self) -> Iterator[None]:
        """Store each answer when vLLM hands it out; lm-eval gets them when all are there."""
        from lm_eval.models.utils import postprocess_generated_text

        engine = self.model.llm_engine  # type: ignore[attr-defined]
        step = engine.step

        def step_and_keep() -> Any:
            outputs = step()
            for output in outputs:
                question = self._hook.by_tokens.get(hash(tuple(output.prompt_token_ids)))
                if output.finished and question is not None:
                    answer = output.outputs[0]
                    until = question.request.args[1].get("until")
                    text = postprocess_generated_text(answer.text, until, self.think_end_token)
                    self._hook.keep(question, text, answer.finish_reason == "length")
            return outputs

        engine.step = step_and_keep
        try:
            yield
        finally:
            del engine.step

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
