"""Tasks of pairs: an item is two problems that only a model that reads can tell apart.

lm-eval loads this through the task files of `layerswap smol build`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask


class TwinTask(ConfigurableTask):  # type: ignore[misc]
    """A task of lm-eval whose items have two prompts each."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Take a task's file."""
        super().__init__(config={key: value for key, value in config.items() if key != "class"})

    def construct_requests(
        self, doc: Mapping[str, Any], ctx: Any, **options: Any
    ) -> list[Instance]:
        """Return a request for each prompt, or for each prompt with each worked answer."""
        options = {name: value for name, value in options.items() if "chat_template" not in name}
        if self.OUTPUT_TYPE == "generate_until":
            arguments = [(prompt, dict(self.config.generation_kwargs)) for prompt in doc["prompts"]]
        else:
            arguments = [(prompt, text) for prompt in doc["prompts"] for text in doc["solutions"]]
        return [
            Instance(request_type=self.OUTPUT_TYPE, doc=doc, arguments=pair, idx=number, **options)
            for number, pair in enumerate(arguments)
        ]


def score_answers(doc: Mapping[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """Return whether a gain and a loss are both right: by operation, and by the number.

    ``swapped`` is whether each problem has the operation of the other.
    """
    matches = [re.search(r"\d\s*([-+*/])\s*\d", answer) for answer in answers]
    operations = "".join(match[1] if match else "?" for match in matches)
    numbers = [re.findall(r"-?\d+", answer.partition("=")[2] or answer) for answer in answers]
    right = [
        digits[:1] == [str(answer)] for digits, answer in zip(numbers, doc["answers"], strict=True)
    ]
    return {
        "operation": float(operations == "+-"),
        "both_right": float(all(right)),
        "swapped": float(operations == "-+"),
    }


def score_result(doc: Mapping[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """Return whether both results are right where the prompt ends with the calculation."""
    return {"both_right": score_answers(doc, answers)["both_right"]}


def score_order(doc: Mapping[str, Any], scores: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Return whether log-likelihoods tell the two problems of a pair apart.

    ``order``: the second solution has higher log-odds over the first in the loss than in the gain;
    half if equal. ``both_right``: in each of the two, its own solution is likelier.
    """
    added_to_gain, taken_from_gain, added_to_loss, taken_from_loss = (score for score, _ in scores)
    gain, loss = taken_from_gain - added_to_gain, taken_from_loss - added_to_loss
    return {
        "order": float(loss > gain) + 0.5 * (loss == gain),
        "both_right": float(gain < 0 < loss),
    }
