"""MGSM in all of its eleven languages, and MGSM-Rev2, on hand-written files of the same form."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ablations.scoring.records import Evaluation
from ablations.tasks.catalog import SHIPPED_TASKS as TASKS
from ablations.tasks.contents import TaskContents
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA, TABLE, ask, gold, perturbed

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CODES = ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")


def _scores(evaluation: Evaluation) -> set[float]:
    return {score.value for score in evaluation.scores if score.metric == "exact_match"}


def test_every_language_is_an_entry_and_scores_gold_and_wrong_answers() -> None:
    assert sorted(code for code, language in TABLE.items() if language.mgsm) == list(CODES)
    names = tuple(f"layerswap_mgsm_{code}" for code in CODES)
    right = ask(gold, names)
    assert {score.task for score in right.scores} == set(names)
    assert _scores(right) == {1.0}
    assert _scores(ask(perturbed, names)) == {0.0}


def test_both_german_phrases_count() -> None:
    def say(phrase: str) -> Any:
        return lambda task, item: f" 1 + 1 = 2. {phrase} {item['answer_number']}."

    for phrase in ("Die Antwort lautet", "Die Antwort ist", "die Antwort ist"):
        assert _scores(ask(say(phrase), ("layerswap_mgsm_de",))) == {1.0}
    strict = ask(say("Das Ergebnis ist"), ("layerswap_mgsm_de",))
    assert strict.score("layerswap_mgsm_de", "exact_match", "strict-match").value == 0


def _rev2(folder: Path, code: str, *rows: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"mgsm_{code}.tsv"
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Tables as they are published, and MGSM's exemplars beside them."""
    _rev2(tmp_path / "mgsm_rev2", "de", "Was ist 3 + 4?\t7", "Was ist 1.000 mal 1?\t1,000")
    _rev2(tmp_path / "mgsm_rev2", "sw", "Ngapi ni 3 + 4?\t7")
    shutil.copytree(DATA / "mgsm", tmp_path / "mgsm")
    return tmp_path


def test_rev2_asks_the_corrected_questions_with_mgsms_exemplars(data: Path) -> None:
    names = ("layerswap_mgsm_rev2_de", "layerswap_mgsm_rev2_sw")
    right = ask(gold, names, data_dir=data)
    assert _scores(right) == {1.0}
    assert _scores(ask(perturbed, names, data_dir=data)) == {0.0}
    asked = right.samples_of(names[0])
    assert {sample.target for sample in asked} == {"7", "1000"}
    own = ask(gold, ("layerswap_mgsm_de",)).samples[0].prompts[0]
    prompt = asked[0].prompts[0]
    assert prompt.endswith("\n\nFrage: Was ist 3 + 4?\nSchritt-für-Schritt-Antwort:")
    assert prompt.rpartition("Frage: ")[0] == own.rpartition("Frage: ")[0]


def test_rev2_keeps_a_question_with_a_break_that_ends_no_line(data: Path) -> None:
    _rev2(data / "mgsm_rev2", "sw", "Ngapi ni 3 +\u2028 4?\t7\r")
    asked = ask(gold, ("layerswap_mgsm_rev2_sw",), data_dir=data).samples
    assert {sample.target for sample in asked} == {"7"}
    assert "Ngapi ni 3 +\u2028 4?\n" in asked[0].prompts[0]


def test_what_is_wrong_with_tables_is_said(data: Path) -> None:
    def fails(code: str) -> str:
        with pytest.raises(InputError) as caught:
            ask(gold, (f"layerswap_mgsm_rev2_{code}",), data_dir=data)
        return caught.value.message

    assert "mgsm_rev2/mgsm_th.tsv: no such file" in fails("th")
    _rev2(data / "mgsm_rev2", "fr", "Combien font 3 + 4 ?\tsept")
    assert "item 0: answer_number 'sept'" in fails("fr")
    _rev2(data / "mgsm_rev2", "es", "Cuanto es 3 + 4? 7")
    assert "mgsm_es.tsv, line 1: no tab between a question and its number" in fails("es")
    shutil.rmtree(data / "mgsm")
    assert "expected is mgsm/sw_train.jsonl" in fails("sw")


def test_a_changed_table_is_another_task(data: Path) -> None:
    def of(code: str) -> str:
        return TaskContents((TASKS,), data).fingerprint(f"layerswap_mgsm_rev2_{code}")

    before: Mapping[str, str] = {code: of(code) for code in ("de", "sw")}
    _rev2(data / "mgsm_rev2", "de", "Was ist 3 + 5?\t8")
    assert {code: of(code) == before[code] for code in before} == {"de": False, "sw": True}
    (data / "mgsm" / "sw_train.jsonl").write_text("")
    assert of("sw") != before["sw"]
