"""Prompts of Belebele and MMLU, and MMLU's examples: the first five of the item's own subject.

The prompts are functions because lm-eval compiles a template at every use: 84,000 times for MMLU,
three minutes instead of four seconds. lm-eval loads this module while it reads the task files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.samplers import ContextSampler


def write_belebele(item: Mapping[str, Any]) -> str:
    """Return the prompt of one item of Belebele, up to where its letter follows."""
    return (
        f"P: {item['flores_passage']}\nQ: {item['question'].strip()}\n"
        f"A: {item['mc_answer1']}\nB: {item['mc_answer2']}\n"
        f"C: {item['mc_answer3']}\nD: {item['mc_answer4']}\nAnswer:"
    )


def write_mmlu(item: Mapping[str, Any]) -> str:
    """Return the prompt of one item of MMLU, up to where its letter follows."""
    return (
        f"{item['question'].strip()}\nA. {item['option_a']}\nB. {item['option_b']}\n"
        f"C. {item['option_c']}\nD. {item['option_d']}\nAnswer:"
    )


def mmlu_test_items(items: Any) -> Any:
    """Return the test items."""
    return _select_split(items, "test")


def mmlu_dev_items(items: Any) -> Any:
    """Return the items that serve as examples."""
    return _select_split(items, "dev")


def _select_split(items: Any, split: str) -> Any:
    return items.select([index for index, name in enumerate(items["split"]) if name == split])


class FirstOfSubject(ContextSampler):  # type: ignore[misc]
    """lm-eval's `first_n`, within the subject of the test item."""

    def sample(
        self, n: int, eval_doc: dict[str, Any] | None = None, df: Any = None, **options: Any
    ) -> Sequence[dict[str, Any]]:
        """Return the first `n` examples that share the subject of `eval_doc`.

        Raises:
            ValueError: when lm-eval does not show the item, as it does where examples and items
                are of one split.
        """
        if eval_doc is None:
            raise ValueError("MMLU's examples depend on the item, which lm-eval did not show")
        return [example for example in self.df if example["subject"] == eval_doc["subject"]][:n]
