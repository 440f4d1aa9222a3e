"""The common part of both engines: stored answers are reused, and ends of requests recorded.

`Answering` stands before lm-eval's model classes. It differs from them where they go wrong, or HF
from vLLM; the tests named show each case:

- An answer may take half of the context at most. lm-eval reserves the task's `max_gen_toks`: where
  a small model has less context, HF stops with an assertion, and vLLM's prompt is cut to nothing.
  A limit that the user sets may take all that the longest prompt leaves (`test_outcomes`).
- For log-likelihoods lm-eval keeps two tokens more of a long prompt on HF than on vLLM; here both
  keep vLLM's number (`test_outcomes`).
- Answers are stored as they arrive (`test_answers`); lm-eval has those of vLLM when all are there.
- Prompts become tokens as texts do in training (`test_tokens`). lm-eval puts an EOS behind a prompt
  where the tokenizer adds one, and decides for a batch on HF by its first prompt.
- Where a prompt is cut on the left, its BOS stays (`test_outcomes`).
- Chats become the same prompts on both engines (`test_chat`): lm-eval passes ``enable_thinking``
  to templates on vLLM even where nobody set it.
- Thinking that was cut off is no answer (`test_chat`).
- A sampled answer has a seed of its own on vLLM, by seed, repeat and item: it does not depend on
  what else is sent (`test_answers`). HF draws whole batches, from torch's seed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

from lm_eval.models.utils import postprocess_generated_text

from ablations.engines.answers import Answer, AnswerFile, key_of
from ablations.engines.chat import chat_prompt
from ablations.machine.progress import Step, show_step
from ablations.models.tokens import prompt_tokens
from ablations.scoring.observed import Outcome
from layerswap_method.errors import LayerSwapError

_LIMIT_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the limit of an answer in tasks; lm-eval takes the first in this order."""


@dataclass
class Question:
    """A request of lm-eval."""

    request: Any
    key: str
    """Hash under which its answer is stored."""

    draw: str | None = None
    """Key of a sampled answer among those to the same prompt; None where nothing is drawn."""

    options: Mapping[str, Any] | None = None
    """Settings of generation, with a limit that fits the context."""

    outcome: Outcome | None = None
    """Facts of the request; complete once its answer has ended."""


