"""MGSM as published, in the languages of the paper, MGSM-Rev2, and MSVAMP."""

import os
import re
import shutil
from pathlib import Path

import pytest

from ablations.requests.known_tasks import with_functions
from ablations.tasks.catalog import SHIPPED_TASKS, list_tasks
from ablations.tasks.task_yaml import read_task_file
from tests.standins.scripted import (
    DATA,
    LANGUAGES,
    PUBLISHED_MGSM,
    TABLE,
    ask,
    gold,
    perturbed,
    read_jsonl,
    task_names,
    write_jsonl,
)
from tools.task_contents import SPECIAL_STOPS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TASKS = list_tasks()
FILTERS = ("strict-match", "flexible-extract")


def scores_of(evaluation):
    return {
        (score.task.removeprefix("layerswap_mgsm_"), score.filter): score.value
        for score in evaluation.scores
        if score.metric == "exact_match"
    }


@pytest.fixture(scope="module")
def right():
    return ask(gold, task_names("mgsm"), data_dir=PUBLISHED_MGSM)


def test_the_exemplars_own_solutions_are_read(tmp_path):
    """The items are the eight exemplars; the answers are their solutions, letter for letter."""
    solutions = {}
    for code in LANGUAGES:
        exemplars = read_jsonl(PUBLISHED_MGSM / f"{code}_train.jsonl")
        words, items = TABLE[code].mgsm, []
        for row in exemplars:
            question = row["question"].removeprefix(words.question)
            solution = row["answer"].removeprefix(words.answer)
            assert (question, solution) != (row["question"], row["answer"])
            solutions[f"layerswap_mgsm_{code}", question] = solution
            items.append({**row, "question": question, "answer": None})
        write_jsonl(tmp_path / f"{code}_train.jsonl", exemplars)
        write_jsonl(tmp_path / f"{code}_test.jsonl", items)

    def say(task, item):
        return solutions[task, item["question"]]

    evaluation = ask(say, task_names("mgsm"), data_dir=tmp_path)
    assert scores_of(evaluation) == {(code, name): 1.0 for code in LANGUAGES for name in FILTERS}
    assert all(score.n == 8 for score in evaluation.scores)


@pytest.mark.parametrize("code", LANGUAGES)
def test_prompts_hold_the_exemplars_whole(right, code):
    words = TABLE[code].mgsm
    train, test = (
        read_jsonl(PUBLISHED_MGSM / f"{code}_{name}.jsonl") for name in ("train", "test")
    )
    stops = (*SPECIAL_STOPS, words.question.strip())
    assert not [row for row in train if any(stop in row["answer"] for stop in stops)]
    exemplars = "".join(f"{row['question']}\n{row['answer']}\n\n" for row in train)
    samples = right.samples_of(f"layerswap_mgsm_{code}")
    assert len(samples) == len(FILTERS) * 2
    for sample in samples:
        item = f"{words.question}{test[sample.doc_id]['question']}\n{words.answer}"
        assert sample.prompts == (exemplars + item,)


@pytest.mark.parametrize(
    ("phrase", "strict"),
    [("Die Antwort lautet", 1), ("die Antwort ist", 1), ("Das Ergebnis ist", 0)],
)
def test_both_german_phrases_count(phrase, strict):
    found = ask(lambda _, item: f" 1. {phrase} {item['answer_number']}.", ("layerswap_mgsm_de",))
    assert scores_of(found) == {("de", "strict-match"): strict, ("de", "flexible-extract"): 1}


def write_rev2(folder, code, *rows):
    path = folder / "mgsm_rev2" / f"mgsm_{code}.tsv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


@pytest.fixture
def data(tmp_path):
    """Tables as they are published, and MGSM's exemplars beside them."""
    write_rev2(tmp_path, "de", "Was ist 3 + 4?\t7", "Was ist 1.000 mal 1?\t1,000")
    write_rev2(tmp_path, "sw", "Ngapi ni 3 +\u2028 4?\t7\r")  # a break that ends no line
    shutil.copytree(DATA / "mgsm", tmp_path / "mgsm")
    return tmp_path


def test_rev2_asks_the_corrected_questions_with_mgsms_exemplars(data):
    names = ("layerswap_mgsm_rev2_de", "layerswap_mgsm_rev2_sw")
    right = ask(gold, names, data_dir=data)
    assert set(scores_of(right).values()) == {1.0}
    assert set(scores_of(ask(perturbed, names, data_dir=data)).values()) == {0.0}
    german, swahili = map(right.samples_of, names)
    assert {sample.target for sample in german} == {"7", "1000"}
    assert {sample.target for sample in swahili} == {"7"}
    assert "Ngapi ni 3 +\u2028 4?\n" in swahili[0].prompts[0]
    own = ask(gold, ("layerswap_mgsm_de",)).samples[0].prompts[0]
    prompt = german[0].prompts[0]
    assert prompt.endswith("\n\nFrage: Was ist 3 + 4?\nSchritt-für-Schritt-Antwort:")
    assert prompt.rpartition("Frage: ")[0] == own.rpartition("Frage: ")[0]


