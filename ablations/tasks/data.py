"""Sources of items: the hub, or local files of the same schema.

lm-eval calls a `load_*` function with the task's ``dataset_kwargs`` and its ``metadata``; a
``data_dir`` among the metadata (`TaskManager(metadata={"data_dir": ...})`, or from the shell
``--metadata '{"data_dir": "..."}'``) replaces the hub. The layout is in README.md here.

Every ``load_*`` raises `DataUnavailable` where the hub gives no data, and `InputError` for data
that is not the benchmark's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ablations.machine.whole_files import read_lines
from ablations.tasks.numbers import read_number
from layerswap_method.errors import (
    InputError,
    LayerSwapError,
    describe_error,
    describe_json_error,
    nearest,
)
from layerswap_method.hub.refusals import hub_answers

if TYPE_CHECKING:
    from datasets import Dataset

DataRow = dict[str, Any]
MGSM_EXEMPLARS = 8
CHOICE_EXEMPLARS = 5


class DataUnavailable(LayerSwapError):
    """The data of a task is not on this machine, and no hub gave it."""


class DataSource(NamedTuple):
    """Columns and files of a benchmark's data, wherever it comes from."""

    benchmark: str
    """Name of the folder below ``data_dir``."""

    columns: tuple[str, ...]
    """The dataset's own names; others are left out, so hub and files give equal items."""

    texts: tuple[str, ...]
    """Columns that prompts are made of: text in every row."""

    optional: tuple[str, ...] = ()
    file: str = "{language}_{split}.jsonl"
    """Name of a local file; a ``.tsv`` has a question, a tab and its number on every line."""

    access: str = ""
    """Instructions to get the data, where that takes more than a download."""


MGSM = DataSource(
    "mgsm",
    ("question", "answer_number"),
    ("question",),
    optional=("answer", "equation_solution"),  # items have none; exemplars need the first
)
_MGSM_COLUMNS = ("question", "answer", "answer_number", "equation_solution")  # as the hub has them
MGSM_REV2 = DataSource(
    "mgsm_rev2",
    ("question",),
    ("question",),
    optional=("answer_number", "answer", "number"),  # the hub's columns could not be looked up
    file="mgsm_{language}.tsv",  # as github.com/google-research-datasets/MGSM-Rev2 has them
)
MSVAMP = DataSource(
    "msvamp",
    (),
    (),
    # In files as MGSM's; on the hub, by public programs that read it, m_query and response.
    optional=("question", "m_query", "answer_number", "response"),
)
GLOBAL_MGSM = DataSource(
    "global_mgsm",
    ("instruction", "question", "answer_prefix", "answer"),
    ("instruction", "question", "answer_prefix"),
)
_BELEBELE = ("link", "question_number", "flores_passage", "question")
_CHOICES = ("mc_answer1", "mc_answer2", "mc_answer3", "mc_answer4", "correct_answer_num")
BELEBELE = DataSource("belebele", (*_BELEBELE, *_CHOICES), ("flores_passage", "question"))
_MMLU = ("sample_id", "subject", "question", "option_a", "option_b", "option_c", "option_d")
MMLU = DataSource("mmlu", (*_MMLU, "answer"), ("subject", "question"))
FLORES = DataSource(
    "flores",
    ("id", "text"),
    ("text",),
    access="FLORES+ is gated: accept its conditions at "
    "https://huggingface.co/datasets/openlanguagedata/flores_plus, then `hf auth login`",
)