class Answering:
    """Answers requests from `answers`, and the others by `_generate` or `_score`.

    `outcomes` has what happened to the requests of each item since it was last emptied, and
    `stored_keys` the keys of their answers, if these are stored.
    """

    answers: AnswerFile | None = None
    """Stored answers; None stores nothing."""

    think_end_token: str | None = None
    """Token that ends the thinking, which is not part of an answer."""

    template_options: Mapping[str, Any] = MappingProxyType({})
    """What chat templates get besides messages."""

    refuses_nan = True
    """Whether log-likelihoods that are no finite numbers are an error."""

    keeps_task_limit = False
    """Whether the limit of an answer is the user's own."""

    sample_seed = ""
    """Source of the seeds of sampled answers."""

    item_starts: Mapping[str, int] = MappingProxyType({})
    """Task -> number of its first item in the group that it is evaluated with."""

    max_length: int
    max_gen_toks: int
    tokenizer: Any
    cache_hook: Any
    _left: Sequence[Question]
    _new: dict[str, Answer]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return an answer per request; see lm-eval."""
        earlier = Counter[str]()
        questions = []
        for request in requests:
            prompt, options = request.args
            draw = None
            if is_sampled(options):
                item = f"{request.task_name} {request.doc_id} {request.idx}"
                draw = f"{self.sample_seed} {item} {earlier[prompt]}"
            earlier[prompt] += 1
            questions.append(Question(request, self._key("generate", prompt, options, draw), draw))
        self._fit(questions)
        return [str(answer.response) for answer in self._answer(questions, self._generate)]

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness per request; see lm-eval."""
        questions = [
            Question(request, self._key("loglikelihood", *request.args)) for request in requests
        ]
        answers = self._answer(questions, self._score_texts)
        return [cast(tuple[float, bool], answer.response) for answer in answers]

    def tok_encode(
        self, string: str | Sequence[str], add_special_tokens: bool | None = None
    ) -> Any:
        """Return the tokens of a prompt, as training has them; of each of several in a list."""
        if not isinstance(string, str):
            return [self.tok_encode(text, add_special_tokens) for text in string]
        if add_special_tokens is None:
            return prompt_tokens(self.tokenizer, string)
        return self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"]

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt of messages; see lm-eval."""
        return chat_prompt(
            self.tokenizer,
            chat_history,
            self.template_options,
            add_generation_prompt=add_generation_prompt,
        )

    _generate: Callable[[Sequence[Question]], None]
    """Generates answers, and hands each to `_keep`."""

    _score: Callable[[Sequence[tuple[Question, list[int], list[int]]]], None]
    """Scores the second tokens of each pair after the first, and hands that to `_keep`."""

    faulty_tensor: Callable[[], str | None]
    """Returns the first weight of the engine that has NaN or infinity, None where none has."""

    def _key(self, *question: Any) -> str:
        return key_of(*question) if self.answers is None else self.answers.key(*question)

    def _fit(self, questions: Sequence[Question]) -> None:
        """Give each answer a limit that fits the context."""
        context = self.max_length
        prompts = [self.tok_encode(question.request.args[0]) for question in questions]
        longest = max(map(len, prompts), default=0) if self.keeps_task_limit else None
        for question, prompt in zip(questions, prompts, strict=True):
            length = len(prompt)
            options = question.request.args[1]
            wanted = task_limit(options, self.max_gen_toks)
            limit = within(wanted, context, longest)
            others = {name: value for name, value in options.items() if name not in _LIMIT_NAMES}
            question.options = {**others, "max_gen_toks": limit}
            question.outcome = Outcome(
                is_cut=(is_cut := length > context - limit),
                prompt_tokens=length,
                context_tokens=context,
                limit_tokens=limit,
                wanted_tokens=wanted,
                has_bos=self._begins_with_bos(prompt) if is_cut else None,
                item=self._item(question),
            )

    def _item(self, question: Question) -> int:
        """Return the number of the item as records have it."""
        request = question.request
        return int(request.doc_id) + self.item_starts.get(request.task_name, 0)

    def _score_texts(self, questions: Sequence[Question]) -> None:
        """Have lm-eval encode the texts, which ends in `_loglikelihood_tokens`."""
        super().loglikelihood([question.request for question in questions], disable_tqdm=True)  # type: ignore[misc]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[Any]:
        room = self.max_length - 1
        pairs = []
        for question, (_texts, context, continuation) in zip(self._left, requests, strict=True):
            length = len(context) + len(continuation)
            item = self._item(question)
            is_cut = length > room
            question.outcome = Outcome(
                is_cut,
                length,
                room + 1,
                has_bos=self._begins_with_bos(context) if is_cut else None,
                item=item,
            )
            context = self._cut(context, max(1, room - len(continuation)))
            pairs.append((question, context, continuation))
        self._score(pairs)
        return []

    def _answer(
        self, questions: Sequence[Question], send: Callable[[Sequence[Question]], None]
    ) -> list[Answer]:
        """Return what is stored, and `send` the rest to the engine, equal questions once."""
        answers = dict[str, Answer]()
        left = dict[str, Question]()
        for question in questions:
            stored = self._stored(question)
            if stored is None:
                left.setdefault(question.key, question)
            else:
                answers[question.key] = stored
        # What is stored takes no time, so it is done before the step begins.
        self._done, self._total = len(questions) - len(left), len(questions)
        self._items = len(
            {(question.request.task_name, question.request.doc_id) for question in questions}
        )
        self._task = questions[0].request.task_name if questions else ""
        self._advance(0)
        if left:
            self._left, self._new = list(left.values()), {}
            send(self._left)
            answers |= self._new
        outcomes = self.__dict__.setdefault("outcomes", {})
        keys = self.__dict__.setdefault("stored_keys", {})
        for question in questions:
            item = (question.request.task_name, question.request.doc_id)
            outcomes.setdefault(item, []).append(answers[question.key].outcome)
            if self.answers is not None:
                keys.setdefault(item, []).append(question.key)
        return [answers[question.key] for question in questions]

    def _stored(self, question: Question) -> Answer | None:
        answer = None if self.answers is None else self.answers.take(question.key)
        if self.answers is None or answer is None or not self._has_room(question, answer.outcome):
            return None
        was = answer.outcome
        if self.think_end_token and was.is_truncated and was.is_thinking is None:
            return None  # from before it was noted whether the thinking was cut off
        self.answers.count(question.key)
        return answer

    def _has_room(self, question: Question, was: Outcome) -> bool:
        """Return whether a stored answer had the room that it would have now."""
        now = question.outcome
        if was.is_cut and was.has_bos is None:  # from before a prompt that is cut kept its BOS
            if now is None or now.has_bos:
                return False
            was = replace(was, has_bos=False)
        if now is None:
            return was.context_tokens == self.max_length
        return replace(was, is_truncated=None) == now

    def _begins_with_bos(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[0] == self.tokenizer.bos_token_id

    def _cut(self, tokens: list[int], room: int) -> list[int]:
        """Return the end of a prompt that fits `room`, after its BOS where it has one."""
        if len(tokens) <= room:
            return tokens
        bos = tokens[:1] if self._begins_with_bos(tokens) and room > 1 else []
        return bos + tokens[len(tokens) - room + len(bos) :]

    def _keep_text(
        self, question: Question, text: str, until: Sequence[str], *, is_truncated: bool
    ) -> None:
        """Take a generated text from the engine, whole; the answer is what follows the thinking."""
        mark = self.think_end_token
        is_thinking = (
            mark is not None
            and is_truncated
            and mark not in text
            and not question.request.args[0].rstrip().endswith(mark)
        )
        answer = "" if is_thinking else postprocess_generated_text(text, list(until), mark)
        self._keep(question, answer, is_truncated, is_thinking=is_thinking)

    def _keep(
        self,
        question: Question,
        response: Any,
        is_truncated: bool | None = None,
        *,
        is_thinking: bool | None = None,
    ) -> None:
        """Take an answer from the engine."""
        assert question.outcome is not None
        if not isinstance(response, str):
            self._check_finite(question, is_finite=math.isfinite(response[0]))
        answer = Answer(
            response,
            replace(question.outcome, is_truncated=is_truncated, is_thinking=is_thinking),
        )
        self._new[question.key] = answer
        if self.answers is not None:
            self.answers.keep(question.key, answer)
        self._advance(1)

    def _check_finite(self, question: Question, *, is_finite: bool) -> None:
        """Raise an error that names the task, and the tensor if the engine has one at fault."""
        if is_finite or not self.refuses_nan:
            return
        task, tensor = question.request.task_name, self.faulty_tensor()
        if tensor is not None:
            why = f"{tensor} has values that are no finite numbers"
        else:
            why = "no weight that the engine shows is at fault, so it may overflow; try float32"
        raise LayerSwapError(f"{task}: log-likelihoods are not finite: {why}")

    def _advance(self, answered: int) -> None:
        self._done += answered
        if self._total:
            done = self._items * self._done / self._total
            show_step(Step(self._task, done, self._items, is_unit_of_whole=True))
            if self._done == self._total:
                show_step(Step(f"{self._task}: scoring"))


def longest_first(question: Question) -> tuple[int, str]:
    """Return the key by which lm-eval sorts requests for text."""
    assert question.outcome is not None
    return -question.outcome.prompt_tokens, question.request.args[0]


def task_limit(options: Mapping[str, Any], default: int = 256) -> int:
    """Return a task's limit of an answer in tokens; lm-eval's own by default."""
    named = (options[name] for name in _LIMIT_NAMES if options.get(name) is not None)
    return int(float(next(named, default)))


def within(wanted: int, context: int, longest: int | None = None) -> int:
    """Return the limit of an answer: half of the context, or what the longest prompt leaves.

    Args:
        wanted: the task's limit, in tokens.
        context: of the model, in tokens.
        longest: tokens of the longest prompt, where the user gave the limit.
    """
    room = context // 2 if longest is None else max(context // 2, context - longest)
    return min(wanted, max(1, room))


def is_sampled(options: Mapping[str, Any]) -> bool:
    """Return whether answers are drawn, by the options of generation."""
    drawn = options.get("do_sample")
    return (bool(options.get("temperature")) and drawn is not False) or bool(drawn)
