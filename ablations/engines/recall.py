"""Scores from stored answers: lm-eval's filters and metrics run, and no model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.engines.answers import Answer, AnswerFile
from ablations.engines.lm_eval_backend import run_tasks
from ablations.engines.questions import (
    asked_limit,
    draw_of,
    generation_key,
    likelihood_key,
    rounds,
)
from ablations.scoring.outcomes import outcomes
from ablations.scoring.records import Backend, Evaluation, EvaluationRequest


class _Unanswered(Exception):
    """There is a question without a stored answer."""


def recall(
    answers: AnswerFile,
    request: EvaluationRequest,
    *,
    model: str,
    backend: Backend,
    folder: Path,
) -> Evaluation | None:
    """Return the evaluation of a model whose answers are stored, None where one is missing.

    Args:
        answers: of the model.
        request: what to ask.
        model: name of the model in the result.
        backend: name of the engine in the result.
        folder: with the model's tokenizer, for chat templates.

    Raises:
        InputError: for unknown tasks, or a task whose data cannot be read.
    """
    lm = _recalling(folder, is_chat=request.protocol.is_chat)
    try:
        return run_tasks(lm, request, model=model, backend=backend, folder=folder, answers=answers)
    except _Unanswered:
        return None


def _recalling(folder: Path, *, is_chat: bool) -> Any:
    from lm_eval.api.model import LM
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    class Recalling(LM):  # type: ignore[misc]
        """Gives stored answers."""

        answers: AnswerFile
        sample_seed = ""
        keeps_asked_limit = False
        chat_template_args: Mapping[str, Any]

        def __init__(self) -> None:
            super().__init__()
            self.tokenizer = AutoTokenizer.from_pretrained(folder) if is_chat else None

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            found = [""] * len(requests)
            for number, places in enumerate(rounds([each.args[0] for each in requests])):
                for place in places:
                    request = requests[place]
                    draw = draw_of(self.sample_seed, request, number)
                    answer = self._take(request, generation_key(self.answers, request, draw))
                    asked, context = asked_limit(request.args[1], 0), answer.outcome.context_tokens
                    if self.keeps_asked_limit and asked > context // 2:
                        raise _Unanswered  # its room depends on the other prompts
                    found[place] = str(answer.response)
            return found

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            answers = [self._take(each, likelihood_key(self.answers, each)) for each in requests]
            return [(float(each.response[0]), bool(each.response[1])) for each in answers]

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            raise _Unanswered

        def chat_template(self, chat_template: bool | str = False) -> str:
            return str(HFLM.chat_template(self, chat_template))

        @property
        def tokenizer_name(self) -> str:
            return str(folder)

        def apply_chat_template(self, chat_history: Any, *arguments: Any, **options: Any) -> str:
            return str(HFLM.apply_chat_template(self, chat_history, *arguments, **options))

        def _take(self, request: Any, key: str) -> Answer:
            answer = self.answers.take(key)
            if answer is None:
                raise _Unanswered
            self.answers.count(key)
            item = (request.task_name, request.doc_id)
            outcomes(self).setdefault(item, []).append(answer.outcome)
            return answer

    return Recalling()
