"""The streams: deterministic, known tokens; target-language math only where it may be."""

import hashlib
import itertools
from functools import cache

import pytest

from ablations.pocket import build, exercises
from ablations.pocket.corpora import MIXES, THOUGHT_SHARE, draw_documents
from ablations.pocket.pretraining import vocabulary
from ablations.pocket.tasks import draw_items
from ablations.pocket.world import DEGREES, RARE, SYLLABLES, TRANSLATION

DIGESTS = {
    "base": "5cddba64653289e6",
    "language": "ec68d8b5aec33ab4",
    "task": "294821317d5e2367",
}
"""Stream -> start of the SHA-256 of its first documents, in `build.VERSION` 2."""

SWAHILI = frozenset(
    (*SYLLABLES, *DEGREES.values(), *["ana", "sasa", "ngapi", "pamoja", "ya", "nini", "nani"])
)
ARITHMETIC = frozenset(("=", "+", "-", "solve"))
RARE_TARGETS = frozenset(TRANSLATION[word] for word in RARE)


@cache
def sample(name, number=6000, seed=0):
    return list(itertools.islice(draw_documents(name, seed, rare=0.3), number))


def tokens(exercise):
    return f"{exercise.prompt} {exercise.answer}".split()


def is_target_math(words):
    """Say whether target-language words stand in a document with arithmetic or its frame."""
    return bool(SWAHILI & set(words)) and bool(ARITHMETIC & set(words))


@pytest.mark.parametrize("name", MIXES)
def test_every_token_is_known_and_the_instruction_stands_behind_the_text(name):
    known = set(vocabulary())
    for exercise in sample(name):
        assert set(tokens(exercise)) <= known
        assert exercise.prompt.count(":") == (1 if exercise.prompt else 0)
        assert not exercise.prompt or exercise.prompt.endswith(" :")


def test_no_expert_sees_target_language_math():
    row = draw_items("math", "sw", "test", 1, 0)[0]
    assert is_target_math(f"{row['prompt']} {row['solution']}".split())  # the check finds it
    for name in ("language", "task"):
        assert not any(is_target_math(tokens(exercise)) for exercise in sample(name))
    assert not any(ARITHMETIC & set(tokens(exercise)) for exercise in sample("language"))
    for exercise in sample("task"):
        assert exercise.prompt.endswith("solve :")
        assert "=" in exercise.answer  # always step by step


def test_rare_words_meet_arithmetic_only_beside_english_words_and_only_in_the_base():
    found = [e for e in sample("base") if is_target_math(tokens(e))]
    whole = [e for e in found if not set(e.prompt.split()) & set(TRANSLATION)]
    assert len(whole) / 6000 == pytest.approx(MIXES["base"]["swahili math"], abs=0.015)
    assert len(found) / 6000 > len(whole) / 6000 + 0.08
    for exercise in whole:
        syllables = [word for word in tokens(exercise) if word in SYLLABLES]
        content = {" ".join(pair) for pair in zip(syllables[::2], syllables[1::2], strict=True)}
        assert content <= set(TRANSLATION.values())
        assert not content & RARE_TARGETS
    thought = sum("=" in exercise.answer for exercise in found) / len(found)
    assert thought == pytest.approx(THOUGHT_SHARE, abs=0.05)


@pytest.mark.parametrize("name", MIXES)
def test_streams_follow_their_seed_and_version(name):
    """What a seed gives may change with `build.VERSION` only, which has testbeds built anew."""
    documents = sample(name, 300, seed=5)
    assert documents != sample(name, 300, seed=6)
    assert build.VERSION == 2
    assert hashlib.sha256(repr(documents).encode()).hexdigest()[:16] == DIGESTS[name]


def test_evaluation_content_is_never_trained_on():
    asked = {
        e.key
        for name in MIXES
        for e in sample(name)
        if e.prompt.endswith(("solve :", "answer :"))
        or (e.prompt.endswith((" english :", " swahili :")) and len(e.key.split()) > 1)
    }
    assert asked
    assert {exercises.split_of(key) for key in asked} == {"train"}
