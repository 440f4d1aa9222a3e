"""A model that says again what was stored of it, so that lm-eval scores without generating.

Knows lm-eval's requests and stored samples; loads no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablations.engines.lm_eval_backend import run_tasks
from ablations.engines.questions import history_key
from ablations.scoring.observed import PROMPT_TRUNCATED, TRUNCATED
from ablations.scoring.outcomes import Outcome, kept_notes, notes_on, outcomes
from ablations.scoring.records import Evaluation, EvaluationRequest, Sample
from layerswap_method.errors import LayerSwapError


class CannotReplay(LayerSwapError):
    """Stored answers are not those to the task's questions of today."""


def replay(old: Evaluation, samples: Sequence[Sample], request: EvaluationRequest) -> Evaluation:
    """Return what the filters and metrics of today make of stored answers.

    Prompts, answers and how they ended are those of `samples`.

    Args:
        old: the evaluation that they belong to.
        samples: of all its tasks.
        request: what was asked then.

    Raises:
        CannotReplay: where the task asks something else today, or what was asked is not known.
        InputError: where the task or its data is gone.
    """
    lm = _replayed(samples)
    found = run_tasks(lm, request, model=old.model, backend=old.backend)
    for task, asked in found.asked.items():
        if task not in old.asked:
            raise CannotReplay(
                f"{task}: its record was written before records told what was asked exactly; "
                "run the study again"
            )
        if asked != old.asked[task]:
            raise CannotReplay(
                f"{task}: its prompts, its items or its settings of generation have changed, so "
                "the stored answers are those to other questions; run the study again"
            )
    before = {(each.task, each.doc_id, _repeat(each)): each for each in samples}
    again = tuple(
        each.model_copy(update={"prompts": was.prompts, "prompt_hash": was.prompt_hash})
        for each in found.samples
        for was in (before[each.task, each.doc_id, _repeat(each)],)
    )
    said = set(notes_on(outcomes(lm)))
    fresh = [note for note in found.notes if note not in said]
    return found.model_copy(
        update={
            "samples": again,
            "notes": tuple(dict.fromkeys([*kept_notes(old.notes), *fresh])),
            "elapsed_s": old.elapsed_s,
            "answers_before": old.answers_before,
        }
    )


def _repeat(sample: Sample) -> int:
    return int(getattr(sample, "repeat", 0))


def _replayed(samples: Sequence[Sample]) -> Any:
    from lm_eval.api.model import LM

    class Replay(LM):  # type: ignore[misc]
        """Says what was said."""

        def __init__(self) -> None:
            super().__init__()
            self._said: dict[tuple[str, int, int], Sample] = {}
            for sample in samples:
                place = (sample.task, sample.doc_id, _repeat(sample))
                self._said.setdefault(place, sample)
            self._repeats: dict[str, int] = {}
            self.chats: dict[str, str] = {}

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return [str(each) for each in self._again("generate_until", requests)]

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            found = self._again("loglikelihood", requests)
            return [(float(each[0]), bool(each[1])) for each in found]

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            raise CannotReplay("log-likelihoods of whole texts are not scored again")

        def chat_template(self, chat_template: bool | str = False) -> str:
            return ""

        @property
        def tokenizer_name(self) -> str:
            return ""

        def apply_chat_template(
            self, chat_history: list[Mapping[str, Any]], *arguments: Any, **options: Any
        ) -> str:
            text = f"chat {history_key(chat_history)}"
            self.chats[text] = history_key(chat_history)
            return text

        def _again(self, kind: str, requests: Sequence[Any]) -> list[Any]:
            """Return what was said to `requests`, of the next repeat of all."""
            repeat = self._repeats.get(kind, 0)
            self._repeats[kind] = repeat + 1
            places: dict[tuple[str, int], int] = {}
            found = []
            for request in requests:
                item = (str(request.task_name), int(request.doc_id))
                place = places[item] = places.get(item, -1) + 1
                sample = self._said.get((*item, repeat))
                if sample is None or place >= len(sample.responses):
                    raise CannotReplay(
                        f"{item[0]}: there is no stored answer to item {item[1]}; run the study "
                        "again"
                    )
                found.append(sample.responses[place])
                if place == 0:
                    outcomes(self)[item] = _outcome(sample)
            return found

    return Replay()


def _outcome(sample: Sample) -> list[Outcome]:
    """Return how the requests of an item went, as far as its values tell."""
    if PROMPT_TRUNCATED not in sample.values:
        return []
    ended = sample.values.get(TRUNCATED)
    is_truncated = None if ended is None else ended == 1
    return [Outcome(sample.values[PROMPT_TRUNCATED] == 1, 0, 0, is_truncated)]
