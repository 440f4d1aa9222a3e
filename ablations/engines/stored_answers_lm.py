"""lm-eval's model object over an engine: stored answers are reused, ends of requests recorded.

`StoredAnswersLM` and the engines differ from lm-eval's model classes where these go wrong, or HF
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

from lm_eval.api.model import LM
from lm_eval.models.utils import postprocess_generated_text

from ablations.engines.answers import Answer, AnswerFile
from ablations.engines.chat import chat_prompt, template_options
from ablations.engines.questions import (
    Question,
    fitting_limit,
    read_questions,
    task_limit,
    with_limit,
)
from ablations.machine.progress import Step, show_step
from ablations.models.tokens import cut_left, pair_tokens, prompt_tokens
from ablations.scoring.evaluation import TaskFailed
from ablations.scoring.observed import Key, Outcome
from ablations.scoring.protocol import EvaluationProtocol

if TYPE_CHECKING:
    from layerswap_method.tensors import TensorMix


@dataclass(frozen=True)
class Prompt:
    """What an engine is given to generate an answer."""

    text: str
    tokens: list[int]
    """Those of its tokens that fit the context beside the answer."""

    outcome: Outcome
    """What is known before the answer, such as how many tokens the whole text has."""

    options: Mapping[str, Any]
    """Settings of generation, with the limit ``max_gen_toks`` in tokens."""

    seed: int | None
    """Of a sampled answer; None where nothing is drawn."""

    may_think: bool
    """Whether an answer may begin with thinking, in which stop strings do not count."""

    @property
    def longest_first(self) -> tuple[int, str]:
        """The key by which lm-eval sorts requests for text."""
        return -self.outcome.prompt_tokens, self.text


class TextPair(NamedTuple):
    """What an engine is given to score: two texts, of which the second follows the first."""

    context: list[int]
    """Its tokens that fit the context of the model, never none."""

    continuation: list[int]


class Generated(NamedTuple):
    """What an engine generated."""

    text: str
    """All of it, with the thinking."""

    until: Sequence[str]
    """The answer ends before the first of these strings."""

    is_truncated: bool
    """Whether it ended at its limit."""

    is_finite: bool = True
    """False where the model's numbers were NaN or infinite, so that the text says nothing."""


class LoadedModel(Protocol):
    """A loaded model. It hands every result over as it ends, with the place of its input."""

    tokenizer: Any

    @property
    def max_length(self) -> int:
        """Length that the model takes in tokens, prompt and answer together."""

    @property
    def max_gen_toks(self) -> int:
        """The limit of an answer in tokens where its task has none."""

    @property
    def prefix_token_id(self) -> int:
        """The token after which a text is scored that follows nothing."""

    def generate(self, prompts: Sequence[Prompt], keep: Callable[[int, Generated], None]) -> None:
        """Generate an answer to each prompt."""

    def score(
        self, pairs: Sequence[TextPair], keep: Callable[[int, tuple[float, bool]], None]
    ) -> None:
        """Find the log-likelihood of each continuation in nats, and whether it is greedy."""

    def faulty_tensor(self) -> str | None:
        """Return the first weight that has NaN or infinity, None where none is seen to have."""

    def check_names(self, names: Iterable[str]) -> None:
        """Check, as far as can be known before a load, that tensors of these names are its weights.

        Raises:
            LayerSwapError: for a name that it does not have, or a weight that none of them names.
        """

    def load(self, mixes: Mapping[str, TensorMix]) -> None:
        """Replace all weights: name of a tensor in a checkpoint -> what it is computed of.

        Raises:
            LayerSwapError: where that failed; what it holds is then no model.
        """

    def reset_cache(self) -> None:
        """Drop the keys and values that were computed with the weights before a load.

        Raises:
            LayerSwapError: where requests are still running.
        """

    def close(self) -> None:
        """Give back its memory and end its processes; it cannot be used after that."""


_Kind = Literal["generate", "loglikelihood"]
_KINDS: Mapping[str, _Kind] = {"generate_until": "generate", "loglikelihood": "loglikelihood"}
"""Name of lm-eval's method -> what is wanted."""

Requests = Mapping[str, Sequence[Any]]
"""Name of lm-eval's method -> its requests."""

_Keep = Callable[[int, Answer], None]
_Ask = Callable[[LoadedModel, Sequence[Question], _Keep], None]
"""Asks an engine, and hands over the answers by the places of their questions."""


