"""The request of an evaluation, and its result.

A score is a share in [0, 1] (lm-eval's BLEU and chrF++ are divided by 100); percent belongs to
tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    PlainSerializer,
    StrictInt,
    StrictStr,
    field_validator,
)

from ablations.sandbox import Isolation, ProgramVerdict
from ablations.scoring.protocol import EvaluationProtocol
from ablations.statistics.intervals import Interval
from ablations.tasks.catalog import PREFIX, SHIPPED_TASKS, Floor
from layerswap_method.errors import LayerSwapError
from layerswap_method.frozen import Frozen

Backend = Literal["hf", "vllm"]
"""Engine that ran the model: transformers, or vLLM."""

Listed = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""Takes one name where a list of names is meant."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _listed(value: object) -> object:
    return () if value is None else [value] if isinstance(value, str | Path) else value


def _alone(folders: tuple[Path, ...]) -> object:
    return folders if len(folders) > 1 else next(iter(folders), None)


Folders = Annotated[tuple[Path, ...], BeforeValidator(_listed), PlainSerializer(_alone)]
"""Folders, of which one may be, and is, written alone; null for none."""

_REFUSED = {
    "trust_remote_code": "code that comes with a model or a data set is never run here",
    "data_dir": "the folder of the benchmarks' data has a key of its own, data_dir",
}
"""Key that no `metadata` may have -> why."""


class TaskFailed(LayerSwapError):
    """Raised where the evaluation of a task fails; the message begins with the task's name."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(f"{task}: {reason}")
        self.reason = reason


class TaskScore(Frozen):
    """One metric of one task, over all items of the request."""

    task: str
    metric: str
    filter: str
    """lm-eval's filter name; ``none`` where a task has no filter."""

    value: float
    """The score: a share in [0, 1] if `is_share`, else what lm-eval gives (perplexity)."""

    is_share: bool
    interval: Interval | None
    """Interval over items (not over trainings or seeds); None where none was derived."""

    stderr: float | None
    """Standard error over items; None where there is no interval, or with a single item."""

    n: int = Field(ge=1)
    higher_is_better: bool
    signature: str | None = None
    """sacrebleu's signature of a corpus metric (tokeniser, smoothing, version); None elsewhere."""

    repeats: int = Field(default=1, ge=1)
    """Samples of every item behind `value`, which is their mean."""

    deviation: float | None = None
    """Standard deviation of the score over repeats (n-1 degrees), on the scale of `value`; None for
    a single one."""

    floor: Floor | None = None
    """The score of a rule that does not read, as the task says of its first metric."""


class Sample(Frozen):
    """The model's answer to one item, after one filter."""

    task: str
    filter: str
    doc_id: int = Field(ge=0, lt=2**63)
    """0-based index of the item in the task's evaluation split."""

    prompts: tuple[str, ...] = ()
    """The contexts as sent (one, or one per choice), few-shot examples included; not in records."""

    choices: tuple[str, ...] = ()
    """Per prompt: the text that was scored after it, () where one was generated; not in records."""

    target: str
    """The gold answer, or the index of the gold choice."""

    responses: tuple[str | tuple[float, bool], ...] = ()
    """Per prompt: the text generated, or (log-likelihood in nats, whether it is greedy); not in
    records."""

    keys: tuple[str, ...] = ()
    """Per prompt: the key of the response in the file of answers; () where it is not stored."""

    answers: tuple[str | tuple[float, bool], ...]
    """`responses` after the filter, as they were compared with the target."""

    values: dict[str, float | tuple[str, str]]
    """Per metric: the item's value; for BLEU and its kin the pair (reference, prediction)."""

    doc_hash: str
    prompt_hash: str
    """lm-eval's hash of the first prompt: equal where the prompts are equal."""

    target_hash: str
    program: ProgramVerdict | None = None
    """The verdict on the program in `answers`; None where none was run."""

    repeat: int = Field(default=0, ge=0, lt=2**63)
    """0-based number of the sample of this item."""


