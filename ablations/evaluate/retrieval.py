"""Does a pocket model know what target-language words mean? Retrieval of words at mid depth.

Every content word stands in a sentence of its category, in English and in the target language; its
state is that of its last token after the middle layer, a mean over several owners' names. From
all states of a language their mean is subtracted. A word is found if, of all English words, its
translation has the nearest state, by cosine. No arithmetic takes part, so a base can be gated by
it without a look at the scores that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from ablations.pocket.lexicon import CATEGORIES, NAMES, RARE, Category, Language, say
from ablations.pocket.world import Change, Description, Has, Sentence
from ablations.train.drift import hidden_states
from layerswap_method.frozen import Frozen

OWNERS = NAMES[:4]
_ITEM, _COUNT, _ANIMAL = (
    next(word for word in CATEGORIES[category] if word not in RARE)
    for category in ("item", "number", "animal")
)


class Retrieval(Frozen):
    """Shares in [0, 1] of target-language words whose nearest English word is their translation."""

    common: float
    """Of the common half of the words; chance is one in the number of all words."""

    rare: float
    """Of the half that is rare in the base's text."""


def measure_retrieval(folder: Path) -> Retrieval:
    """Return how many words the pocket model in `folder` finds; seconds on a CPU.

    Raises:
        InputError: for a model that cannot be loaded.
    """
    import torch

    words = [(category, word) for category in CATEGORIES for word in CATEGORIES[category]]
    texts = [
        text
        for language in get_args(Language)
        for category, word in words
        for text in _carriers(category, word, language)
    ]
    # Each is [layers + 1, tokens, hidden], the embeddings first.
    states = [
        each[(len(each) - 1) // 2, -1].double() for each in hidden_states(folder, None, texts)
    ]
    meant = torch.stack(states).reshape(2, len(words), len(OWNERS), -1).mean(dim=2)
    centred = meant - meant.mean(dim=1, keepdim=True)
    english, target = torch.nn.functional.normalize(centred, dim=-1)
    found = (target @ english.T).argmax(dim=1) == torch.arange(len(words))
    is_rare = torch.tensor([word in RARE for _, word in words])
    common, rare = (float(found[each].double().mean()) for each in (~is_rare, is_rare))
    return Retrieval(common=common, rare=rare)


def _carriers(category: Category, word: str, language: Language) -> Iterator[str]:
    """Yield a word behind what comes before it in a sentence, for each owner."""
    for owner in OWNERS:
        before, _, _ = _sentence(category, owner).render(language).partition("_")
        yield f"{before}{say(word, language)}"


def _sentence(category: Category, owner: str) -> Sentence:
    """Return a sentence with ``_`` in the word's place and common words elsewhere."""
    if category == "item":
        return Has(owner, int(_COUNT), "_")
    if category == "number":
        return Has(owner, "_", _ITEM)
    if category == "animal":
        return Description("_", _ANIMAL)
    if category == "adjective":
        return Description(_ANIMAL, "_")
    return Change(owner, "_", int(_COUNT), _ITEM)
