"""The items of a run with what models answered: prompt, response, what filters took, verdict.

Records have targets, filtered answers and values. The texts are in the folder of answers, where
they are looked up by the keys that the records note.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict, Field

from ablations.engines.answers import Answer, read_answers
from ablations.machine.untrusted import open_regular
from ablations.runs.records import TaskRecord
from ablations.runs.run import Run
from ablations.scoring.evaluation import Sample, TaskScore
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED, PROMPT_TRUNCATED, TRUNCATED
from layerswap_method.frozen import Frozen

ExampleKind = Literal["differ", "wrong", "right", "cut", "empty", "neither"]
"""Why an answer is shown as an example."""


class ModelAnswer(Frozen):
    """The answer of one model to an item, and its outcome."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # a choice may be impossible

    model: str
    cell: str
    """Label of the cell."""

    responses: tuple[str, ...] | tuple[tuple[float, bool], ...] = ()
    """One per prompt: texts generated, or log-likelihoods in nats and whether they are greedy."""

    taken: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Filter -> what it took of each response; empty where texts were scored."""

    values: dict[str, float] = Field(default_factory=dict)
    """Metric, with the filter where there are several -> value of the item."""

    verdict: str = ""
    """The outcome of a program, where one was run."""

    is_right: bool | None = None
    """Whether the score has its best value; None where an item alone has no such value (BLEU)."""

    is_cut: bool = False
    """Whether it ended at the limit of tokens."""

    kinds: tuple[ExampleKind, ...] = ()
    keys: tuple[str, ...] = Field(default=(), exclude=True)
    """Those of the responses in the file of answers."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing but white space was generated."""
        texts = [text for text in self.responses if isinstance(text, str)]
        return bool(texts) and not any(text.strip() for text in texts)

    @property
    def likeliest(self) -> int | None:
        """Index of the response with the highest log-likelihood; None for texts."""
        scores = [score[0] for score in self.responses if isinstance(score, tuple)]
        return scores.index(max(scores)) if scores else None


class AnsweredItem(Frozen):
    """An item of a task with the answers of one model or of several."""

    task: str
    item: int
    """The ``doc_id``, from 0."""

    repeat: int = 0
    content: str
    """Hashes of item and prompt, equal where models got the same text."""

    prompts: tuple[str, ...] = ()
    """As sent; one where all are the same."""

    choices: tuple[str, ...] = ()
    """The text that was scored after each prompt; () where text was generated."""

    target: str
    answers: tuple[ModelAnswer, ...]

    @property
    def place(self) -> tuple[int, int]:
        """Item and repeat."""
        return self.item, self.repeat


def judged_items(
    record: TaskRecord, samples: Iterable[Sample], *, model: str, cell: str, metric: str | None
) -> list[AnsweredItem]:
    """Return the items of a record without texts, judged by `metric` or the task's first one.

    `samples` are its items; `model` and `cell` are the names in the answers.
    """
    score = record.evaluation.shown_score(record.task, metric)
    by_item: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        by_item.setdefault((sample.doc_id, sample.repeat), []).append(sample)
    items = []
    for (item, repeat), filtered in by_item.items():
        first = filtered[0]
        texts = {
            sample.filter: tuple(_clean(text) for text in sample.answers if isinstance(text, str))
            for sample in filtered
        }
        program = next((sample.program for sample in filtered if sample.program), None)
        answer = ModelAnswer(
            model=model,
            cell=cell,
            taken={name: taken for name, taken in texts.items() if taken},
            values=_values(filtered),
            verdict="" if program is None else f"{program.status} {program.detail}".strip(),
            is_right=_is_right(filtered, score),
            is_cut=first.values.get(TRUNCATED) == 1,
            keys=first.keys,
        )
        items.append(
            AnsweredItem(
                task=first.task,
                item=item,
                repeat=repeat,
                content=f"{first.doc_hash[:12]}/{first.prompt_hash[:12]}",
                target=_clean(first.target),
                answers=(answer,),
            )
        )
    return items