class EvaluationSettings(EvaluationProtocol):
    """Tasks, and how they are evaluated: everything but the model, the engine and the sandbox."""

    tasks: Annotated[tuple[StrictStr, ...], Listed] = ()
    """Names of lm-eval tasks, groups or tags for every model. One with ``{lang}``, such as
    ``"belebele_{lang}"`` (in quotes), is the task of each language expert's language."""

    include_path: Folders = ()
    """Folder with your own lm-eval task files, or a list of them, of which the first one that has a
    task counts. They are programs: read them before you run them. The experts file's folders win.
    The paper's benchmarks and lm-eval's own tasks can be named as well."""

    data_dir: Path | None = None
    """Folder with the data of the benchmarks, in place of the hub."""

    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments that tasks ask for, such as ``{tokenizer: org/model, max_seq_lengths: [4096]}`` of
    lm-eval's RULER; lm-eval's ``--metadata``. Every task gets all of them."""

    limit: StrictInt | None = Field(default=None, ge=1)
    """Items per task, from the first; null for all. Without it, what the experts file says, or
    all."""

    items: dict[str, tuple[StrictInt, ...]] = Field(default_factory=dict)
    """Task -> its items by their row (from 0) in the order in which they are answered, as a search
    writes it; `limit` counts from the first of them. Without it, all in the task's own order."""

    seed: Seed = 0
    """Seed of the choice of few-shot examples, of the bootstrap and of sampled answers."""

    level: float = Field(default=0.95, gt=0, lt=1)
    """Confidence level of the intervals."""

    @field_validator("metadata")
    @classmethod
    def _metadata_is_allowed(cls, metadata: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in metadata:
            if name in _REFUSED:
                raise ValueError(f"{name} is not passed to tasks: {_REFUSED[name]}")
        return metadata

    @property
    def task_folders(self) -> tuple[Path, ...]:
        """The folders of the task files: the shipped one where no other is named."""
        return tuple(folder.absolute() for folder in self.include_path) or (SHIPPED_TASKS,)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that the tasks are looked for in; the first one wins."""
        names_shipped = any(task.startswith(PREFIX) for task in self.tasks)
        if names_shipped and SHIPPED_TASKS not in self.task_folders:
            return (*self.task_folders, SHIPPED_TASKS)
        return self.task_folders


class EvaluationRequest(EvaluationSettings):
    """The tasks and settings of one evaluation."""

    isolation: Isolation | None = None
    """The sandbox of generated programs; None skips the tasks that run them."""


class Evaluation(Frozen):
    """The answer to an `EvaluationRequest`."""

    model: str
    backend: Backend
    scores: tuple[TaskScore, ...]
    """Every metric and filter of every task, in the order of the request."""

    samples: tuple[Sample, ...] = ()
    """One for each task, filter and item; in the files of records once they are stored."""

    task_versions: dict[str, str]
    """Version per task, from its YAML metadata; ``""`` where it states none."""

    num_fewshot: dict[str, int]
    versions: dict[str, str]
    elapsed_s: float
    """Wall time of the evaluation without loading the model, in seconds."""

    answers_before: int = 0
    """Answers that were stored before; `elapsed_s` is without the time they took."""

    skipped: dict[str, str] = Field(default_factory=dict)
    """Task of the request that was skipped -> why."""

    notes: tuple[str, ...] = ()
    """Notes for a reader of the scores: prompts that did not fit, metrics that are absent."""

    unpublished: tuple[str, ...] = ()
    """Tasks whose data must not be published, as their metadata says."""

    def shown_score(self, task: str, metric: str | None = None) -> TaskScore:
        """Return the score that is shown of `task`; see `shown_score`."""
        return shown_score([score for score in self.scores if score.task == task], metric)

    def samples_of(self, task: str) -> tuple[Sample, ...]:
        """Return the samples of `task`, in the order of their items."""
        return tuple(sample for sample in self.samples if sample.task == task)


def shown_score(scores: Sequence[TaskScore], metric: str | None = None) -> TaskScore:
    """Return which score of a task is shown, by `shown_metric_position`."""
    return scores[shown_metric_position([score.metric for score in scores], metric)]


def shown_metric_position(metrics: Sequence[str], metric: str | None) -> int:
    """Return which of a task's scores is shown, by their metrics: the first of `metric`.

    It is the first of all where none is of `metric`.
    """
    return metrics.index(metric) if metric in metrics else 0
