"""The list of the shipped tasks, against the files that lm-eval reads."""

from typing import Any

import pytest

from ablations.engines.task_loading import load_tasks
from ablations.scoring.records import EvaluationRequest
from ablations.tasks.catalog import TITLES, choose, list_tasks
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA

TASKS = list_tasks()
CODES = ("en", "ja", "bn", "sw", "te")


OTHERS = ["de", "es", "fr", "ru", "th", "zh"]


def test_every_benchmark_has_the_papers_languages_in_the_papers_order() -> None:
    assert list(dict.fromkeys(task.benchmark for task in TASKS)) == list(TITLES)
    for benchmark in TITLES:
        languages = [task.language for task in TASKS if task.benchmark == benchmark]
        if benchmark.startswith("mgsm"):
            assert languages[len(CODES) :] == OTHERS
            del languages[len(CODES) :]
        both_ways = [code for code in CODES if code != "en" for _ in range(2)]
        assert languages == (both_ways if benchmark == "flores" else list(CODES))
    labels = [task.label for task in TASKS if task.benchmark == "flores"]
    assert labels[:4] == ["Eng-Jpn", "Jpn-Eng", "Eng-Ben", "Ben-Eng"]


def test_the_list_says_what_lm_eval_reads() -> None:
    asked = [task for task in TASKS if task.language == "sw"]
    assert len(asked) == 7
    request = EvaluationRequest(
        tasks=tuple(task.name for task in asked),
        data_dir=DATA,
        allow_code_execution=True,
        code_isolation="none",
    )
    loaded: list[Any] = load_tasks(request)[0]
    for task, theirs in zip(asked, loaded, strict=True):
        config = theirs.config
        assert task.name == config.task
        assert task.num_fewshot == config.num_fewshot
        assert task.max_gen_toks == (config.generation_kwargs or {}).get("max_gen_toks")
        metrics = [each["metric"] for each in config.metric_list]
        assert list(task.metrics) == [getattr(each, "__name__", each) for each in metrics]
        assert task.source == config.dataset_path
        assert task.executes_code == bool(config.unsafe_code)


def test_languages_and_benchmarks_choose() -> None:
    assert choose(TASKS) == TASKS
    names = [task.name for task in choose(TASKS, ["te", "sw"], ["belebele", "mgsm"])]
    assert names == [
        *("layerswap_mgsm_sw", "layerswap_mgsm_te"),
        *("layerswap_belebele_sw", "layerswap_belebele_te"),
    ]
    names = [task.name for task in choose(TASKS, ["sw"], ["flores"])]
    assert names == ["layerswap_flores_en-sw", "layerswap_flores_sw-en"]


def test_unknown_names_are_all_said_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        choose(TASKS, ["sw", "tee"], ["mgms", "mmlu"])
    assert caught.value.message.splitlines() == [
        "no language 'tee'; did you mean 'te'? Valid are en, ja, bn, sw, te, "
        "de, es, fr, ru, th, zh",
        "no benchmark 'mgms'; did you mean 'mgsm'? Valid are mgsm, belebele, flores, mbpp, "
        "mmlu, mgsm_rev2",
    ]
    with pytest.raises(InputError, match="no task of flores in en"):
        choose(TASKS, ["en"], ["flores"])