def test_problems_of_ones_own_need_a_question_and_a_number(tmp_path):
    """Such as a dev set for `layerswap search`; MGSM's items leave its other columns empty, too."""
    shutil.copytree(DATA / "mgsm", tmp_path / "mgsm")
    rows = [{"question": "Ngapi ni 3 + 4?", "answer_number": 7.0}]
    write_jsonl(tmp_path / "mgsm" / "sw_test.jsonl", rows)
    right = ask(gold, ("layerswap_mgsm_sw",), data_dir=tmp_path)
    assert set(scores_of(right).values()) == {1.0}
    assert {sample.target for sample in right.samples} == {"7"}
    prompt = right.samples[0].prompts[0]
    assert prompt.endswith("\n\nSwali: Ngapi ni 3 + 4?\nJibu la Hatua kwa Hatua:")


ANSWERS = [
    ("mgsm_fr", "La réponse est 70 000.", "70000"),
    ("mgsm_fr", "La réponse est 70\u00a0000.", "70000"),
    ("mgsm_rev2_fr", "La re\u0301ponse est **70\u202f000**.", "70000"),
    ("msvamp_ru", "Ответ — 2 125.", "2125"),
    ("mgsm_es", "La respuesta es 70 000 euros.", "70000"),
    ("mgsm_en", r"The answer is $\boxed{9{,}500}$.", "9500"),
    ("global_mgsm_cs", "Odpověď: 12 500", "12500"),
    ("global_mgsm_ar", "الجواب\u200f: ١٬٠٨٠", "1080"),
    ("global_mgsm_ur", "جواب: ۱٬۰۸۰", "1080"),
    ("global_mgsm_am", "መልስ፦ 1,080", "1080"),
]


@pytest.mark.parametrize(("task", "answer", "number"), ANSWERS)
def test_the_filters_of_the_files_read_numbers_as_they_are_written(task, answer, number):
    content = read_task_file(SHIPPED_TASKS / f"generated/layerswap_{task}.yaml").content
    prefix = re.split("[:፦\u200f]", answer)[0]  # of the item, for Global-MGSM
    for entry in with_functions(content["filter_list"]):
        step, *_ = entry["filter"]
        take = step.pop("function")
        assert take(**step).apply([[answer]], [{"answer_prefix": prefix}]) == [[number]]


MSVAMP_ROWS = {
    "sw": [{"question": "Ngapi ni 3 + 4? ", "answer_number": 7.0}],
    # The columns of the hub.
    "fr": [{"m_query": "Combien font 600 fois 2 ?", "response": "1,200.0"}],
}


def test_msvamp_is_asked_in_mgsms_words_with_its_exemplars(tmp_path):
    shutil.copytree(DATA / "mgsm", tmp_path / "mgsm")
    for code, rows in MSVAMP_ROWS.items():
        write_jsonl(tmp_path / "msvamp" / f"{code}_test.jsonl", rows)
    names = ("layerswap_msvamp_sw", "layerswap_msvamp_fr")
    right = ask(gold, names, data_dir=tmp_path)
    assert set(scores_of(right).values()) == {1.0}
    assert set(scores_of(ask(perturbed, names, data_dir=tmp_path)).values()) == {0.0}
    swahili, french = (right.samples_of(name)[0] for name in names)
    assert (swahili.target, french.target) == ("7", "1200")
    theirs = ask(gold, ("layerswap_mgsm_sw",)).samples[0].prompts[0]
    assert swahili.prompts[0].endswith("\n\nSwali: Ngapi ni 3 + 4?\nJibu la Hatua kwa Hatua:")
    assert swahili.prompts[0].rpartition("Swali: ")[0] == theirs.rpartition("Swali: ")[0]
    grouped = ask(lambda *_: "600 * 2. La réponse est 1 200.", names[1:], data_dir=tmp_path)
    assert set(scores_of(grouped).values()) == {1.0}


REAL = Path(os.environ.get("LAYERSWAP_MSVAMP", "msvamp"))
"""A folder ``msvamp`` with the published rows in files of `--data-dir`."""


@pytest.mark.parametrize("code", [task.language for task in TASKS if task.benchmark == "msvamp"])
def test_every_published_row_of_msvamp_is_right_in_its_own_words_and_wrong_in_others(
    code, tmp_path
):
    if not (REAL / f"{code}_test.jsonl").is_file():
        pytest.skip("LAYERSWAP_MSVAMP names no folder with the rows of this language")
    shutil.copytree(DATA / "mgsm", tmp_path / "mgsm")
    (tmp_path / "msvamp").symlink_to(REAL)
    (name,) = names = (f"layerswap_msvamp_{code}",)
    for say, score in ((gold, 1.0), (perturbed, 0.0)):
        found = ask(say, names, data_dir=tmp_path)
        assert found.shown_score(name).n == 1000
        assert {s.value for s in found.scores if s.metric == "exact_match"} == {score}
