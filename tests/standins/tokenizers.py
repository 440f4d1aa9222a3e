"""Word-level tokenizers for the tiny models. Knows tokenizers; not models."""

from __future__ import annotations

from pathlib import Path

from tests.standins.zoo import VOCAB

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>"]


def words(extra: tuple[str, ...] = (), size: int = VOCAB) -> list[str]:
    """Return `size` tokens in id order, `extra` last."""
    plain = [f"w{i}" for i in range(size - len(SPECIAL) - len(extra))]
    return [*SPECIAL, *plain, *extra]


def write_tokenizer(folder: Path, tokens: list[str], chat_template: str | None = None) -> None:
    """Write a tokenizer whose ids are the positions in `tokens`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
