"""The rule by which an answer is in the language it should be in.

An answer to a math problem is not only prose: it holds numbers, formulas, code, names, and loan
words. So, in this order:

1. Code (fenced or in backticks), LaTeX commands, tags, addresses and all that is not a letter
   or vowel sign are left out. An answer with fewer than `FEWEST_LETTERS` left ("11", "Jibu: 18", an
   empty one) says nothing about its language: it has no verdict.
2. More than half of the remaining letters must be of the script of the language. Where the script
   belongs to one language among those that models are trained on (Telugu, Bengali, Greek, Korean;
   Japanese, where a share of `FEWEST_KANA` are kana), that decides. A few English words change
   nothing; an answer that is mostly English fails.
3. Else py3langid names the most likely of its languages for the remaining words as a whole, and it
   must name this one. It is naive Bayes over byte n-grams, offline, without randomness.

An answer that begins in one language and ends in another counts for the one with more of the text.
"""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from functools import cache, lru_cache
from typing import Any

FEWEST_LETTERS = 20
"""Letters of an answer that has a verdict. py3langid named the right one of its 97 languages for 94
to 99.5 % of phrases of 20 to 26 letters out of MSVAMP (English, Spanish, Swahili, 350 or more of
each), for 83 to 96 % of those of 15 to 21, and for 70 to 87 % of those of 10 to 16."""

FEWEST_KANA = 0.25
"""Share of kana in Japanese letters, the others being ideographs, which Chinese has, too. Of 13,307
Japanese texts of 20 letters or more (the questions of MGSM, MSVAMP and GSM8K, the answers of
Dolly) the one with the smallest share has .38. A model that goes over into Chinese may still have
some."""

HOW_TO_INSTALL = "pip install 'layerswap[langid]'"

_SCRIPTS: dict[str, tuple[str, ...]] = {
    "Arab": ("ARABIC",),
    "Armn": ("ARMENIAN",),
    "Beng": ("BENGALI",),
    "Cyrl": ("CYRILLIC",),
    "Deva": ("DEVANAGARI",),
    "Ethi": ("ETHIOPIC",),
    "Geor": ("GEORGIAN",),
    "Grek": ("GREEK",),
    "Gujr": ("GUJARATI",),
    "Guru": ("GURMUKHI",),
    "Hans": ("CJK",),
    "Hant": ("CJK",),
    "Hebr": ("HEBREW",),
    "Jpan": ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "CJK", "IDEOGRAPHIC"),
    "Khmr": ("KHMER",),
    "Knda": ("KANNADA",),
    "Kore": ("HANGUL",),
    "Laoo": ("LAO",),
    "Latn": ("LATIN",),
    "Mlym": ("MALAYALAM",),
    "Mymr": ("MYANMAR",),
    "Orya": ("ORIYA",),
    "Sinh": ("SINHALA",),
    "Taml": ("TAMIL",),
    "Telu": ("TELUGU",),
    "Thai": ("THAI",),
    "Tibt": ("TIBETAN",),
}
"""ISO 15924 -> first words of the Unicode names of its letters."""

_DECIDING = {
    "Armn": "hy",
    "Beng": "bn",
    "Geor": "ka",
    "Grek": "el",
    "Gujr": "gu",
    "Guru": "pa",
    "Jpan": "ja",
    "Khmr": "km",
    "Knda": "kn",
    "Kore": "ko",
    "Laoo": "lo",
    "Mlym": "ml",
    "Mymr": "my",
    "Orya": "or",
    "Sinh": "si",
    "Taml": "ta",
    "Telu": "te",
    "Thai": "th",
    "Tibt": "bo",
}
"""Script -> the language that it decides for. (Assamese, too, is written in Bengali script.)"""

_NO_PROSE = re.compile(
    r"```.*?(?:```|\Z)"  # fenced code, closed or cut off
    r"|`[^`\n]*`"
    r"|\\[A-Za-z]+"  # a LaTeX command; what stands in its braces stays
    r"|<[^<>\n]{1,40}>"
    r"|\bhttps?://\S+",
    re.DOTALL,
)


def why_not_judged(language: str, script: str) -> str | None:
    """Return why answers in a language cannot be judged on this machine, None where they can.

    `language` is an ISO 639-1 code, `script` the ISO 15924 code of how it is written.
    """
    if not script:
        return (
            "the script of its language is not known here; add script: Latn, say, to its metadata"
        )
    if script not in _SCRIPTS:
        return f"its script {script!r} is unknown; known are {', '.join(_SCRIPTS)}"
    if _DECIDING.get(script) == language:
        return None
    if importlib.util.find_spec("py3langid") is None:
        return f"py3langid is not installed; install it with: {HOW_TO_INSTALL}"
    if language not in _identifier().labels:
        return f"py3langid does not know the language {language!r}"
    return None


@lru_cache(1 << 16)  # every filter of a task comes with the same answers
def is_in_language(text: str, language: str, script: str) -> bool | None:
    """Return whether an answer is in a language, by the rule at the top of this file.

    None where it has too few letters to say.

    Raises:
        ValueError: where `why_not_judged` has a reason, with that reason.
    """
    if (reason := why_not_judged(language, script)) is not None:
        raise ValueError(f"answers in {language!r} cannot be judged: {reason}")
    words = words_of(text)
    letters = [letter for letter in words if unicodedata.category(letter)[0] in "LM"]
    if len(letters) < FEWEST_LETTERS:
        return None
    scripts = [_script_word(letter) for letter in letters]
    scripts = [name for name in scripts if name in _SCRIPTS[script]]
    if 2 * len(scripts) <= len(letters):
        return False
    if _DECIDING.get(script) == language:
        kana = sum(name in _SCRIPTS["Jpan"][:3] for name in scripts)
        return script != "Jpan" or kana >= FEWEST_KANA * len(scripts)
    return bool(_identifier().classify(words)[0] == language)


def words_of(text: str) -> str:
    """Return the words of `text`, a space between any two: rule 1 above."""
    words = "".join(
        letter if unicodedata.category(letter)[0] in "LM" or letter in "'’" else " "
        for letter in unicodedata.normalize("NFC", _NO_PROSE.sub(" ", text))
    )
    return " ".join(words.split())


@cache
def _script_word(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0]


@cache
def _identifier() -> Any:
    """Return an identifier of our own: the package's is shared, and others may restrict it."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)