def load_mgsm(
    *,
    hub_id: str,
    configs: Mapping[str, str],
    before_question: str,
    before_solution: str,
    benchmark: str,
    exemplars: str | None = None,
    data_dir: Path | str | None = None,
    **_metadata: Any,
) -> dict[str, Dataset]:
    """Return the splits ``train`` (exemplars) and ``test`` of MGSM, MGSM-Rev2 or MSVAMP.

    Only exemplars have native words in the data: `before_question` and `before_solution`, which are
    taken off, so that one template asks exemplars and items. `exemplars` is the hub id of MGSM for
    the others, which have questions and no exemplars.
    """
    ((language, config),) = configs.items()
    train = read_data_rows(MGSM, "train", language, config, exemplars or hub_id, data_dir)
    source = {"mgsm": MGSM, "mgsm_rev2": MGSM_REV2, "msvamp": MSVAMP}[benchmark]
    test = read_data_rows(source, "test", language, config, hub_id, data_dir)
    if source is not MGSM:
        where = f"{benchmark} {language} (test)"
        test = [_as_mgsm(where, index, row) for index, row in enumerate(test)]
    train, test = (
        [{**dict.fromkeys(_MGSM_COLUMNS), **row} for row in rows] for rows in (train, test)
    )
    prefixes = {"question": before_question, "answer": before_solution}
    problems = [
        f"item {index}: an exemplar whose {name} does not begin with {prefix!r}"
        for index, row in enumerate(train)
        for name, prefix in prefixes.items()
        if not str(row[name] or "").startswith(prefix)
    ]
    if len(train) < MGSM_EXEMPLARS:
        problems.append(f"{len(train)} exemplars; needed are {MGSM_EXEMPLARS}")
    if not problems:
        for row in train:
            row |= {name: row[name].removeprefix(prefix) for name, prefix in prefixes.items()}
    return {
        "train": _mgsm_dataset(f"mgsm {language} (train)", train, problems),
        "test": _mgsm_dataset(f"{source.benchmark} {language} (test)", test),
    }


def _as_mgsm(where: str, index: int, row: DataRow) -> DataRow:
    """Return a question and its number with MGSM's columns."""
    names = {
        "question": ("question", "m_query"),
        "answer_number": ("answer_number", "response", "answer", "number"),
    }
    values = {
        column: next((row[name] for name in others if name in row), None)
        for column, others in names.items()
    }
    if not isinstance(values["question"], str):
        raise InputError(f"{where}: row {index}: no text in column 'question' or 'm_query'")
    return {**values, "question": values["question"].strip()}


def _mgsm_dataset(
    where: str,
    rows: list[DataRow],
    problems: Sequence[str] = (),
    number: str = "answer_number",
) -> Dataset:
    problems = list(problems)
    for index, row in enumerate(rows):
        if (value := read_number(str(row[number]))) is None:
            problems.append(f"item {index}: {number} {row[number]!r} is not a number")
        else:  # the hub has 2125 where files may have "2,125", and MSVAMP 8.0
            text = f"{value:f}"
            row[number] = text.rstrip("0").rstrip(".") if "." in text else text
    return make_dataset(where, rows, problems)


def load_global_mgsm(
    *, hub_id: str, configs: Mapping[str, str], data_dir: Path | str | None = None, **_metadata: Any
) -> dict[str, Dataset]:
    """Return Global-MGSM's only split, ``test``, with the number of the answer as text."""
    ((language, config),) = configs.items()
    rows = read_data_rows(GLOBAL_MGSM, "test", language, config, hub_id, data_dir)
    where = f"global_mgsm {language} (test)"
    problems = [
        f"item {index}: {name} is empty"
        for index, row in enumerate(rows)
        for name in GLOBAL_MGSM.texts
        if not row[name].strip(":： \n")
    ]
    refuse(where, problems)
    for row in rows:
        row |= {name: row[name].strip() for name in GLOBAL_MGSM.texts}
    return {"test": _mgsm_dataset(where, rows, number="answer")}


def load_polymath(
    *,
    hub_id: str,
    configs: Mapping[str, str],
    level: str,
    data_dir: Path | str | None = None,
    **_metadata: Any,
) -> dict[str, Dataset]:
    """Return one level of PolyMath, which is a split on the hub, as the split ``test``."""
    ((language, config),) = configs.items()
    source = DataSource(
        f"polymath_{level}",
        ("id", "question", "answer"),
        ("question", "answer"),
        file="{language}_test.jsonl",
    )
    rows = read_data_rows(source, level, language, config, hub_id, data_dir)
    for row in rows:
        row |= {name: row[name].strip() for name in source.texts}
    problems = [f"item {index}: no answer" for index, row in enumerate(rows) if not row["answer"]]
    return {"test": make_dataset(f"polymath_{level} {language} (test)", rows, problems)}


