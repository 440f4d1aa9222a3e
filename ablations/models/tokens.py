"""The tokens of a text, for training and for evaluation alike.

Where a tokenizer puts a token before a text by itself (BOS, as Llama's does) and the text does not
begin with it, that token stands first. So a chat whose template writes no BOS has one where the
tokenizer adds it: lm-eval does so, and peers' scores are made that way. A token that a tokenizer
puts *behind* a text, an EOS, is left out: it would end a prompt before its answer. A space that a
tokenizer puts before a text by itself (Llama 2, Mistral 0.1) stands before a prompt, and before no
text that follows another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def prompt_tokens(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text from its beginning on."""
    first = _first_tokens(tokenizer)
    is_written = first and text.startswith(tokenizer.convert_ids_to_tokens(first[:1])[0])
    tokens = _tokens(tokenizer, text)
    return tokens if is_written else first + tokens


def following_tokens(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text that follows another."""
    if _adds_space(tokenizer):
        line_break, both = (_tokens(tokenizer, part) for part in ("\n", f"\n{text}"))
        if both[: len(line_break)] == line_break:  # no token holds it and more
            return both[len(line_break) :]
    return _tokens(tokenizer, text)


def pair_tokens(
    tokenizer: Any, context: str, continuation: str, prefix: int
) -> tuple[list[int], list[int]]:
    """Return the tokens of two texts of which the second follows the first, as lm-eval has them.

    Space at the end of the first becomes that at the beginning of the second.

    Args:
        tokenizer: of the model.
        context: the first.
        continuation: the second; not empty.
        prefix: the token that a second one follows where the first is empty.
    """
    if not context:
        tokens = _tokens(tokenizer, continuation)
        return ([prefix], tokens) if tokens[0] != prefix else (tokens[:1], tokens[1:])
    first = context.rstrip()
    tokens = prompt_tokens(tokenizer, first)
    both = prompt_tokens(tokenizer, context + continuation)
    return tokens, both[len(tokens) :]


def cut_left(tokenizer: Any, tokens: list[int], room: int) -> list[int]:
    """Return the end of a text that fits `room` tokens, after its BOS where it has one."""
    if len(tokens) <= room:
        return tokens
    has_bos = tokens[0] == tokenizer.bos_token_id and room > 1
    bos = tokens[:1] if has_bos else []
    return bos + tokens[len(tokens) - room + len(bos) :]


def _tokens(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text without those that a tokenizer puts around it."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@lru_cache(8)
def _adds_space(tokenizer: Any) -> bool:
    """Return whether a tokenizer puts a space before every text by itself."""
    return bool(tokenizer.decode(2 * _tokens(tokenizer, "a")).strip() == "a a")


@lru_cache(8)
def _first_tokens(tokenizer: Any) -> list[int]:
    """Return the tokens that a tokenizer puts before a text by itself."""
    text_tokens = _tokens(tokenizer, "a")
    all_tokens = list(tokenizer("a")["input_ids"])
    for start in range(len(all_tokens)):
        if all_tokens[start : start + len(text_tokens)] == text_tokens:
            return all_tokens[:start]
    return []