def _values(filtered: Sequence[Sample]) -> dict[str, float]:
    values = dict[str, float]()
    for sample in filtered:
        for metric, value in sample.values.items():
            if isinstance(value, float) and metric not in OBSERVED:
                values[metric if len(filtered) == 1 else f"{metric} ({sample.filter})"] = value
    for metric in (LANGUAGE_FIDELITY, PROMPT_TRUNCATED):
        observed = filtered[0].values.get(metric)
        if isinstance(observed, float) and (metric == LANGUAGE_FIDELITY or observed):
            values[metric] = observed
    return values


def _is_right(filtered: Sequence[Sample], score: TaskScore) -> bool | None:
    sample = next((sample for sample in filtered if sample.filter == score.filter), None)
    value = None if sample is None else sample.values.get(score.metric)
    if not isinstance(value, float) or not score.is_share:
        return None
    return value >= 1 if score.higher_is_better else value <= 0


class _Texts(NamedTuple):
    """Files of texts, from the run folder."""

    answer_file: Path
    prompt_file: Path


def _text_files(run: Run, record: TaskRecord) -> _Texts | None:
    names = record.provenance.get("texts")
    if not isinstance(names, list) or len(names) != 2:
        return None
    return _Texts(run.path / str(names[0]), run.path / str(names[1]))


def with_prompts(run: Run, record: TaskRecord, items: Iterable[AnsweredItem]) -> list[AnsweredItem]:
    """Return those of the items of a record whose prompts are stored, with these."""
    items, files = list(items), _text_files(run, record)
    if files is None or not items:
        return []
    try:
        contents = _read_prompts(files.prompt_file, {item.item for item in items})
    except OSError:
        return []
    stored = (item for item in items if item.item in contents)
    return [item.model_copy(update=contents[item.item]) for item in stored]


def with_responses(
    run: Run, record: TaskRecord, items: Iterable[AnsweredItem]
) -> list[AnsweredItem]:
    """Return those of the items of a record whose responses are stored, with these."""
    items, files = list(items), _text_files(run, record)
    if files is None:
        return []
    stored = dict[str, Answer]()
    try:
        stored = read_answers(files.answer_file, {key for i in items for key in i.answers[0].keys})
    except OSError:
        return []
    full = []
    for item in items:
        (answer,) = item.answers
        responses = [stored[key].response for key in answer.keys if key in stored]
        if not responses or len(responses) < len(answer.keys):
            continue
        texts = tuple(_clean(text) if isinstance(text, str) else text for text in responses)
        answered = answer.model_copy(update={"responses": texts})
        full.append(item.model_copy(update={"answers": (answered,)}))
    return full


def why_no_texts(run: Run, record: TaskRecord, items: Collection[AnsweredItem]) -> str:
    """Return why the texts of items of a record cannot be shown, and the remedy."""
    files = _text_files(run, record)
    advice = f"remove {record.path} and run the same command again"
    if files is None or not any(item.answers[0].keys for item in items):
        return (
            f"{record.task} was scored without a folder of answers; {advice}: the model gets the "
            "prompts whose answers are not stored"
        )
    return (
        f"the texts of {record.task} are no longer in {files.answer_file} and {files.prompt_file}; "
        f"{advice}: the model gets the prompts whose answers are gone"
    )


def _read_prompts(path: Path, items: Collection[int]) -> dict[int, Any]:
    """Return item -> its fields of an `AnsweredItem`, of those `items` that a file has."""
    contents = dict[int, Any]()
    wanted = {b'{"item": %d,' % item for item in items}
    with open_regular(path) as file:
        for line in file:
            # Files are large where each of many choices has its prompt.
            if line[: line.find(b",") + 1] not in wanted:
                continue
            try:
                content = json.loads(line)
                prompts = [_clean(str(text)) for text in content["prompts"]]
                if len(set(prompts)) == 1:
                    del prompts[1:]
                choices = tuple(_clean(str(text)) for text in content.get("choices", ()))
                contents[int(content["item"])] = {"prompts": tuple(prompts), "choices": choices}
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
    return contents


def _clean(text: str) -> str:
    """Return a text without lone surrogates, which no file and no terminal takes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
