"""A word-level tokenizer for stand-in models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def save_word_tokenizer(folder: Path, words: Sequence[str], **settings: Any) -> None:
    """Save a tokenizer that splits at white space; `words` begin with pad, bos, eos and unk."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        **settings,
    ).save_pretrained(folder)
