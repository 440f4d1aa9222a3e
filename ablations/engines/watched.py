"""Both engines work alike: stored answers are reused, and how each request ended is recorded.

These classes stand before lm-eval's model classes (``class Model(WatchedHf, HFLM)``):

- An answer may take half of the context at most. lm-eval reserves the task's `max_gen_toks`, which
  may be more than a small model has: HF then stops with an assertion, and of vLLM's prompt its cut
  leaves nothing. A limit that the user sets may take all that the longest prompt leaves.
- With a `think_end_token`, the task's stop strings count only after the thinking, as with vLLM;
  lm-eval has HF stop at one inside it.
- A sampled answer has a seed of its own on vLLM, by seed, repeat and item: it does not depend on
  what else is asked. HF draws whole batches, from torch's seed.
- A prompt that does not fit with the answer is cut from the left, as lm-eval does: examples go
  first. For log-likelihoods lm-eval leaves HF two tokens more than vLLM; here both have vLLM's.
- Special tokens inside an answer stay in its text, as with vLLM, where stop strings must see them;
  the token that ends an answer, and what follows it, does not. (Word-level tokenizers put a space
  before each on HF; lm-eval tells vLLM to put none.)
- Answers are stored as they arrive (`ablations.engines.answers`). lm-eval hands them to its cache
  hook; vLLM's are stored when the engine ends them, for lm-eval gets them when all are there.
- An answer is the text that follows the prompt, as with vLLM. lm-eval has HF decode it alone, where
  many tokenizers (SentencePiece's, word-level ones) drop the space before the first word; those of
  byte-level BPE do not.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from ablations.engines.answers import Answer, AnswerFile
from ablations.engines.questions import (
    asked_limit,
    draw_of,
    generation_key,
    is_sampled,
    likelihood_key,
    limited,
    rounds,
    within,
)
from ablations.machine.progress import Step, tell
from ablations.scoring.outcomes import Outcome

_PART = 1024
"""Log-likelihoods that vLLM computes at once: they are stored when all of them are there."""

_TAIL = 8
"""Tokens of a prompt before which an answer is decoded: enough that none is at a text's start."""


@dataclass
class Question:
    """A request of lm-eval, with a limit that fits."""

    request: Any
    key: str
    outcome: Outcome | None = None
    """How it goes but for its end; None where that is not known yet."""

    tokens: int = 0
    """Hash of the prompt's tokens, where text is to be generated."""


class End(NamedTuple):
    """What lm-eval does not tell of a generated answer."""

    is_at_limit: bool
    lead: str = ""
    """White space before it that lm-eval's text of it lacks."""


