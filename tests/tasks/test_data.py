"""Where items come from: layouts, and what is said when a file is not what it should be."""

import os
import shutil
import subprocess
import sys

import pytest

from ablations.tasks.data import (
    DataUnavailable,
    load_belebele,
    load_flores,
    load_global_mgsm,
    load_mgsm,
    load_mmlu,
    load_polymath,
)
from ablations.tasks.mbpp import load_mbpp
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA, TABLE, read_jsonl, write_jsonl


def _load_mbpp(**how):
    return load_mbpp(split="train", column="text_jpn", **how)


def _load_mgsm(**how):
    words = TABLE["sw"].mgsm
    before = f"{words.answer}{words.delimiter}"
    named = {"benchmark": "mgsm", **how}
    return load_mgsm(before_question=words.question, before_solution=before, **named)


def _load_rev2(**how):
    return _load_mgsm(exemplars="nobody/exemplars", benchmark="mgsm_rev2", **how)


def _load_msvamp(**how):
    return _load_mgsm(exemplars="nobody/exemplars", benchmark="msvamp", **how)


def _load_polymath(**how):
    return load_polymath(level="top", **how)


LOADERS = {
    "mgsm": _load_mgsm,
    "belebele": load_belebele,
    "mmlu": load_mmlu,
    "flores": load_flores,
    "mbpp": _load_mbpp,
    "mgsm_rev2": _load_rev2,
    "msvamp": _load_msvamp,
    "global_mgsm": load_global_mgsm,
    "polymath_top": _load_polymath,
}
CODES = {"flores": ("en", "sw"), "mbpp": ("ja",)}


def load(benchmark, data_dir, *codes):
    return LOADERS[benchmark](
        hub_id="nobody/nothing",
        configs={code: code for code in codes or CODES.get(benchmark, ("sw",))},
        data_dir=data_dir,
        version=1.0,
        config_source="somewhere.yaml",
        pretrained="a/model",
    )


@pytest.fixture
def data(tmp_path):
    return shutil.copytree(DATA, tmp_path / "data")


def change(path, how):
    rows = read_jsonl(path)
    how(rows)
    write_jsonl(path, rows)


def test_mgsm_is_read_from_its_folder_or_bare(data):
    nested, bare = load("mgsm", data), load("mgsm", str(data / "mgsm"))
    for split in ("train", "test"):
        assert list(nested[split]) == list(bare[split])
    columns = ["question", "answer", "answer_number", "equation_solution"]
    assert list(nested["test"].features) == columns
    assert [row["answer_number"] for row in nested["test"]] == ["32", "1080", "2000", "35"]
    assert nested["test"][0]["answer"] is None


def test_numbers_and_numerals_give_equal_items(data):
    """The hub has 1080 where a file may have "1,080": the same item, with the same hash."""
    before = list(load("mgsm", data)["test"])

    def to_integers(rows):
        for row in rows:
            row["answer_number"] = int(row["answer_number"].replace(",", ""))
            row["note"] = "a column that no task needs"

    change(data / "mgsm" / "sw_test.jsonl", to_integers)
    assert list(load("mgsm", data)["test"]) == before


def test_flores_pairs_sentences_by_id(data):
    change(data / "flores" / "te_devtest.jsonl", lambda rows: rows.reverse())
    files = (DATA / "flores" / f"{code}_devtest.jsonl" for code in ("en", "te"))
    english, telugu = map(read_jsonl, files)
    rows = [(e["id"], e["text"], t["text"]) for e, t in zip(english, telugu, strict=True)]
    there, back = load("flores", data, "en", "te"), load("flores", data, "te", "en")
    assert [(p["id"], p["source"], p["target"]) for p in there["devtest"]] == rows
    assert [(p["id"], p["target"], p["source"]) for p in back["devtest"]] == rows


def test_splits_stay_apart(data):
    items = list(load("mmlu", data)["items"])
    assert [item["split"] for item in items] == ["dev"] * 10 + ["test"] * 4
    assert [item["task_id"] for item in load("mbpp", data)["test"]] == [11, 12, 510]
    assert len(read_jsonl(DATA / "mbpp" / "ja_test.jsonl")) == 4


def test_a_translation_may_lack_the_code_that_sets_tests_up(data):
    path = data / "mbpp" / "ja_test.jsonl"
    change(path, lambda rows: [row.pop("test_setup_code", None) for row in rows])
    assert {item["test_setup_code"] for item in load("mbpp", data)["test"]} == {""}


def put(index, **values):
    return lambda path: change(path, lambda rows: rows[index].update(values))


def cut(start):
    return lambda path: change(path, lambda rows: rows.__delitem__(slice(start, None)))


def without(column):
    return lambda path: change(path, lambda rows: [row.pop(column) for row in rows])


def each(**values):
    return lambda path: change(path, lambda rows: [row.update(values) for row in rows])


