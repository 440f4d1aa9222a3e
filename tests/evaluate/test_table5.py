"""The layout of Table 5 and its notes, on made-up scores."""

from ablations.evaluate.table5 import render_table5
from ablations.scoring.intervals import wilson_interval
from ablations.scoring.records import Evaluation, TaskScore
from ablations.tasks.catalog import list_tasks

TASKS = {task.name: task for task in list_tasks()}
SWAHILI, TELUGU, CODE = (TASKS[f"layerswap_{name}"] for name in ("mgsm_sw", "mgsm_te", "mbpp_te"))


def _evaluation(task, *, truncated):
    hits = {
        ("exact_match", "strict-match"): 60,
        ("exact_match", "flexible-extract"): 70,
        ("language_fidelity", "strict-match"): 245,
        ("truncated", "strict-match"): truncated,
    }
    return Evaluation(
        model="m",
        backend="hf",
        scores=tuple(
            TaskScore(
                task=task.name,
                metric=metric,
                filter=filter_name,
                value=count / 250,
                is_share=True,
                interval=wilson_interval(count, 250),
                stderr=0.01,
                n=250,
                higher_is_better=metric != "truncated",
            )
            for (metric, filter_name), count in hits.items()
        ),
        samples=(),
        task_versions={},
        num_fewshot={},
        versions={},
        elapsed_s=1.0,
    )


def test_rows_are_as_in_the_paper_and_a_reason_is_a_note():
    done = {task.name: _evaluation(task, truncated=0) for task in (SWAHILI, TELUGU)}
    why = {CODE.name: "needs --allow-code-execution"}
    lines = render_table5("org/model", (SWAHILI, TELUGU, CODE), done, why).splitlines()
    score = ["24.0", "[19.1,", "29.7]", "flexible", "28.0", "98.0", "0.0", "250"]
    assert " ".join(lines[0].split()) == "Task Language org/model also in language cut off items"
    assert lines[2].split() == ["MGSM", "em@maj1,", "8-shot", "Swahili", *score]
    assert lines[3].split() == ["Telugu", *score]
    assert lines[4].split() == ["MBPP", "pass@1,", "0-shot", "Telugu", "skipped"]
    assert f"- {CODE.name}: skipped: needs --allow-code-execution" in lines
    assert not any("cut off at the token limit" in line for line in lines)


def test_more_than_a_few_percent_cut_off_are_said():
    for truncated, is_said in ((5, False), (30, True)):
        done = {SWAHILI.name: _evaluation(SWAHILI, truncated=truncated)}
        text = render_table5("m", (SWAHILI,), done, {}).replace("\n  ", " ")
        note = "layerswap_mgsm_sw: 12.0 % of the answers were cut off at the token limit: its"
        assert (note in text) == is_said


def test_nothing_but_skipped_tasks_is_a_table_too():
    text = render_table5("m", (CODE,), {}, {CODE.name: "needs --allow-code-execution"})
    assert text.splitlines()[2].split()[-2:] == ["Telugu", "skipped"]
    assert f"{CODE.name}: skipped: needs --allow-code-execution" in text
