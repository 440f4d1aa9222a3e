"""Tables of scores, on made-up ones."""

import pytest

from ablations.evaluate import render_table5
from ablations.scoring.records import Evaluation, TaskScore
from ablations.scoring.scores import wilson_interval
from ablations.tasks.catalog import list_tasks
from layerswap_method.errors import InputError

TASKS = {task.name: task for task in list_tasks()}
SWAHILI, TELUGU, CODE = (TASKS[f"layerswap_{name}"] for name in ("mgsm_sw", "mgsm_te", "mbpp_te"))
SKIPPED = f"{CODE.name}: skipped: needs --allow-code-execution"


def score(task, hits, metric="exact_match", filter="none", n=250):
    interval = wilson_interval(hits, n)
    fixed = {"is_share": True, "stderr": 0.01, "higher_is_better": metric != "truncated"}
    place = {"task": task, "metric": metric, "filter": filter}
    return TaskScore(**place, value=hits / n, interval=interval, n=n, **fixed)


def evaluation(*scores):
    empty = {"task_versions": {}, "num_fewshot": {}, "versions": {}, "elapsed_s": 1.0}
    return Evaluation(model="m", backend="hf", scores=scores, **empty)


def of_mgsm(task, truncated=0):
    hits = {"exact_match": 60, "language_fidelity": 245, "truncated": truncated}
    strict = [score(task.name, n, metric, "strict-match") for metric, n in hits.items()]
    return evaluation(strict[0], score(task.name, 70, filter="flexible-extract"), *strict[1:])


def test_rows_are_as_in_the_paper_and_a_reason_is_a_note():
    done = {task.name: of_mgsm(task) for task in (SWAHILI, TELUGU)}
    lines = render_table5("org/model", (SWAHILI, TELUGU, CODE), done, [SKIPPED]).splitlines()
    shown = ["24.0", "[19.1,", "29.7]", "flexible", "28.0", "98.0", "0.0", "250"]
    assert " ".join(lines[0].split()) == "Task Language org/model also in language cut off items"
    assert lines[2].split() == ["MGSM", "em@maj1,", "8-shot", "Swahili", *shown]
    assert lines[3].split() == ["Telugu", *shown]
    assert lines[4].split() == ["MBPP", "pass@1,", "0-shot", "Telugu", "skipped"]
    assert f"- {SKIPPED}" in lines
    assert not any("cut off at the token limit" in line for line in lines)


@pytest.mark.parametrize(("truncated", "is_said"), [(5, False), (30, True)])
def test_more_than_a_few_percent_cut_off_are_said(truncated, is_said):
    done = {SWAHILI.name: of_mgsm(SWAHILI, truncated)}
    text = render_table5("m", (SWAHILI,), done).replace("\n  ", " ")
    note = "layerswap_mgsm_sw: 12.0 % of the answers were cut off at the token limit: its"
    assert (note in text) == is_said


@pytest.mark.parametrize(
    ("task", "metric", "message"),
    [
        ("pocket_mat", None, "'pocket_mat' was not evaluated; did you mean 'pocket_math'"),
        ("pocket_math", "acc", "no score acc,None; it has exact_match,none"),
    ],
)
def test_a_score_that_is_not_there_is_named_with_those_that_are(task, metric, message):
    with pytest.raises(InputError, match=message):
        evaluation(score("pocket_math", 125)).score(task, metric)
