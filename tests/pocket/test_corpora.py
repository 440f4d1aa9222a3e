"""The streams: deterministic, covered by the tokenizer, free of target-language math."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from ablations.pocket import build, exercises
from ablations.pocket.batches import IGNORED, draw_batches, encode
from ablations.pocket.corpora import MIXES, Document, draw_documents
from ablations.pocket.lexicon import TRANSLATION
from ablations.pocket.tasks import draw_items
from ablations.pocket.tokenizer import BOS_ID, EOS_ID, PAD_ID, build_tokenizer, vocabulary

DIGESTS = {
    "base": "717706d089ebd3f7",
    "copying": "42be9e60a2023a4b",
    "language": "70e78472ce2848fb",
    "task": "9351882a507074a1",
}
"""Stream -> start of the SHA-256 of its first documents, in `build.VERSION` 1."""

GRAMMAR = (
    "ana sasa ngapi kwa pamoja wana ya nini ni katika nani jibu tafsiri kiswahili rudia hesabu"
)
SWAHILI = frozenset(TRANSLATION.values()) | frozenset(GRAMMAR.split())


def sample(name: str, number: int, seed: int = 0) -> list[Document]:
    zipf = 1.5 if name == "base" else 0.0
    stream = draw_documents(name, seed, swahili_zipf=zipf, few_shot_share=0.2)
    return list(itertools.islice(stream, number))


def tokens(document: Document) -> list[str]:
    return [token for e in document for token in f"{e.prompt} {e.answer}".split()]


def is_target_math(words: list[str]) -> bool:
    """Swahili next to arithmetic or its frame, or an answered how-many question in Swahili."""
    arithmetic = {"=", "+", "-", "solve", "steps"}
    return bool(SWAHILI & set(words)) and bool(arithmetic & set(words))


@pytest.mark.parametrize("name", MIXES)
def test_no_stream_holds_target_language_math_or_unknown_tokens(name: str) -> None:
    known = set(vocabulary())
    for document in sample(name, 6000):
        assert not is_target_math(tokens(document))
        assert set(tokens(document)) <= known
        for exercise in document:
            if "ngapi" in exercise.prompt.split():
                asks_for_words = {"rudia", "kiingereza"} & set(exercise.prompt.split())
                assert asks_for_words, exercise


def test_the_check_finds_target_language_math() -> None:
    row = draw_items("math", "sw", "test", 1, 0)[0]
    assert is_target_math(f"{row['prompt']} {row['solution']}".split())


def test_the_task_stream_is_english_only_and_all_math() -> None:
    for document in sample("task", 3000):
        assert not SWAHILI & set(tokens(document))
        assert all(e.prompt.startswith("solve :") for e in document)


def test_base_sees_every_kind_and_english_math() -> None:
    starts = {" ".join(tokens(document)[:2]) for document in sample("base", 6000)}
    assert {"solve :", "question :", "translate english", "tafsiri kiswahili"} <= starts
    assert {"repeat :", "rudia :", "count :", "hesabu :"} <= starts


@pytest.mark.parametrize("name", MIXES)
def test_streams_follow_their_seed_and_version(name: str) -> None:
    """What a seed gives may change with `build.VERSION` only, which has testbeds built anew."""
    documents = sample(name, 300, seed=5)
    assert documents == sample(name, 300, seed=5)
    assert documents != sample(name, 300, seed=6)
    assert build.VERSION == 1
    assert hashlib.sha256(repr(documents).encode()).hexdigest()[:16] == DIGESTS[name]


def test_evaluation_content_is_never_trained_on() -> None:
    solved = {
        e.key
        for name in ("base", "task")
        for document in sample(name, 6000)
        for e in document
        if e.prompt.startswith(("solve :", "question :"))
    }
    assert solved
    assert {exercises.split_of(key) for key in solved} == {"train"}


def test_translations_of_sentences_are_held_in_too() -> None:
    kinds = {
        exercises.split_of(e.key)
        for document in sample("language", 6000)
        for e in document
        if e.prompt.startswith(("translate", "tafsiri")) and len(e.key.split()) > 1
    }
    assert kinds == {"train"}


def test_tokenizer_round_trips_every_token_in_order() -> None:
    tokenizer = build_tokenizer(256)
    text = " ".join(token for token in vocabulary() if not token.startswith("<"))
    ids = tokenizer(text)["input_ids"]
    assert ids == [BOS_ID, *range(4, len(vocabulary()))]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer("zebra", add_special_tokens=False)["input_ids"] == [tokenizer.unk_token_id]


def test_loss_is_on_answers_and_end_only() -> None:
    known = vocabulary()
    document = (
        exercises.Exercise("count : apples answer :", "1 .", "x"),
        exercises.Exercise("count : pens pens answer :", "2 .", "y"),
    )
    ids, labels = encode(document, known)
    assert ids[0] == BOS_ID
    learned = [label for label in labels if label != IGNORED]
    assert learned == [known["1"], known["."], known["2"], known["."], EOS_ID]
    assert [i for i, label in zip(ids, labels, strict=True) if label != IGNORED] == learned


def test_batches_are_padded_within_budget_and_follow_their_seed() -> None:
    def draw(seed: int) -> list[tuple[list[list[int]], list[list[int]]]]:
        stream = draw_documents("base", 0, swahili_zipf=1.5, few_shot_share=0.1)
        batches = draw_batches(stream, vocabulary(), tokens_per_batch=512, seed=seed)
        return [(b.ids, b.labels) for b in itertools.islice(batches, 60)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    for ids, labels in draw(1):
        lengths = {len(row) for row in ids}
        assert lengths == {len(row) for row in labels}
        assert len(lengths) == 1
        assert len(ids) * lengths.pop() <= 512
        for row, row_labels in zip(ids, labels, strict=True):
            pads = [label for i, label in zip(row, row_labels, strict=True) if i == PAD_ID]
            assert set(pads) <= {IGNORED}