class StoredAnswersLM(LM):  # type: ignore[misc]
    """Answers from stored answers, and what they lack from an engine, if there is one."""

    def __init__(
        self,
        engine: LoadedModel | None,
        protocol: EvaluationProtocol,
        template: Any = None,
        answer_file: AnswerFile | None = None,
        *,
        sample_seed: str = "",
        item_starts: Mapping[str, int] = MappingProxyType({}),
        is_probe: bool = False,
    ) -> None:
        """Ask nothing yet.

        Args:
            engine: answers what is not stored; None asks nothing but what `can_answer`.
            protocol: of the request.
            template: the tokenizer whose chat template writes the prompts, if one does.
            answer_file: stored answers, to which new ones are added as they arrive; None stores
                none.
            sample_seed: source of the seeds of sampled answers.
            item_starts: task -> number of its first item in the group that it is evaluated with.
            is_probe: whether the questions are of no task, so that they are no measure of what is
                done, and log-likelihoods that are no finite numbers are no error.
        """
        super().__init__()
        self._engine, self._answer_file = engine, answer_file
        self._think_end = protocol.think_end_token
        self._has_user_limit = protocol.gen_kwargs.max_gen_toks is not None
        self._template, self._template_options = template, template_options(protocol)
        self._sample_seed, self._item_starts = sample_seed, item_starts
        self._is_probe = is_probe
        self.outcomes: dict[Key, list[Outcome]] = {}
        """What happened to the requests of each item so far."""
        self.stored_keys: dict[Key, list[str]] = {}
        """The keys of their answers, if these are stored."""

    @property
    def tokenizer_name(self) -> str:
        """Name under which lm-eval would store requests; it stores none here."""
        return "" if self._template is None else str(self._template.name_or_path)

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt of messages; see lm-eval."""
        return chat_prompt(
            self._template,
            chat_history,
            self._template_options,
            add_generation_prompt=add_generation_prompt,
        )

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return an answer per request; see lm-eval."""
        questions = self._read("generate", requests)
        prompts = self._prompts(questions)

        def ask(engine: LoadedModel, left: Sequence[Question], keep: _Keep) -> None:
            def keep_text(place: int, generated: Generated) -> None:
                self._check_finite(left[place], is_finite=generated.is_finite)
                keep(place, self._without_thinking(prompts[left[place].key], generated))

            engine.generate([prompts[question.key] for question in left], keep_text)

        outcomes = {key: prompt.outcome for key, prompt in prompts.items()}
        return [str(answer.response) for answer in self._answer(questions, outcomes, ask)]

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness per request; see lm-eval."""

        def ask(engine: LoadedModel, left: Sequence[Question], keep: _Keep) -> None:
            pairs, outcomes = zip(*(self._pair(engine, q) for q in left), strict=True)

            def keep_score(place: int, score: tuple[float, bool]) -> None:
                self._check_finite(left[place], is_finite=math.isfinite(score[0]))
                keep(place, Answer(score, outcomes[place]))

            engine.score(pairs, keep_score)

        answers = self._answer(self._read("loglikelihood", requests), {}, ask)
        return [cast(tuple[float, bool], answer.response) for answer in answers]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Raise: tasks that want this are refused before any is asked (`load_tasks`)."""
        raise NotImplementedError

    def can_answer(self, requests: Requests) -> bool:
        """Return whether there is an engine, or a stored answer to each of the requests."""
        return self._engine is not None or all(
            self._stored(question, None) is not None
            for method, of_method in requests.items()
            for question in self._read(_KINDS[method], of_method)
        )

    def _read(self, kind: _Kind, requests: Sequence[Any]) -> list[Question]:
        settings = None if self._answer_file is None else self._answer_file.settings_hash
        return read_questions(kind, requests, settings, self._sample_seed)

    def _prompts(self, questions: Sequence[Question]) -> dict[str, Prompt]:
        """Return key -> prompt, whose answer has a limit that fits the context; {} without engine.

        Stored answers say themselves what room they had.
        """
        if self._engine is None:
            return {}
        tokenizer, context = self._engine.tokenizer, self._engine.max_length
        tokens = [prompt_tokens(tokenizer, question.prompt) for question in questions]
        longest = max(map(len, tokens), default=0) if self._has_user_limit else None
        prompts = dict[str, Prompt]()
        for question, whole in zip(questions, tokens, strict=True):
            assert not isinstance(question.asked, str)
            wanted = task_limit(question.asked, self._engine.max_gen_toks)
            limit = fitting_limit(wanted, context, longest)
            outcome = self._outcome(question, whole, len(whole), context - limit, context)
            seed = None
            if question.draw is not None:
                seed = int.from_bytes(sha256(question.draw.encode()).digest()[:4])
            prompt = Prompt(
                question.prompt,
                cut_left(tokenizer, whole, context - limit),
                replace(outcome, limit_tokens=limit, wanted_tokens=wanted),
                with_limit(question.asked, limit),
                seed,
                self._think_end is not None,
            )
            prompts.setdefault(question.key, prompt)
        return prompts

    def _pair(self, engine: LoadedModel, question: Question) -> tuple[TextPair, Outcome]:
        """Return the tokens of a question of likelihood that fit the context, and their outcome."""
        context, continuation = pair_tokens(
            engine.tokenizer, question.prompt, str(question.asked), engine.prefix_token_id
        )
        room, length = engine.max_length - 1, len(context) + len(continuation)
        outcome = self._outcome(question, context, length, room, engine.max_length)
        context = cut_left(engine.tokenizer, context, max(1, room - len(continuation)))
        return TextPair(context, continuation), outcome

    def _outcome(
        self, question: Question, tokens: Sequence[int], length: int, room: int, context: int
    ) -> Outcome:
        """Return the outcome of a question as far as it is known before its answer."""
        assert self._engine is not None
        is_cut = length > room
        has_bos = bool(tokens) and tokens[0] == self._engine.tokenizer.bos_token_id
        return Outcome(
            is_cut=is_cut,
            prompt_tokens=length,
            context_tokens=context,
            has_bos=has_bos if is_cut else None,
            item=question.doc_id + self._item_starts.get(question.task, 0),
        )

    def _answer(
        self, questions: Sequence[Question], outcomes: Mapping[str, Outcome], ask: _Ask
    ) -> list[Answer]:
        """Return what is stored, and `ask` the engine for the rest, equal questions once.

        `outcomes` has what is known of a question before its answer, by keys.
        """
        answers = dict[str, Answer]()
        left = dict[str, Question]()
        for question in questions:
            stored = self._stored(question, outcomes.get(question.key))
            if stored is None:
                left.setdefault(question.key, question)
            else:
                answers[question.key] = stored
                if self._answer_file is not None:
                    self._answer_file.count(question.key)
        # What is stored takes no time, so it is done before the step begins.
        progress = _Progress(questions, len(questions) - len(left), is_probe=self._is_probe)
        if left:
            assert self._engine is not None, (
                "without one, `can_answer` has said that all are stored"
            )
            asked = list(left.values())

            def keep(place: int, answer: Answer) -> None:
                key = asked[place].key
                answers[key] = answer
                if self._answer_file is not None:
                    self._answer_file.keep(key, answer)
                progress.advance()

            ask(self._engine, asked, keep)
        for question in questions:
            item = (question.task, question.doc_id)
            self.outcomes.setdefault(item, []).append(answers[question.key].outcome)
            if self._answer_file is not None:
                self.stored_keys.setdefault(item, []).append(question.key)
        return [answers[question.key] for question in questions]

    def _stored(self, question: Question, now: Outcome | None) -> Answer | None:
        """Return the stored answer to a question, None where there is none that still serves.

        One with the right key serves where it had the room that it would have now: see `_had_room`.
        `now` is what the engine's prompt says of that, None of a likelihood and without an engine.
        """
        answer = None if self._answer_file is None else self._answer_file.take(question.key)
        if self._answer_file is None or answer is None or not self._had_room(question, answer, now):
            return None
        was = answer.outcome
        if self._think_end and was.is_truncated and was.is_thinking is None:
            return None  # from before it was noted whether the thinking was cut off
        return answer

    def _had_room(self, question: Question, answer: Answer, now: Outcome | None) -> bool:
        """Return whether a stored answer had the room that it would have now.

        A generated text did if its prompt has the same tokens and limit now; a likelihood if the
        engine has the same context. Without an engine nothing is known of now: the answer serves,
        but where the user's limit may be more than the half of the context that it had.
        """
        was = answer.outcome
        if was.is_cut and was.has_bos is None:  # from before a prompt that is cut kept its BOS
            if now is None or now.has_bos:
                return False
            was = replace(was, has_bos=False)
        if now is not None:
            return replace(was, is_truncated=None) == now
        if self._engine is not None:
            return was.context_tokens == self._engine.max_length
        if isinstance(question.asked, str) or not self._has_user_limit:
            return True
        # The room of a longer answer depends on the other prompts.
        return task_limit(question.asked, 0) <= was.context_tokens // 2

    def _without_thinking(self, prompt: Prompt, generated: Generated) -> Answer:
        """Return the answer, which is what follows the thinking."""
        mark = self._think_end
        is_thinking = (
            mark is not None
            and generated.is_truncated
            and mark not in generated.text
            and not prompt.text.rstrip().endswith(mark)
        )
        text = postprocess_generated_text(generated.text, list(generated.until), mark)
        return Answer(
            "" if is_thinking else text,
            replace(prompt.outcome, is_truncated=generated.is_truncated, is_thinking=is_thinking),
        )

    def _check_finite(self, question: Question, *, is_finite: bool) -> None:
        """Raise an error that names the task, and the tensor if the engine has one at fault."""
        if is_finite or self._is_probe:
            return
        assert self._engine is not None
        if (tensor := self._engine.faulty_tensor()) is not None:
            why = f"{tensor} has values that are no finite numbers"
        else:
            why = "no weight that the engine shows is at fault, so it may overflow; try float32"
        raise TaskFailed(question.task, f"log-likelihoods are not finite: {why}")


class _Progress:
    """Shows how many items are answered, of all questions of a call."""

    def __init__(self, questions: Sequence[Question], done: int, *, is_probe: bool) -> None:
        self._scope: Literal["unit"] | None = None if is_probe else "unit"
        self._done, self._total = done, len(questions)
        self._items = len({(question.task, question.doc_id) for question in questions})
        self._task = questions[0].task if questions else ""
        self._show()

    def advance(self) -> None:
        self._done += 1
        self._show()

    def _show(self) -> None:
        if self._total:
            done = self._items * self._done / self._total
            show_step(Step(self._task, done, self._items, scope=self._scope))
            if self._done == self._total:
                show_step(Step(f"{self._task}: scoring"))