def text(content):
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "harm", "parts"),
    [
        ("mgsm/sw_test.jsonl", lambda path: path.unlink(), ["sw_test.jsonl: no such file; in"]),
        ("mgsm/sw_test.jsonl", text(b"\n"), ["sw_test.jsonl: no rows"]),
        ("mgsm/sw_test.jsonl", text(b'{"question": 1}\n{"quest'), ["jsonl, line 2: not JSON: Unt"]),
        (
            "mgsm/sw_test.jsonl",
            text(b"[1\n"),
            ["1: not JSON: Expec", ", column 3"],
        ),
        ("mgsm/sw_test.jsonl", text(b"[1]\n"), ["sw_test.jsonl, line 1: not an object"]),
        ("mgsm/sw_train.jsonl", text(b"\xff\xfe"), ["jsonl: cannot be read: UnicodeDecodeError"]),
        (
            "belebele/sw_test.jsonl",
            without("flores_passage"),
            ["6 problems", "row 4: no column 'flores_passage'", "and 2 more"],
        ),
        ("mgsm/sw_test.jsonl", put(2, answer_number="many"), ["mgsm sw (test)", "item 2: answer"]),
        ("mgsm/sw_train.jsonl", put(3, answer=None), ["(train)", "item 3: an exemplar whose ans"]),
        ("mgsm/sw_train.jsonl", put(3, question="Ngapi?"), ["question does not begin with 'Swali"]),
        ("mgsm/sw_train.jsonl", cut(7), ["7 exemplars; needed are 8"]),
        ("mgsm/sw_train.jsonl", put(1, question=None), ["row 1: question is None, which is not"]),
        ("mgsm_rev2/mgsm_sw.tsv", text(b"Ngapi?\tsaba\n"), ["item 0: answer_number 'saba'"]),
        ("msvamp/sw_test.jsonl", text(b'{"qeustion": "a"}\n'), ["row 0: no text in column 'quest"]),
        ("msvamp/sw_test.jsonl", text(b'{"question": "a"}\n'), ["item 0: answer_number None is"]),
        ("mgsm_rev2/mgsm_sw.tsv", text(b"Ngapi? 7\n"), ["line 1: no tab between a question and"]),
        ("global_mgsm/sw_test.jsonl", put(1, answer="saba"), ["item 1: answer 'saba' is not a nu"]),
        ("global_mgsm/sw_test.jsonl", put(0, answer_prefix=": "), ["0: answer_prefix is empty"]),
        ("global_mgsm/sw_test.jsonl", without("instruction"), ["row 1: no column 'instruction'"]),
        ("polymath_top/sw_test.jsonl", put(1, answer=" "), ["polymath_top sw", "item 1: no answe"]),
        ("polymath_top/sw_test.jsonl", put(1, answer=18), ["row 1: answer is 18, which is not te"]),
        ("mmlu/sw_test.jsonl", put(2, option_a=5), ["mmlu sw: the values of a column", "int"]),
        ("belebele/sw_test.jsonl", put(0, correct_answer_num=5), ["correct_answer_num '5'"]),
        ("belebele/sw_test.jsonl", cut(5), ["5 items; 5 examples and the item need 6"]),
        ("mmlu/sw_test.jsonl", put(0, answer="E"), ["mmlu sw", "answer 'E' is not A, B, C, D"]),
        ("mmlu/sw_test.jsonl", put(0, subject="virology"), ["0 examples (dev) of 'virology'"]),
        ("flores/sw_devtest.jsonl", cut(3), ["flores", "in one language only, such as id 3"]),
        ("flores/sw_devtest.jsonl", put(1, text=" "), ["sw: sentence 1 is empty or of several"]),
        ("flores/sw_devtest.jsonl", put(2, id=1), ["sw: sentence 1 occurs twice"]),
        ("mbpp/ja_test.jsonl", put(0, test_list=["assert ("]), ["its tests are not valid Python"]),
        ("mbpp/ja_test.jsonl", put(0, test_setup_code=5), ["task_id 11", "not a list of texts"]),
        ("mbpp/ja_test.jsonl", each(task_id=5), ["mbpp ja (test): no task_id from 11 to 510"]),
    ],
)
def test_what_is_wrong_with_data_is_said(data, file, harm, parts):
    benchmark = file.split("/")[0]
    assert load(benchmark, data)
    harm(data / file)
    with pytest.raises(InputError) as caught:
        load(benchmark, data)
    assert [part for part in parts if part not in caught.value.message] == []


def test_the_hub_offline_names_the_way_out():
    """conftest switches the hub off: what a user without network or access reads."""
    with pytest.raises(
        DataUnavailable, match=r"nobody/nothing \(sw, train\): cannot be loaded"
    ) as caught:
        load("mgsm", None)
    assert "--data-dir DIR with DIR/mgsm/{language}_train.jsonl" in caught.value.message
    with pytest.raises(
        DataUnavailable, match=r"nobody/nothing \(sw, top\): cannot be loaded"
    ) as caught:
        load("polymath_top", None)
    assert "DIR/polymath_top/{language}_test.jsonl" in caught.value.message
    with pytest.raises(
        DataUnavailable, match=r"FLORES\+ is gated: accept its conditions"
    ) as caught:
        load("flores", None)
    assert not isinstance(caught.value, InputError)
    assert "`hf auth login`" in caught.value.message


def test_without_a_network_nothing_is_asked_for_again_and_again():
    """A data set is looked for in the caches; the libraries would try for half a minute."""
    code = "from ablations.tasks import data; data._from_hub(data.MGSM, 'a/b', 'sw', 'test')"
    offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {n: value for n, value in os.environ.items() if n not in offline}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "DataUnavailable: a/b (sw, test)" in done.stderr
    assert "Retrying" not in done.stderr
