"""The list of tasks by language and benchmark, ours and those of lm-eval's suites."""

import pytest

from ablations.requests.lm_eval_index import lm_eval_index
from ablations.tasks.catalog import list_tasks
from ablations.tasks.listing import LM_EVAL, describe_benchmarks, listed_tasks
from layerswap_method.errors import InputError


def test_every_task_of_the_list_is_one_that_can_be_evaluated():
    every = listed_tasks()
    ours = [task.name for task in every if task.source != LM_EVAL]
    assert ours == [task.name for task in list_tasks()]
    assert {task.name for task in every} - {*ours} <= {*lm_eval_index()}
    assert len(every) > len(ours) + 500


def test_languages_and_benchmarks_choose():
    names = {task.name for task in listed_tasks(["spanish", "hi"], ["mgsm", "belebele"])}
    assert {"layerswap_mgsm_es", "mgsm_direct_es", "belebele_spa_Latn"} <= names
    assert {"belebele_hin_Deva", "belebele_hin_Latn"} <= names  # both scripts
    assert not any("_sw" in name for name in names)
    assert {task.language for task in listed_tasks(["hi_Latn"])} == {"hi_Latn"}


@pytest.mark.parametrize(
    ("languages", "benchmarks", "message"),
    [
        (["spansh"], [], "no task is in 'spansh'"),
        (["xx"], [], "no task is in 'xx'; valid are en, ja, bn, sw, te, "),
        ([], ["mgms"], "no benchmark 'mgms'; did you mean 'mgsm'?"),
        ([], ["nonsense"], "no benchmark 'nonsense'; layerswap tasks lists them"),
        (["te"], ["xquad"], "no task of xquad is in te; there are ar, ca, de"),
    ],
)
def test_what_is_not_there_is_said(languages, benchmarks, message):
    with pytest.raises(InputError) as raised:
        listed_tasks(languages, benchmarks)
    assert raised.value.message.startswith(message)


def test_a_benchmark_of_many_languages_has_their_number():
    lines = describe_benchmarks().splitlines()
    (belebele,) = (line for line in lines if line.startswith("belebele_{lang}"))
    assert belebele.endswith("123 languages")
    assert not any(line.startswith("afrixnli_{lang}_prompt_2") for line in lines)