class Watched:
    """What both engines share; `outcomes` has those of each item since it was emptied."""

    answers: AnswerFile | None = None
    """Answers that are stored; None stores nothing."""

    think_end_token: str | None = None
    """Ends the thinking, which is no part of an answer."""

    keeps_asked_limit: bool = False
    """Whether the limit of an answer is the user's own."""

    sample_seed: str = ""
    """What the seeds of sampled answers are derived from."""

    cache_hook: Any
    """lm-eval's, which is called with every answer."""

    _asked: dict[Any, Question]
    """Requests that the engine works on, by how lm-eval names them to its hook."""

    _answered: dict[Any, Answer]
    _ends: deque[End]
    _progress: tuple[str, int, int]
    """Task, number of items and of their requests."""

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return an answer per request; see lm-eval."""
        texts = [""] * len(requests)
        self._begin(requests)
        for number, places in enumerate(rounds([request.args[0] for request in requests])):
            questions = self._questions([requests[place] for place in places], number)
            names = [question.request.args[0] for question in questions]
            for place, answer in zip(places, self._answer(questions, names), strict=True):
                texts[place] = str(answer.response)
        return texts

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness per request; see lm-eval."""
        self._begin(requests)
        questions = [Question(each, likelihood_key(self.answers, each)) for each in requests]
        answers = self._answer(questions, [request.args for request in requests])
        return [cast(tuple[float, bool], answer.response) for answer in answers]

    def _begin(self, requests: Sequence[Any]) -> None:
        """Tell that `requests` begin; those that have an answer are told as items."""
        items = {(request.task_name, request.doc_id) for request in requests}
        self._done = 0
        if requests:
            self._progress = str(requests[0].task_name), len(items), len(requests)
            self._advance(0)

    def _advance(self, answered: int) -> None:
        task, items, total = self._progress
        self._done = min(self._done + answered, total)
        tell(Step(task, items * self._done / total, items))
        if answered and self._done == total:
            tell(Step(f"{task}: scoring"))

    def _answer(self, questions: Sequence[Question], names: Sequence[Any]) -> list[Answer]:
        """Return what is stored, and ask the rest, of which none has the name of another."""
        stored = [self._stored(question) for question in questions]
        pairs = list(zip(questions, names, stored, strict=True))
        left = [question.request for question, _, answer in pairs if answer is None]
        self._asked = {name: question for question, name, answer in pairs if answer is None}
        self._answered, self._ends = {}, deque()
        if len(left) < len(questions):
            self._advance(len(questions) - len(left))
        if left:
            hook, self.cache_hook = self.cache_hook, SimpleNamespace(add_partial=self._take)
            try:
                self._ask(left)
            finally:
                self.cache_hook = hook
        answers = [answer or self._answered[name] for _, name, answer in pairs]
        noted = self.__dict__.setdefault("outcomes", {})
        for question, answer in zip(questions, answers, strict=True):
            item = (question.request.task_name, question.request.doc_id)
            noted.setdefault(item, []).append(answer.outcome)
        return answers

    def _ask(self, requests: Sequence[Any]) -> None:
        """Have lm-eval ask the engine; it hands each answer to `_take`."""
        kind = requests[0].request_type
        getattr(super(), kind)(requests, disable_tqdm=True)

    def _take(self, attr: str, req: Any, res: Any) -> None:
        """Take note of an answer, as lm-eval's cache hook."""
        if attr == "loglikelihood":
            self._keep(req, (float(res[0]), bool(res[1])))
        else:
            end = self._ends.popleft()
            self._keep(req[0], end.lead + res, end.is_at_limit)

    def _keep(self, name: Any, response: Any, is_at_limit: bool | None = None) -> None:
        question = self._asked[name]
        assert question.outcome is not None
        answer = Answer(response, replace(question.outcome, is_truncated=is_at_limit))
        self._answered[name] = answer
        if self.answers is not None:
            self.answers.keep(question.key, answer)

    def _stored(self, question: Question) -> Answer | None:
        answer = None if self.answers is None else self.answers.take(question.key)
        if self.answers is None or answer is None or not self._has_room(question, answer.outcome):
            return None
        self.answers.count(question.key)
        return answer

    def _has_room(self, question: Question, was: Outcome) -> bool:
        """Return whether a stored answer had the room that it would have now."""
        if question.outcome is None:
            return bool(was.context_tokens == self.max_length)  # type: ignore[attr-defined]
        return replace(was, is_truncated=None) == question.outcome

    def _questions(self, requests: Sequence[Any], number: int) -> list[Question]:
        """Return requests for text, no two with the same prompt; `number` is their round's."""
        context: int = self.max_length  # type: ignore[attr-defined]
        limits = [asked_limit(request.args[1], self.max_gen_toks) for request in requests]  # type: ignore[attr-defined]
        prompts = [self.tok_encode(request.args[0]) for request in requests]  # type: ignore[attr-defined]
        longest = None
        if self.keeps_asked_limit and max(limits) > context // 2:
            longest = max(len(prompt) for prompt in prompts)
        questions = []
        for request, asked, prompt in zip(requests, limits, prompts, strict=True):
            limit = within(asked, context, longest)
            draw = draw_of(self.sample_seed, request, number)
            fitted = copy.copy(request)
            options = self._seeded(limited(request.args[1], limit), draw)
            fitted.arguments = (request.args[0], options)
            outcome = Outcome(
                is_cut=len(prompt) > context - limit,
                prompt_tokens=len(prompt),
                context_tokens=context,
                limit_tokens=limit,
                asked_tokens=asked,
                item=request.doc_id,
            )
            key = generation_key(self.answers, request, draw)
            questions.append(Question(fitted, key, outcome, hash(tuple(prompt))))
        return questions

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        room = self.max_length - 1  # type: ignore[attr-defined]
        fitted = []
        for name, context, continuation in requests:
            length = len(context) + len(continuation)
            question = self._asked[name]
            question.outcome = Outcome(
                length > room, length, room + 1, item=question.request.doc_id
            )
            kept = context if length <= room else context[-max(1, room - len(continuation)) :]
            fitted.append((name, kept, continuation))
        return list(super()._loglikelihood_tokens(fitted, **options))  # type: ignore[misc]

    def _seeded(self, options: dict[str, Any], draw: str) -> dict[str, Any]:
        """Return options of generation, with a seed of the draw where the engine takes one."""
        return options


