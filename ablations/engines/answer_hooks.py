"""What stands before lm-eval's cache hook: every answer is noted and stored as it arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ablations.engines.answers import Answer, AnswerFile
from ablations.engines.questions import Question
from ablations.scoring.outcomes import Outcome


class End(NamedTuple):
    """What lm-eval does not tell of an answer."""

    is_at_limit: bool
    """Whether it stopped at its limit."""

    lead: str = ""
    """White space before it that lm-eval's text of it lacks."""


class GenerationHook:
    """Stands before lm-eval's cache hook, which is called with every answer in their order."""

    def __init__(
        self, hook: Any, answers: AnswerFile | None, questions: Mapping[str, Question]
    ) -> None:
        """Pass everything on to `hook`; `questions` are those of the prompts."""
        self.next = hook
        self.ends: deque[End] = deque()
        self.found: dict[str, Answer] = {}
        self.by_tokens = {each.tokens: each for each in questions.values()}
        self._answers = answers
        self._questions = questions

    def add_partial(self, attr: str, req: Iterable[Any], res: Any) -> None:
        """Take note of an answer and pass it on."""
        question = self._questions[next(iter(req))]
        end = self.ends.popleft()
        self.keep(question, end.lead + res, end.is_at_limit)
        self.next.add_partial(attr, req, end.lead + res)

    def keep(self, question: Question, text: str, is_at_limit: bool) -> None:
        """Take note of an answer."""
        answer = Answer(text, replace(question.outcome, is_truncated=is_at_limit))
        self.found[question.prompt] = answer
        if self._answers is not None:
            self._answers.keep(question.key, answer)


class LikelihoodHook:
    """Stands before lm-eval's cache hook, which is called with every log-likelihood."""

    def __init__(self, hook: Any, answers: AnswerFile | None, count: Callable[[int], None]) -> None:
        """Pass everything on to `hook`; `count` is told of every answer."""
        self.next = hook
        self.outcomes: dict[Any, Outcome] = {}
        self.found: dict[Any, Answer] = {}
        self._answers = answers
        self._count = count

    def add_partial(self, attr: str, req: Any, res: Any) -> None:
        """Take note of an answer and pass it on."""
        answer = Answer((float(res[0]), bool(res[1])), self.outcomes[req])
        self.found[req] = answer
        self._count(1)
        if self._answers is not None:
            self._answers.keep(self._answers.key("loglikelihood", *req), answer)
        self.next.add_partial(attr, req, res)
