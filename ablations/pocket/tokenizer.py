"""The word-level tokenizer of the pocket world."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ablations.pocket.lexicon import NAMES, NUMBERS, SENTENCES, TRANSLATION

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID = 0, 1, 2, 3


@cache
def vocabulary() -> dict[str, int]:
    """Return token → id; the four special tokens come first, then all others in a fixed order."""
    frames = ". ? , : solve answer english swahili the answer is jibu ni + - = ( )"
    templates = " ".join(text for pair in SENTENCES.values() for text in pair.values())
    pairs = " ".join(word for pair in TRANSLATION.items() for word in pair)
    tokens = [
        *("<pad>", "<bos>", "<eos>", "<unk>"),
        *(*NUMBERS, *NAMES, *pairs.split(), *frames.split()),
        *(word for word in templates.split() if not word.startswith("{")),
    ]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def build_tokenizer(model_max_length: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer: whitespace separates tokens, ``<bos>`` is put in front by default.

    Args:
        model_max_length: the context of the model, in tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(vocabulary(), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )
