"""The languages of the shipped tasks as values: the types of `ablations/tasks/languages.yml`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter, ValidationError

from ablations.tasks.catalog import LANGUAGES
from ablations.tasks.numbers import DecimalSign, Separator
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.strict_yaml import parse_yaml

BleuTokenizer = Literal["13a", "intl", "char"]
"""The tokenizers of sacrebleu that need neither a download nor another package."""


class MgsmWords(Frozen):
    """MGSM's native words, as its train split has them."""

    config: str
    """Config of juletxara/mgsm."""

    question: str = Field(min_length=1)
    """Stands before a question, with the space after it where there is one."""

    answer: str = Field(min_length=1)
    """Stands before a solution."""

    phrase: str | tuple[str, ...] = Field(min_length=1)
    """Stands before the final number of a solution; several where solutions differ in it."""

    @property
    def delimiter(self) -> str:
        """The text between `answer` and a solution: a full-width colon brings its own space."""
        return "" if self.answer.endswith("：") else " "

    @property
    def phrases(self) -> tuple[str, ...]:
        """Every phrase, the usual one first."""
        return (self.phrase,) if isinstance(self.phrase, str) else self.phrase

    @property
    def before_phrase(self) -> str:
        """The beginning of `answer`, where its end is a phrase; else empty."""
        header = self.answer.rstrip(":：")
        ends = [phrase for phrase in self.phrases if header.endswith(phrase)]
        return header.removesuffix(ends[0]) if ends else ""


class Digits(Frozen):
    """How a language writes numbers, where that is not 1,080.5."""

    groups: tuple[Separator, ...] = ()
    """What may stand between groups of three digits, beyond what may in every language."""

    decimal: DecimalSign = "point"
    """The decimal sign; a point is read as one, too, unless it groups."""


class MbppProblems(Frozen):
    """A translation of MBPP's problems (or their original), and the words around one."""

    hub_id: str
    """Dataset on the hub."""

    config: str
    """Its config."""

    split: str
    """The split that holds MBPP's test problems, perhaps among others."""

    column: str
    """Column with the text of a problem."""

    task: str = Field(min_length=1)
    """Stands before the text of a problem."""

    tests: str = Field(min_length=1)
    """Stands before its tests."""


class Language(Frozen):
    """One entry of the table. A benchmark that is None has no task in this language."""

    name: str
    """English name, as prompts for translation say it."""

    flores: str = Field(pattern=r"^[a-z]{3}_[A-Z][a-z]{3}$")
    """Code of openlanguagedata/flores_plus: ISO 639-3, underscore, ISO 15924."""

    digits: Digits = Digits()
    """How its numbers are written."""

    bleu: BleuTokenizer | None = None
    """sacrebleu's tokenizer for translations into this language; None for no translation tasks."""

    mgsm: MgsmWords | None = None
    """MGSM's words and config."""

    msvamp: str | None = None
    """Config of Mathoctopus/MSVAMP, whose questions are asked in MGSM's words."""

    belebele: str | None = None
    """Config of facebook/belebele."""

    mmlu: str | None = None
    """Config of CohereForAI/Global-MMLU."""

    mbpp: MbppProblems | str | None = None
    """MBPP's problems in this language, or the code of the language whose problems are asked."""

    global_mgsm: str | None = None
    """Config of CohereLabs/global-mgsm."""

    polymath: str | None = Field(None, min_length=1)
    """The request for a box around the answer, after a question of Qwen/PolyMath, whose config is
    the code."""

    @property
    def script(self) -> str:
        """The script of the language, as ISO 15924 has it."""
        script = self.flores.split("_")[1]
        return "Kore" if script == "Hang" else script  # FLORES+ names the alphabet alone


def load_languages(path: Path | None = None) -> dict[str, Language]:
    """Return code → language, in the order of the table.

    Args:
        path: another table; None for the one that ships.

    Raises:
        InputError: naming every entry that is not what it should be.
    """
    source = path or LANGUAGES
    table = parse_yaml(source.read_text(encoding="utf-8"), str(source))
    try:
        languages = TypeAdapter(dict[str, Language]).validate_python(table)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise InputError.from_problems(str(source), problems) from error
    with_problems = {
        code for code, entry in languages.items() if isinstance(entry.mbpp, MbppProblems)
    }
    for code, language in languages.items():
        if isinstance(language.mbpp, str) and language.mbpp not in with_problems:
            raise InputError(f"{source}: {code}.mbpp: {language.mbpp!r} has no problems of its own")
    return languages
