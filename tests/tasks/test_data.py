"""Where items come from: layouts, and what is said when a file is not what it should be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablations.tasks.data import load_belebele, load_flores, load_mgsm, load_mmlu
from ablations.tasks.errors import DataAway
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA, read_jsonl, write_jsonl

Load = Callable[..., dict[str, Any]]


def _load(load: Load, data_dir: Path | str | None, *codes: str) -> dict[str, Any]:
    return load(
        hub_id="nobody/nothing",
        configs={code: code for code in codes or ("sw",)},
        data_dir=data_dir,
        version=1.0,
        config_source="somewhere.yaml",
        pretrained="a/model",
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    shutil.copytree(DATA, tmp_path / "data")
    return tmp_path / "data"


def _change(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    rows = read_jsonl(path)
    change(rows)
    write_jsonl(path, rows)


def test_mgsm_is_read_from_its_folder_or_bare(data: Path) -> None:
    nested, bare = _load(load_mgsm, data), _load(load_mgsm, str(data / "mgsm"))
    for split in ("train", "test"):
        assert list(nested[split]) == list(bare[split])
    assert list(nested["test"].features) == [
        *("question", "answer", "answer_number", "equation_solution")
    ]
    assert [row["answer_number"] for row in nested["test"]] == ["32", "1080", "2000", "35"]
    assert nested["test"][0]["answer"] is None


def test_numbers_and_numerals_give_equal_items(data: Path) -> None:
    """The hub has 1080 where a file may have "1,080": the same item, with the same hash."""
    before = list(_load(load_mgsm, data)["test"])

    def to_integers(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["answer_number"] = int(row["answer_number"].replace(",", ""))

    _change(data / "mgsm" / "sw_test.jsonl", to_integers)
    assert list(_load(load_mgsm, data)["test"]) == before


def test_columns_that_no_task_needs_are_left_out(data: Path) -> None:
    def add(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["note"] = object.__name__

    before = list(_load(load_belebele, data)["test"])
    _change(data / "belebele" / "sw_test.jsonl", add)
    assert list(_load(load_belebele, data)["test"]) == before
    assert "note" not in before[0]


def test_flores_pairs_sentences_by_id(data: Path) -> None:
    _change(data / "flores" / "te_devtest.jsonl", lambda rows: rows.reverse())
    pairs = list(_load(load_flores, data, "en", "te")["devtest"])
    english, telugu = (
        read_jsonl(DATA / "flores" / f"{code}_devtest.jsonl") for code in ("en", "te")
    )
    assert [(pair["id"], pair["source"], pair["target"]) for pair in pairs] == [
        (one["id"], one["text"], other["text"]) for one, other in zip(english, telugu, strict=True)
    ]
    back = list(_load(load_flores, data, "te", "en")["devtest"])
    assert [(pair["target"], pair["source"]) for pair in back] == [
        (pair["source"], pair["target"]) for pair in pairs
    ]


def test_mmlu_keeps_its_splits_apart(data: Path) -> None:
    items = list(_load(load_mmlu, data)["items"])
    assert [item["split"] for item in items] == ["dev"] * 10 + ["test"] * 4


LOADERS: dict[str, Load] = {"mgsm": load_mgsm, "belebele": load_belebele, "mmlu": load_mmlu}


@pytest.mark.parametrize(
    ("file", "harm", "parts"),
    [
        (
            "mgsm/sw_test.jsonl",
            lambda path: path.rename(path.with_name("sw_tests.jsonl")),
            ["sw_test.jsonl: no such file; did you mean 'sw_tests.jsonl'?"],
        ),
        (
            "belebele/sw_test.jsonl",
            lambda path: path.parent.rename(path.parent.with_name("belebel")),
            ["no folder 'belebele' in it; did you mean 'belebel'?", "belebele/sw_test.jsonl"],
        ),
        ("mgsm/sw_test.jsonl", lambda path: path.write_text("\n"), ["sw_test.jsonl: no rows"]),
        (
            "mgsm/sw_test.jsonl",
            lambda path: path.write_text('{"question": 1}\n{"quest'),
            ["sw_test.jsonl, line 2: not JSON"],
        ),
        (
            "mgsm/sw_test.jsonl",
            lambda path: path.write_text("[1]\n"),
            ["sw_test.jsonl, line 1: not an object"],
        ),
        (
            "mgsm/sw_train.jsonl",
            lambda path: path.write_bytes(b"\xff\xfe"),
            ["sw_train.jsonl: cannot be read: UnicodeDecodeError"],
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    data: Path, file: str, harm: Callable[[Path], object], parts: list[str]
) -> None:
    harm(data / file)
    with pytest.raises(InputError) as caught:
        _load(LOADERS[file.split("/")[0]], data)
    assert [part for part in parts if part not in caught.value.message] == []


@pytest.mark.parametrize(
    ("file", "change", "parts"),
    [
        (
            "mgsm/sw_test.jsonl",
            lambda rows: rows[1].update(answer_numbr=rows[1].pop("answer_number")),
            ["row 1: no column 'answer_number'; did you mean 'answer_numbr'?"],
        ),
        (
            "belebele/sw_test.jsonl",
            lambda rows: [row.pop("flores_passage") for row in rows],
            ["6 problems", "row 4: no column 'flores_passage'", "and 2 more"],
        ),
        (
            "mgsm/sw_test.jsonl",
            lambda rows: rows[2].update(answer_number="many"),
            ["mgsm sw (test)", "item 2: answer_number 'many' is none"],
        ),
        (
            "mgsm/sw_train.jsonl",
            lambda rows: rows[3].update(answer=None),
            ["mgsm sw (train)", "item 3: an exemplar without `answer`"],
        ),
        ("mgsm/sw_train.jsonl", lambda rows: rows.pop(), ["7 exemplars; needed are 8"]),
        (
            "mgsm/sw_train.jsonl",
            lambda rows: rows[1].update(question=None),
            ["sw_train.jsonl: row 1: question is None, which is not text"],
        ),
        (
            "mmlu/sw_test.jsonl",
            lambda rows: rows[2].update(option_a=5),
            ["mmlu sw: the values of a column are of several types", "int"],
        ),
        (
            "belebele/sw_test.jsonl",
            lambda rows: rows[0].update(correct_answer_num=5),
            ["belebele sw (test)", "item 0: correct_answer_num '5' is not 1, 2, 3, 4"],
        ),
        (
            "belebele/sw_test.jsonl",
            lambda rows: rows.__delitem__(slice(5, None)),
            ["5 items; 5 examples beside the item take 6"],
        ),
        (
            "mmlu/sw_test.jsonl",
            lambda rows: rows[0].update(answer="E"),
            ["mmlu sw (test)", "answer 'E' is not A, B, C, D"],
        ),
        (
            "mmlu/sw_test.jsonl",
            lambda rows: rows[0].update(subject="virology"),
            ["mmlu sw (dev)", "0 examples of 'virology'; needed are 5"],
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_said(
    data: Path, file: str, change: Callable[[list[dict[str, Any]]], object], parts: list[str]
) -> None:
    load = LOADERS[file.split("/")[0]]
    assert _load(load, data)
    _change(data / file, change)
    with pytest.raises(InputError) as caught:
        _load(load, data)
    assert [part for part in parts if part not in caught.value.message] == []


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such data folder"):
        _load(load_mgsm, tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.pop(), "1 sentences are in one language only, such as id 3"),
        (lambda rows: rows[1].update(text=" "), "sentence 1 is empty or of several lines"),
        (lambda rows: rows[2].update(text="a\nb"), "sentence 2 is empty or of several lines"),
        (lambda rows: rows[2].update(id=1), "sentence 1 is there twice"),
        (lambda rows: rows[2].update(id="2"), "ids are neither all integers nor all texts"),
    ],
)
def test_sentences_that_do_not_pair_are_said(
    data: Path, change: Callable[[list[dict[str, Any]]], object], said: str
) -> None:
    _change(data / "flores" / "sw_devtest.jsonl", change)
    for pair in (("en", "sw"), ("sw", "en")):
        with pytest.raises(InputError) as caught:
            _load(load_flores, data, *pair)
        assert said in caught.value.message
        assert "flores" in caught.value.message.replace(str(data), "")


def test_the_hub_offline_names_the_way_out() -> None:
    """conftest switches the hub off: what a user without network or access reads."""
    with pytest.raises(DataAway) as caught:
        _load(load_mgsm, None)
    assert "nobody/nothing (sw, train): cannot be loaded" in caught.value.message
    assert "--data-dir DIR with DIR/mgsm/{language}_train.jsonl" in caught.value.message
    with pytest.raises(DataAway, match=r"FLORES\+ is gated: accept its conditions") as caught:
        _load(load_flores, None, "en", "sw")
    assert caught.value.exit_code == 1
    assert "`hf auth login`" in caught.value.message
