"""Which language an answer is in: the real MGSM sentences, and answers as models give them."""

import importlib.util
import json

import pytest

from ablations.scoring.language_id import is_in_language, why_not_judged, words_of
from tests.standins.scripted import PUBLISHED_MGSM

SCRIPTS = {"sw": "Latn", "te": "Telu", "bn": "Beng", "ja": "Jpan", "en": "Latn"}


def _languages(text):
    return [code for code, script in SCRIPTS.items() if is_in_language(text, code, script)]


@pytest.mark.parametrize("code", SCRIPTS)
def test_every_real_sentence_is_in_its_language_and_no_other(code):
    texts = []
    for split in ("train", "test"):
        for line in (PUBLISHED_MGSM / f"{code}_{split}.jsonl").read_text().splitlines():
            row = json.loads(line)
            texts += [row["question"], *([row["answer"]] if row["answer"] else [])]
    assert len(texts) == 18
    assert {tuple(_languages(text)) for text in texts} == {(code,)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # English words in it, code and formulas beside it: the rest decides.
        ("Hatua ya kwanza: total = 5 + 6 = 11, so kwa jumla mipira ni 11. Jibu ni 11.", ["sw"]),
        ("```python\ndef answer():\n    return 5 + 6\n```\nKwa hivyo jibu ni mipira 11.", ["sw"]),
        ("The code:\n```\nmipira kwa jumla", ["en"]),
        ("\\frac{5}{6} kwa hivyo jibu ni kumi na moja", ["sw"]),
        ("Total 5 + 6 = 11 (step by step). సమాధానం పదకొండు బంతులు ఉన్నాయి.", ["te"]),
        # The other way round.
        ("Roger started with five balls and bought six. So the answer is: సమాధానం 11.", ["en"]),
        # Short, as after a question that asks for no explanation.
        ("Jibu ni 11.", ["sw"]),
        ("答えは11", ["ja"]),
        # Chinese shares its letters with Japanese, but not kana.
        ("因此答案是十一个球", []),
        # Hindi, French: none of the five.
        ("उत्तर ग्यारह है", []),
        ("La réponse est donc onze balles de tennis en tout.", []),
        # No word, no language.
        ("11", []),
        ("", []),
        ("5 + 6 = 11", []),
        ("`x = 11`", []),
    ],
)
def test_mixed_answers_count_for_what_most_of_them_is(text, expected):
    assert _languages(text) == expected


def test_the_words_are_what_is_left_without_formulas_code_and_marks():
    text = "Ni **shilingi** $1,200.50/siku; ng'ombe `x=1` \\times 3 https://a.b/c <b>sana</b>"
    assert words_of(text) == "Ni shilingi siku ng'ombe sana"
    # Vowel signs are marks, not letters, and belong to their word.
    assert words_of("సమాధానం 11") == "సమాధానం"


def test_what_cannot_be_judged_is_said(monkeypatch):
    assert why_not_judged("sw", "Latn") is None
    assert why_not_judged("zz", "Latn") == "py3langid does not know the language 'zz'"
    assert "its script 'Runr' is unknown; known are Beng" in str(why_not_judged("non", "Runr"))
    with pytest.raises(ValueError, match="'zz' cannot be judged: py3langid does not know"):
        is_in_language("a", "zz", "Latn")
    # Without the extra the scripts still decide where they can.
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert "pip install 'layerswap[langid]'" in str(why_not_judged("sw", "Latn"))
    assert [why_not_judged(code, SCRIPTS[code]) for code in ("te", "bn", "ja")] == [None] * 3
    assert is_in_language("แอนเริ่มด้วยแอปเปิล 3 ผล คำตอบคือ 12", "th", "Thai")
    assert _languages_by_script("సమాధానం") == ["te"]


def _languages_by_script(text):
    return [code for code in ("te", "bn", "ja") if is_in_language(text, code, SCRIPTS[code])]
