"""Chat templates and think tokens of tokenizers, and how they get into lm-eval's model objects.

Reads tokenizers; loads no weights. A live engine serves models that bring templates of their own,
so the template is set for each model before it is evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ablations.models.load import read_tokenizer
from ablations.models.templates import CHAT, check_ends
from ablations.scoring.protocol import Protocol
from layerswap_method.errors import InputError, first_line


def chat_template(folder: Path) -> str:
    """Return the chat template of the tokenizer in `folder`, the default one of several.

    Raises:
        InputError: where there is no tokenizer or no template.
    """
    templates = _tokenizer(folder).chat_template
    template: str | None = templates.get("default") if isinstance(templates, dict) else templates
    if not template:
        raise InputError(
            f"{folder}: its tokenizer has no chat template; leave out apply_chat_template, or put "
            "the chat_template.jinja of a model that was trained with one into the folder"
        )
    return template


def has_template(folder: Path) -> bool:
    """Return whether the tokenizer in `folder` has a chat template, by its files alone."""
    if any(folder.glob("chat_template*")) or any(folder.glob("additional_chat_templates/*")):
        return True
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(isinstance(settings, dict) and settings.get("chat_template"))


def check_protocol(protocol: Protocol, folders: Iterable[Path]) -> None:
    """Check that the models in `folders` can be prompted by `protocol`; no model is loaded.

    Raises:
        InputError: with every problem.
    """
    problems = []
    for folder in dict.fromkeys(folders):
        try:
            _check(protocol, folder)
        except InputError as error:
            problems.append(error.message)
    if problems:
        raise InputError("\n".join(problems))


def set_protocol(lm: Any, protocol: Protocol, folder: Path) -> None:
    """Set the prompts and generation of an lm-eval model object by `protocol`.

    The template is that of the model in `folder`.

    Raises:
        InputError: as `chat_template`.
    """
    is_vllm = hasattr(lm, "hf_chat_template")
    lm.think_end_token = protocol.think_end_token
    lm.enable_thinking = protocol.enable_thinking
    lm.keeps_task_limit = protocol.gen_kwargs.max_gen_toks is not None
    if not is_vllm:  # lm-eval's vLLM class passes enable_thinking on by itself
        lm.chat_template_args = _thinking(protocol)
    if protocol.apply_chat_template:
        lm.tokenizer.chat_template = template = chat_template(folder)
        if is_vllm:
            lm.hf_chat_template = template


def _check(protocol: Protocol, folder: Path) -> None:
    if protocol.apply_chat_template:
        template = chat_template(folder)
        options: dict[str, Any] = {"add_generation_prompt": True, **_thinking(protocol)}
        check_ends(_tokenizer(folder), template, folder, **options)
        try:
            _tokenizer(folder).apply_chat_template(
                CHAT, tokenize=False, chat_template=template, **options
            )
        except Exception as error:  # a template is a program, which may raise anything
            raise InputError(f"{folder}: its chat template fails: {first_line(error)}") from error
    token = protocol.think_end_token
    if token is not None and token not in _tokenizer(folder).get_vocab():
        raise InputError(
            f"{folder}: think_end_token {token!r} is not in the vocabulary of its tokenizer"
        )


def _thinking(protocol: Protocol) -> dict[str, bool]:
    thinking = protocol.enable_thinking
    return {} if thinking is None else {"enable_thinking": thinking}


@lru_cache(64)
def _tokenizer(folder: Path) -> Any:
    try:
        return read_tokenizer(folder)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: its tokenizer cannot be read: {first_line(error)}") from error
