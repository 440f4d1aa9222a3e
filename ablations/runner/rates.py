"""What earlier records took, to say how long a run will take. Reads records; runs nothing."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ablations.runner.records import TaskRecord, read_record
from ablations.study.cost import Rates
from ablations.study.planning import StudyPlan
from layerswap_method.errors import LayerSwapError

_MOST = 2000
"""Records that are read at most, the newest first."""

_ALIKE = 0.1
"""Models whose numbers of weights differ by no more than this share count as of one size."""


def earlier_rates(folder: Path, plan: StudyPlan) -> Rates | None:
    """Return the rates of records in run folders below `folder`; None where none is alike.

    A record counts where it has the plan's engine and dtype and a model of the same size.

    Args:
        folder: such as ``runs``, whose subfolders may be runs.
        plan: what is to be run.
    """
    found = [path.parent for path in folder.glob("*/records/[!.]*/record.json")]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    seconds, items = defaultdict[str, float](float), defaultdict[str, int](int)
    overhead, models, count = 0.0, set[tuple[Path, str]](), 0
    for path in found[:_MOST]:
        record = _read(path)
        if record is None or not _is_alike(record, plan):
            continue
        asked = max((score.n * score.repeats for score in record.evaluation.scores), default=0)
        if not asked:
            continue
        count += 1
        seconds[record.task] += record.timing_s["evaluate"]
        items[record.task] += asked
        overhead += sum(record.timing_s.get(step, 0.0) for step in ("merge", "start", "load"))
        models.add((path.parent, record.weights_key))
    if not count:
        return None
    item_s = {task: seconds[task] / items[task] for task in seconds}
    return Rates(item_s, overhead / len(models), count)


def _read(path: Path) -> TaskRecord | None:
    try:
        return read_record(path.parent.parent, path.name)
    except LayerSwapError:  # damaged, or of another version: it says nothing of time
        return None


def _is_alike(record: TaskRecord, plan: StudyPlan) -> bool:
    weights = record.provenance.get("num_weights")
    return (
        record.evaluation.backend == plan.backend
        and record.provenance.get("dtype") == plan.options.dtype
        and isinstance(weights, int)
        and abs(weights - plan.num_weights) <= _ALIKE * plan.num_weights
        and "evaluate" in record.timing_s
        and not record.evaluation.answers_before  # a part of its time is not known
    )
