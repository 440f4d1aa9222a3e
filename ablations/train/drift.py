"""How far the hidden states of an expert are from the base's on the same text.

The measure is 1 - cosine, per token and layer, averaged over tokens. Not CKA: linear CKA does not
change when one model's states are rotated, and a swap puts layers of one expert on top of those of
another without a rotation between them. What counts is whether the states stay where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ablations.machine.progress import Step, counted, tell
from ablations.train.model import load_base, load_tokenizer, with_adapter

TOKENS = 128
"""Of each text, from its beginning: the base's states of all texts are kept in memory."""


def hidden_states(
    folder: Path, adapter: Path | None, texts: Sequence[str], words: Path | None = None
) -> Iterator[Any]:
    """Yield the hidden states of each text, [layers + 1, tokens, hidden], float32 on the CPU.

    The first are the embeddings, the last those after the final norm. Computed in float32: a light
    fine-tune moves them by less than the rounding of 16-bit formats.

    Args:
        folder: the checkpoint.
        adapter: a peft adapter on top of it.
        texts: at least one, none of them empty.
        words: folder of the tokenizer, for an expert its base's: states are compared token by
            token. None takes the checkpoint's own.

    Raises:
        InputError: for a model that cannot be loaded.
    """
    import torch

    name = folder.name if adapter is None else adapter.name
    tell(Step(f"loading {name}"))
    tokenizer = load_tokenizer(words or folder)
    model = load_base(folder)
    if adapter is not None:
        model = with_adapter(model, adapter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).eval()
    for text in counted(f"reading texts with {name}", texts, "texts"):
        # A rendered chat begins with the token that the tokenizer would put in front by itself.
        is_bare = not text.startswith(tokenizer.bos_token or "\0")
        ids = tokenizer(text, add_special_tokens=is_bare)["input_ids"][:TOKENS]
        ids = torch.tensor(ids, device=device)[None]
        with torch.no_grad():
            # peft hands the prefix to the model as a cache, which it must be allowed to have.
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        yield torch.stack([state[0].float().cpu() for state in states])


def drift(base: Sequence[Any], expert: Sequence[Any]) -> tuple[float, ...]:
    """Return the mean of 1 - cosine over all tokens, for the embeddings and after each layer.

    Args:
        base: [layers + 1, tokens, hidden] of each text.
        expert: the same texts, the same shapes.

    Returns:
        [layers + 1] values in [0, 2]; 0 where nothing moved.
    """
    import torch

    total, tokens = torch.zeros(len(base[0]), dtype=torch.float64), 0
    for mine, theirs in zip(base, expert, strict=True):
        cosine = torch.nn.functional.cosine_similarity(mine.double(), theirs.double(), dim=-1)
        total += (1 - cosine).clamp(min=0).sum(dim=-1)
        tokens += cosine.shape[-1]
    return tuple((total / tokens).tolist())