def load_belebele(
    *, hub_id: str, configs: Mapping[str, str], data_dir: Path | str | None = None, **_metadata: Any
) -> dict[str, Dataset]:
    """Return Belebele's only split, ``test``, with the letter of the answer as `answer`."""
    ((language, config),) = configs.items()
    rows = read_data_rows(BELEBELE, "test", language, config, hub_id, data_dir)
    problems = []
    for index, row in enumerate(rows):
        number = row["correct_answer_num"] = str(row["correct_answer_num"])
        row["answer"] = dict(zip("1234", "ABCD", strict=True)).get(number)
        if row["answer"] is None:
            problems.append(f"item {index}: correct_answer_num {number!r} is not 1, 2, 3, 4")
    if len(rows) <= CHOICE_EXEMPLARS:
        problems.append(
            f"{len(rows)} items; {CHOICE_EXEMPLARS} examples and the item need "
            f"{CHOICE_EXEMPLARS + 1}"
        )
    return {"test": make_dataset(f"belebele {language} (test)", rows, problems)}


def load_mmlu(
    *, hub_id: str, configs: Mapping[str, str], data_dir: Path | str | None = None, **_metadata: Any
) -> dict[str, Dataset]:
    """Return one split, ``items``: those of ``dev`` and ``test``, by column `split`."""
    ((language, config),) = configs.items()
    items = [
        {**row, "split": split}
        for split in ("dev", "test")
        for row in read_data_rows(MMLU, split, language, config, hub_id, data_dir)
    ]
    letters = dict.fromkeys(row["answer"] for row in items if row["answer"] not in list("ABCD"))
    problems = [f"answer {letter!r} is not A, B, C, D" for letter in letters]
    examples = Counter(row["subject"] for row in items if row["split"] == "dev")
    problems += [
        f"{examples[subject]} examples (dev) of {subject!r}; needed are {CHOICE_EXEMPLARS}"
        for subject in dict.fromkeys(row["subject"] for row in items if row["split"] == "test")
        if examples[subject] < CHOICE_EXEMPLARS
    ]
    return {"items": make_dataset(f"mmlu {language}", items, problems)}


def load_flores(
    *, hub_id: str, configs: Mapping[str, str], data_dir: Path | str | None = None, **_metadata: Any
) -> dict[str, Dataset]:
    """Return the split ``devtest`` of a pair: `id`, `source`, `target`, in the order of `id`.

    `configs` has the source language first, then the target language.
    """
    sides, problems = [], list[str]()
    for language, config in configs.items():
        rows = read_data_rows(FLORES, "devtest", language, config, hub_id, data_dir)
        counts = Counter(row["id"] for row in rows)
        problems += [
            f"{language}: sentence {id_} occurs twice" for id_, count in counts.items() if count > 1
        ]
        texts = {row["id"]: row["text"].strip() for row in rows}
        problems += [
            f"{language}: sentence {id_} is empty or of several lines"
            for id_, text in texts.items()
            if not text or "\n" in text  # a line break would end prompt or answer there
        ]
        sides.append(texts)
    source, target = sides
    if unpaired := sorted(source.keys() ^ target.keys(), key=str):
        problems.append(
            f"{len(unpaired)} sentences are in one language only, such as id {unpaired[0]}"
        )
    where = f"flores {'-'.join(configs)} (devtest)"
    refuse(where, problems)
    items = [{"id": id_, "source": source[id_], "target": target[id_]} for id_ in sorted(source)]
    return {"devtest": make_dataset(where, items)}


