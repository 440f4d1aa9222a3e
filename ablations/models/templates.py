"""Messages as a prompt by a tokenizer's chat template: the same in training and evaluation."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

TEMPLATE_DATE = datetime.date(2024, 7, 26)
"""What templates that write today's date get for it (the one that Llama 3.2's own states without a
clock). Prompts that differ from day to day could not be compared, and no answer would be reused."""


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    *,
    add_generation_prompt: bool,
    **options: Any,
) -> str:
    """Return messages as text by the tokenizer's own template.

    Args:
        tokenizer: of transformers.
        messages: ``role`` and ``content`` of each.
        add_generation_prompt: whether the beginning of an answer follows.
        options: what the template may ask for besides.

    Raises:
        Exception: whatever the template raises, which is a program.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    # In the place of transformers' own, which compiles a template once; since 5.24 a function among
    # the options becomes text.
    compiled = _compile_jinja_template(tokenizer.get_chat_template())
    compiled.globals["strftime_now"] = TEMPLATE_DATE.strftime
    return str(
        tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **options,
        )
    )


def has_date(template: str) -> bool:
    """Return whether a template may write the date."""
    return "strftime_now" in template
