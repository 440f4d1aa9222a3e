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
            row["note"] = "a column that no task needs"

    _change(data / "mgsm" / "sw_test.jsonl", to_integers)
    assert list(_load(load_mgsm, data)["test"]) == before


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


LOADERS: dict[str, Load] = {
    **{"mgsm": load_mgsm, "belebele": load_belebele, "mmlu": load_mmlu, "flores": load_flores}
}


def _put(index: int, **values: Any) -> Callable[[Path], object]:
    """Return what gives a row of a file other values."""
    return lambda path: _change(path, lambda rows: rows[index].update(values))


def _cut(start: int) -> Callable[[Path], object]:
    return lambda path: _change(path, lambda rows: rows.__delitem__(slice(start, None)))


def _without(column: str) -> Callable[[Path], object]:
    return lambda path: _change(path, lambda rows: [row.pop(column) for row in rows])


def _text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def _rename(name: str) -> Callable[[Path], object]:
    return lambda path: path.rename(path.with_name(name))


@pytest.mark.parametrize(
    ("file", "harm", "parts"),
    [
        ("mgsm/sw_test.jsonl", _rename("sw_tests.jsonl"), ["no such file; did you mean 'sw_tests"]),
        (
            "belebele/sw_test.jsonl",
            lambda path: path.parent.rename(path.parent.with_name("belebel")),
            ["no folder 'belebele' in it; did you mean 'belebel'?", "belebele/sw_test.jsonl"],
        ),
        ("mgsm/sw_test.jsonl", _text("\n"), ["sw_test.jsonl: no rows"]),
        ("mgsm/sw_test.jsonl", _text('{"question": 1}\n{"quest'), ["test.jsonl, line 2: not JSON"]),
        ("mgsm/sw_test.jsonl", _text("[1]\n"), ["sw_test.jsonl, line 1: not an object"]),
        (
            "mgsm/sw_train.jsonl",
            lambda path: path.write_bytes(b"\xff\xfe"),
            ["sw_train.jsonl: cannot be read: UnicodeDecodeError"],
        ),
        (
            "belebele/sw_test.jsonl",
            _without("flores_passage"),
            ["6 problems", "row 4: no column 'flores_passage'", "and 2 more"],
        ),
        ("mgsm/sw_test.jsonl", _put(2, answer_number="many"), ["mgsm sw (test)", "item 2: answer"]),
        ("mgsm/sw_train.jsonl", _put(3, answer=None), ["(train)", "item 3: an exemplar without"]),
        ("mgsm/sw_train.jsonl", _cut(7), ["7 exemplars; needed are 8"]),
        ("mgsm/sw_train.jsonl", _put(1, question=None), ["row 1: question is None, which is not"]),
        ("mmlu/sw_test.jsonl", _put(2, option_a=5), ["mmlu sw: the values of a column", "int"]),
        (
            "belebele/sw_test.jsonl",
            _put(0, correct_answer_num=5),
            ["correct_answer_num '5'"],
        ),
        ("belebele/sw_test.jsonl", _cut(5), ["5 items; 5 examples beside the item take 6"]),
        ("mmlu/sw_test.jsonl", _put(0, answer="E"), ["mmlu sw", "answer 'E' is not A, B, C, D"]),
        ("mmlu/sw_test.jsonl", _put(0, subject="virology"), ["0 examples (dev) of 'virology'"]),
        ("flores/sw_devtest.jsonl", _cut(3), ["flores", "in one language only, such as id 3"]),
        ("flores/sw_devtest.jsonl", _put(1, text=" "), ["sw: sentence 1 is empty or of several"]),
        ("flores/sw_devtest.jsonl", _put(2, text="a\nb"), ["sentence 2 is empty or of several"]),
        ("flores/sw_devtest.jsonl", _put(2, id=1), ["sw: sentence 1 is there twice"]),
    ],
)
def test_what_is_wrong_with_data_is_said(
    data: Path, file: str, harm: Callable[[Path], object], parts: list[str]
) -> None:
    benchmark = file.split("/")[0]
    codes = ("en", "sw") if benchmark == "flores" else ("sw",)
    assert _load(LOADERS[benchmark], data, *codes)
    harm(data / file)
    with pytest.raises(InputError) as caught:
        _load(LOADERS[benchmark], data, *codes)
    assert [part for part in parts if part not in caught.value.message] == []


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
