"""Retrieval of words: whole with a model that knows them, chance without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from ablations.evaluate import retrieval
from ablations.evaluate.retrieval import measure_retrieval
from ablations.pocket.build import PocketPaths
from ablations.pocket.lexicon import CATEGORIES, RARE, TRANSLATION
from ablations.pocket.tokenizer import build_tokenizer

WORDS = [word for category in CATEGORIES.values() for word in category]


def _states(known: set[str]) -> object:
    """Return a reading in which the middle layer holds the concept of the last word, if known.

    Other layers and tokens hold noise, and the target language lies elsewhere as a whole.
    """
    concept = {
        word: torch.randn(96, generator=torch.manual_seed(i)) for i, word in enumerate(WORDS)
    }
    english = {TRANSLATION[word]: word for word in WORDS}

    def read(_: Path, adapter: Path | None, texts: Sequence[str]) -> Iterator[torch.Tensor]:
        assert adapter is None
        generator = torch.manual_seed(-1)
        for text in texts:
            tokens = text.split()
            states = torch.randn(9, len(tokens), 96, generator=generator)
            word = tokens[-1]
            if word in concept:
                states[4, -1] = concept[word]
            elif (meaning := english[" ".join(tokens[-2:])]) in known:
                states[4, -1] = 3 * concept[meaning] + 5
            yield states

    return read


@pytest.mark.parametrize(
    ("known", "common", "rare"),
    [(set(WORDS), 1.0, 1.0), (set(WORDS) - RARE, 1.0, 0.0), (set(RARE), 0.0, 1.0)],
)
def test_it_reads_the_last_token_after_the_middle_layer_and_takes_the_means_out(
    monkeypatch: pytest.MonkeyPatch, known: set[str], common: float, rare: float
) -> None:
    monkeypatch.setattr(retrieval, "hidden_states", _states(known))
    found = measure_retrieval(Path())
    assert found.common == pytest.approx(common, abs=0.12)  # an unknown word may be found by chance
    assert found.rare == pytest.approx(rare, abs=0.12)


def test_every_word_ends_its_carriers_whole_and_known() -> None:
    tokenizer = build_tokenizer(64)
    for category, words in CATEGORIES.items():
        for word in words:
            for text, last in (
                *((each, word) for each in retrieval._carriers(category, word, "en")),
                *((each, TRANSLATION[word]) for each in retrieval._carriers(category, word, "sw")),
            ):
                assert f" {text}".endswith(f" {last}")
                assert "_" not in text
                assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


def test_a_model_that_learned_nothing_finds_few_words(tiny_pocket: PocketPaths) -> None:
    found = measure_retrieval(tiny_pocket.base)
    assert 0 <= found.common < 0.3
    assert 0 <= found.rare < 0.3