def read_data_rows(
    source: DataSource,
    split: str,
    language: str,
    config: str,
    hub_id: str,
    data_dir: Path | str | None,
) -> list[DataRow]:
    """Return the rows of one split, with the columns of `source` only (optional ones if there).

    Local files go by the code of the language, data sets of the hub by their `config`.

    Raises:
        InputError: when file, dataset or a column is missing, there are no rows, or a text is none.
        DataUnavailable: when the hub gives no such data.
    """
    if data_dir is None:
        rows, where = _from_hub(source, hub_id, config, split), f"{hub_id} ({config}, {split})"
    else:
        path = _find_file(source, language, split, Path(data_dir))
        rows, where = _from_file(path), str(path)
    if not rows:
        raise InputError(f"{where}: no rows")
    problems = []
    for index, row in enumerate(rows):
        for name in source.columns:
            if name not in row:
                problems.append(f"row {index}: no column {name!r}{nearest(name, row)}")
            elif name in source.texts and not isinstance(row[name], str):
                problems.append(f"row {index}: {name} is {row[name]!r}, which is not text")
    refuse(where, problems)
    names = (*source.columns, *source.optional)
    return [{name: row[name] for name in names if name in row} for row in rows]


def _find_file(source: DataSource, language: str, split: str, data_dir: Path) -> Path:
    folder, file = data_dir / source.benchmark, source.file.format(language=language, split=split)
    if source is MGSM and not folder.is_dir() and (data_dir / file).is_file():
        return data_dir / file  # a folder of one benchmark, as MGSM's files are handed around
    path = folder / file
    if not path.is_file():
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        before, after = source.file.format(language="\0", split=split).split("\0")
        codes = [
            name.removeprefix(before).removesuffix(after)
            for name in sorted(names)
            if name.startswith(before) and name.endswith(after)
        ]
        there = f"; in {folder} there is {', '.join(codes)}" if codes else ""
        raise InputError(f"{path}: no such file{there}")
    return path


def _from_file(path: Path) -> list[DataRow]:
    rows, number = list[DataRow](), 0
    try:
        for number, line in read_lines(path):
            if path.suffix == ".tsv":
                question, tab, answer = line.lstrip("\ufeff").rpartition("\t")
                if not tab:
                    raise InputError(
                        f"{path}, line {number}: no tab between a question and its number"
                    )
                rows.append({"question": question, "answer_number": answer.strip()})
            else:
                row = json.loads(line.rstrip("\r\n"))
                if not isinstance(row, dict):
                    raise InputError(
                        f"{path}, line {number}: not an object with the dataset's columns"
                    )
                rows.append(row)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: {describe_json_error(error)}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {describe_error(error)}") from error
    return rows


def stop_retries() -> None:
    """Have the libraries look in their caches only, where the hub does not answer.

    Without a network they ask for every file of a data set six times, for half a minute.
    """
    if not hub_answers():
        import datasets
        import huggingface_hub

        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True


def _from_hub(source: DataSource, hub_id: str, config: str, split: str) -> list[DataRow]:
    from datasets import load_dataset

    stop_retries()
    try:
        return list(load_dataset(hub_id, config, split=split))
    # Gated, private, renamed, no such config, no network: all are one of these.
    except (OSError, ValueError) as error:
        hint = f" {source.access}." if source.access else ""
        raise DataUnavailable(
            f"{hub_id} ({config}, {split}): cannot be loaded: {describe_error(error)}.{hint} "
            f"Offline: --data-dir DIR with DIR/{source.benchmark}/"
            + source.file.format(language="{language}", split=split)
        ) from error


def refuse(where: str, problems: Sequence[str]) -> None:
    """Raise an `InputError` with the first five problems, if there is one."""
    if problems:
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise InputError.from_problems(where, [*problems[:5], *more])


def make_dataset(where: str, rows: list[DataRow], problems: Sequence[str] = ()) -> Dataset:
    """Return `rows` as lm-eval takes them, or raise an `InputError` of `problems`."""
    from datasets import Dataset

    refuse(where, problems)
    try:
        return Dataset.from_list(rows)
    except (TypeError, ValueError) as error:  # those of Arrow are among them
        raise InputError(
            f"{where}: the values of a column are of several types: {describe_error(error)}"
        ) from error
