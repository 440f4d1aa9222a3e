import pytest

from ablations.evaluate.table import format_score, render_table
from ablations.scoring.records import Evaluation, TaskScore
from ablations.statistics.intervals import Interval
from layerswap_method.errors import InputError


def _score(task, value, n=300, **changes):
    interval = Interval(low=value - 0.05, high=value + 0.05, method="wilson")
    fields = {
        "task": task,
        "metric": "exact_match",
        "filter": "none",
        "value": value,
        "is_share": True,
        "interval": interval,
        "stderr": 0.02,
        "n": n,
        "higher_is_better": True,
    }
    return TaskScore.model_validate(fields | changes)


def _evaluation(*scores):
    return Evaluation(
        model="m",
        backend="hf",
        scores=scores,
        samples=(),
        task_versions={},
        num_fewshot={},
        versions={},
        elapsed_s=1.0,
    )


def test_a_score_reads_as_percent_with_its_interval():
    assert format_score(_score("t", 0.6234)) == "62.3 [57.3, 67.3]"
    assert format_score(_score("t", 0.6234, interval=None)) == "62.3"
    assert format_score(_score("t", 17.5, is_share=False, interval=None)) == "17.500"


def test_rows_are_models_and_columns_are_tasks():
    table = render_table(
        {
            "base": _evaluation(_score("p_math", 0.1), _score("p_facts", 0.5)),
            "layer swap": _evaluation(_score("p_math", 0.3), _score("p_facts", 0.4)),
        },
        ["p_math", "p_facts"],
        strip_prefix="p_",
    )
    assert table == (
        "                            math                 facts\n"
        "              exact_match, n=300    exact_match, n=300\n"
        "----------  --------------------  --------------------\n"
        "base            10.0 [5.0, 15.0]     50.0 [45.0, 55.0]\n"
        "layer swap     30.0 [25.0, 35.0]     40.0 [35.0, 45.0]"
    )


def test_columns_that_do_not_fit_go_below_with_the_row_names():
    scores = [_score(f"task{index}", 0.5) for index in range(4)]
    table = render_table({"base": _evaluation(*scores)}, [s.task for s in scores], width=50)
    assert max(len(line) for line in table.splitlines()) <= 50
    assert table.count("base") == 2
    assert all(table.count(score.task) == 1 for score in scores)


def test_unequal_numbers_of_items_are_shown_as_a_range():
    evaluations = {"a": _evaluation(_score("t", 0.5)), "b": _evaluation(_score("t", 0.5, n=250))}
    assert "n=250-300" in render_table(evaluations, ["t"])


def test_a_task_that_was_not_evaluated_is_named_with_the_nearest():
    with pytest.raises(InputError, match="'pocket_mat' was not evaluated; did you mean 'pocket_m"):
        render_table({"a": _evaluation(_score("pocket_math", 0.5))}, ["pocket_mat"])


def test_a_metric_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(InputError, match="no score acc,None; it has exact_match,none"):
        _evaluation(_score("t", 0.5)).score("t", "acc")
