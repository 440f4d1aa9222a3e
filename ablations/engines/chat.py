"""Chat templates and think tokens of tokenizers. Loads no weights.

The template is always that of the evaluated model's own folder: a live engine serves models that
bring templates of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import checkpoint_files
from ablations.models.load import read_tokenizer
from ablations.models.templates import TEMPLATE_DATE, has_date, render_chat
from ablations.scoring.protocol import EvaluationProtocol
from layerswap_method.errors import InputError, first_line
from layerswap_method.hub.partial import file_state


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


def check_protocol(protocol: EvaluationProtocol, folders: Iterable[Path]) -> None:
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


def chat_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in `folder`, which writes prompts by its chat template.

    Raises:
        InputError: as `chat_template`.
    """
    template = chat_template(folder)
    tokenizer = _tokenizer(folder)
    tokenizer.chat_template = template
    return tokenizer


def chat_prompt(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    options: Mapping[str, Any],
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Return the prompt of messages by the tokenizer's template.

    A system message that the template has no place for is the description of a task (one of the
    user's is refused by `check_protocol`). It stands before the first message then; lm-eval drops
    it.

    Raises:
        InputError: where the template fails.
    """
    system, *others = messages
    is_system = system["role"] == "system" and others
    if is_system and _system_fault(tokenizer, system["content"], options) is not None:
        first, *later = others
        content = f"{system['content'].rstrip()}\n\n{first['content']}"
        messages = [{**first, "content": content}, *later]
    try:
        return render_chat(
            tokenizer,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **options,
        )
    except Exception as error:  # a template is a program, which may raise anything
        raise InputError(
            f"{tokenizer.name_or_path}: its chat template fails: {first_line(error)}"
        ) from error


def date_notes(protocol: EvaluationProtocol, folder: Path) -> list[str]:
    """Return a note where the prompts may state a date."""
    if protocol.apply_chat_template and has_date(chat_template(folder)):
        day = TEMPLATE_DATE.strftime("%d %B %Y")
        return [f"the chat template may write today's date, which is {day} in every prompt"]
    return []


def _check(protocol: EvaluationProtocol, folder: Path) -> None:
    if protocol.apply_chat_template:
        tokenizer, options = chat_tokenizer(folder), template_options(protocol)
        user = {"role": "user", "content": "1 + 1 = ?"}
        try:
            render_chat(tokenizer, [user], add_generation_prompt=True, **options)
        except Exception as error:  # a template is a program, which may raise anything
            raise InputError(f"{folder}: its chat template fails: {first_line(error)}") from error
        text = protocol.system_instruction
        if text is not None and (fault := _system_fault(tokenizer, text, options)) is not None:
            raise InputError(
                f"{folder}: system_instruction: its chat template {fault}; leave the instruction "
                "out, or write it into the prompts of the tasks"
            )
    token = protocol.think_end_token
    if token is not None and token not in _tokenizer(folder).get_vocab():
        raise InputError(
            f"{folder}: think_end_token {token!r} is not in the vocabulary of its tokenizer"
        )


def _system_fault(tokenizer: Any, text: str, options: Mapping[str, Any]) -> str | None:
    """Return what a template does to a system message, None where that is in the prompt."""
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "1 + 1 = ?"}]
    try:
        prompt = render_chat(tokenizer, messages, add_generation_prompt=True, **options)
    except Exception as error:  # a template is a program, which may raise anything
        return f"refuses a system message ({first_line(error)})"
    return None if text.strip() in prompt else "leaves out the system message"


def template_options(protocol: EvaluationProtocol) -> dict[str, bool]:
    """Return what a template gets besides messages: of thinking, where the user says something.

    Templates ask whether it is defined (SmolLM3) or only whether it is true (GLM-4.5), so that a
    value of None would switch thinking off.
    """
    thinking = protocol.enable_thinking
    return {} if thinking is None else {"enable_thinking": thinking}


def _tokenizer(folder: Path) -> Any:
    """Return the tokenizer in `folder`, read again only where its files have changed."""
    files = sorted(checkpoint_files(folder))
    return _read_tokenizer(folder, tuple((file, *file_state(file)) for file in files))


@lru_cache(64)
def _read_tokenizer(folder: Path, states: tuple[tuple[Any, ...], ...]) -> Any:
    """Return the tokenizer of files that are in these `states`."""
    try:
        return read_tokenizer(folder)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: its tokenizer cannot be read: {first_line(error)}") from error