class WatchedHf(Watched):
    """Stands before lm-eval's ``HFLM``."""

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = False) -> str:
        """Return the text up to the token that ends it, special tokens included."""
        if not isinstance(tokens, int):
            tokens = self._ended(tokens)
        text = super().tok_decode(tokens, skip_special_tokens=skip_special_tokens)  # type: ignore[misc]
        return str(text)

    def _take(self, attr: str, req: Any, res: Any) -> None:
        super()._take(attr, req, res)
        self._advance(1)

    def _model_generate(
        self, context: Any, max_length: int, stop: list[str], **options: Any
    ) -> Any:
        if self.think_end_token:
            end = str(super().tok_decode(self.eot_token_id, skip_special_tokens=False))  # type: ignore[misc,attr-defined]
            stop = [text for text in stop if text == end]
        rows = super()._model_generate(context, max_length, stop, **options)  # type: ignore[misc]
        # A batch runs until its last row is done: rows may hold more than their answer.
        for prompt, row in zip(
            context[:, -_TAIL:].tolist(), rows[:, context.shape[1] :].tolist(), strict=True
        ):
            answer = self._ended(row)
            text = self.tok_decode(answer)
            is_stopped = any(mark and mark in text for mark in stop)
            is_at_limit = len(answer) == len(row) and not is_stopped
            self._ends.append(End(is_at_limit, self._lead(prompt, answer, text)))
        return rows

    def _ended(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens before the first that ends an answer, by model or tokenizer."""
        config = getattr(self.model, "generation_config", None)  # type: ignore[attr-defined]
        stated = getattr(config, "eos_token_id", None)
        final = {self.eot_token_id, *(stated if isinstance(stated, (list, tuple)) else [stated])}  # type: ignore[attr-defined]
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


class WatchedVllm(Watched):
    """Stands before lm-eval's ``VLLM``."""

    def _ask(self, requests: Sequence[Any]) -> None:
        size = _PART if requests[0].request_type == "loglikelihood" else len(requests)
        for first in range(0, len(requests), size):
            super()._ask(requests[first : first + size])

    def _seeded(self, options: dict[str, Any], draw: str) -> dict[str, Any]:
        if not is_sampled(options):
            return options
        return {**options, "seed": int.from_bytes(sha256(draw.encode()).digest()[:4])}

    def _model_generate(self, *arguments: Any, generate: bool = False, **options: Any) -> Any:
        from lm_eval.models.utils import postprocess_generated_text

        engine = self.model.llm_engine  # type: ignore[attr-defined]
        step = engine.step
        names = {q.tokens: name for name, q in self._asked.items()} if generate else {}

        def step_and_keep() -> Any:
            outputs = step()
            for output in outputs:
                if not output.finished:
                    continue
                name = names.get(hash(tuple(output.prompt_token_ids)))
                if name is not None:
                    answer = output.outputs[0]
                    until = self._asked[name].request.args[1].get("until")
                    text = postprocess_generated_text(answer.text, until, self.think_end_token)
                    self._keep(name, text, answer.finish_reason == "length")
                self._advance(1)
            return outputs

        engine.step = step_and_keep
        try:
            outputs = super()._model_generate(*arguments, generate=generate, **options)  # type: ignore[misc]
        finally:
            del engine.step
        if generate:
            self._ends.extend(End(each.outputs[0].finish_reason == "length") for each in outputs)
        return outputs
