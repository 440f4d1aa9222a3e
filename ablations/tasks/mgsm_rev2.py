"""MGSM-Rev2: MGSM with corrected questions, from the hub or from its tables. Knows no prompt.

The tables are those of github.com/google-research-datasets/MGSM-Rev2 (CC BY-SA 4.0): a question, a
tab and the number that answers it, a line for each of the 250 items. They have no exemplars, so
those of MGSM are taken. The data set on the hub could not be opened from where this was written:
columns of either name are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.tasks.benchmarks import HUB_IDS
from ablations.tasks.data import MGSM, load_mgsm_split, make_dataset, refuse
from ablations.tasks.numbers import read_number
from layerswap_method.errors import InputError, LayerSwapError, describe_error, nearest

if TYPE_CHECKING:
    from datasets import Dataset

Item = tuple[str, str]
"""Question and number."""

_NUMBERS = ("answer_number", "answer", "number")
"""Columns of the hub's rows that may hold the number, the first one first."""


def load_mgsm_rev2(
    *, hub_id: str, configs: Mapping[str, str], data_dir: Path | str | None = None, **_metadata: Any
) -> dict[str, Dataset]:
    """Return MGSM-Rev2's questions as ``test`` and MGSM's exemplars as ``train``.

    Args:
        hub_id: of MGSM-Rev2.
        configs: language -> its config there.
        data_dir: folder with ``mgsm_LANGUAGE.tsv``, in ``mgsm_rev2`` below it or by itself, and
            with MGSM's ``LANGUAGE_train.jsonl``, in ``mgsm`` or by itself; where the latter is
            missing, MGSM's exemplars come from the hub. None for the hub.

    Raises:
        InputError: when questions or exemplars are not there, or not what they should be.
    """
    ((language, config),) = configs.items()
    if data_dir is None:
        where, items = f"{hub_id} ({config}, test)", _from_hub(hub_id, config)
    else:
        path = _find_table(Path(data_dir), language)
        where, items = str(path), _read_table(path)
    refuse(where, [] if items else ["no items"])
    rows, problems = [], []
    for index, (question, answer) in enumerate(items):
        number = read_number(answer)
        if not question or number is None:
            problems.append(f"item {index}: {answer!r} is not the number of a question")
            continue
        row = {"question": question, "answer": None, "answer_number": f"{number:f}"}
        rows.append({**row, "equation_solution": None})
    refuse(where, problems)
    return {"train": _exemplars(language, config, data_dir), "test": make_dataset(where, rows)}


def _exemplars(language: str, config: str, data_dir: Path | str | None) -> Dataset:
    local = None if data_dir is None else Path(data_dir)
    name = f"{language}_train.jsonl"
    if local is not None and not any((p / name).is_file() for p in (local / MGSM.benchmark, local)):
        local = None
    hub_id = HUB_IDS[MGSM.benchmark]
    try:
        return load_mgsm_split(language, "train", hub_id=hub_id, config=config, data_dir=local)
    except LayerSwapError as error:
        if data_dir is None or local is not None:
            raise
        raise InputError(
            f"{data_dir}: MGSM-Rev2 takes the exemplars of MGSM, and {MGSM.benchmark}/{name} is "
            f"not there: {error.message}"
        ) from error


def _find_table(folder: Path, language: str) -> Path:
    place = folder / "mgsm_rev2" if (folder / "mgsm_rev2").is_dir() else folder
    if not place.is_dir():
        raise InputError(f"{folder}: no such data folder")
    tables = sorted(place.glob("*.tsv"))
    found = [
        path
        for path in tables
        if path.stem == language or path.stem.endswith((f"_{language}", f"-{language}"))
    ]
    expected = f"mgsm_{language}.tsv"
    if not found:
        hint = nearest(expected, [path.name for path in tables])
        raise InputError(f"{place / expected}: no such file{hint}")
    if len(found) > 1:
        listed = ", ".join(path.name for path in found)
        raise InputError(f"{place}: several tables for {language!r} ({listed}); leave one there")
    return found[0]


def _read_table(path: Path) -> list[Item]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {describe_error(error)}") from error
    items = []
    for number, line in enumerate(text.split("\n"), start=1):  # a question may hold other breaks
        if not line.strip():
            continue
        question, tab, answer = line.rpartition("\t")
        if not tab:
            raise InputError(f"{path}, line {number}: no tab between a question and its number")
        items.append((question.strip(), answer.strip()))
    return items


def _from_hub(hub_id: str, config: str) -> list[Item]:
    from datasets import load_dataset

    try:
        rows = list(load_dataset(hub_id, config, split="test"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{hub_id} ({config}, test): cannot be loaded: {describe_error(error)}. Offline: "
            f"--data-dir DIR with DIR/mgsm_rev2/mgsm_{config}.tsv"
        ) from error
    names = [name for name in _NUMBERS if rows and name in rows[0]]
    if rows and ("question" not in rows[0] or not names):
        raise InputError(
            f"{hub_id} ({config}, test): columns question and {' or '.join(_NUMBERS)} are needed; "
            f"it has {', '.join(rows[0])}"
        )
    return [(str(row["question"]).strip(), str(row[names[0]])) for row in rows]
