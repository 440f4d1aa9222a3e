"""Every language of the table has hand-written data; gold answers score 1, wrong ones 0."""

import pytest

from ablations.tasks.catalog import list_tasks
from tests.standins.scripted import (
    BENCHMARKS,
    OURS,
    TABLE,
    WITH_DATA,
    ask,
    gold,
    missing_data,
    perturbed,
)
from tests.tasks.test_scores import METRICS, own_scores

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("code", TABLE)
def test_a_language_has_hand_written_data(code):
    """A few rows are enough: they show that the words of the entry fit each other."""
    missing = missing_data(code)
    assert not missing, (
        f"{code} of ablations/tasks/languages.yml has benchmarks and no data to test them with: "
        f"write {', '.join(missing)}, from those files of another language"
    )


@pytest.mark.parametrize("code", WITH_DATA)
def test_gold_answers_score_one_and_wrong_ones_zero(code):
    names = tuple(
        task.name for task in list_tasks() if task.language == code and task.benchmark in OURS
    )
    metrics = {(name, *pair) for name in names for pair in METRICS[BENCHMARKS[name]]}
    assert metrics
    for say, score in ((gold, 1.0), (perturbed, 0.0)):
        found = own_scores(ask(say, names))
        assert found == dict.fromkeys(metrics, pytest.approx(score))
