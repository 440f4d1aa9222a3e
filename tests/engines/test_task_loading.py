"""Tasks with the data of their files, and what is wrong with them before a model is loaded."""

import importlib.util

import pytest

from ablations.engines.task_loading import load_tasks
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from ablations.tasks.data import DataUnavailable
from layerswap_method.errors import InputError
from tests.standins.tasks import write_coded_task, write_drawing_task, write_task, write_tasks


def load(request):
    return load_tasks(resolve(request))


def test_a_task_of_whole_texts_is_refused_before_a_model_is_loaded(tmp_path):
    tasks = write_tasks(tmp_path / "tasks", items=4)
    data = tasks / "data.jsonl"
    rolling = {"output_type": "loglikelihood_rolling", "doc_to_target": "{{prompt}}"}
    metrics = [{"metric": "word_perplexity"}]
    write_task(tasks, "roll", data, **rolling, generation_kwargs=None, metric_list=metrics)
    with pytest.raises(InputError, match="task roll: it scores the likelihood of whole texts"):
        load(EvaluationRequest(tasks=("roll",), include_path=tasks))


def test_a_task_of_images_is_refused_before_a_model_is_loaded(tmp_path):
    tasks = write_tasks(tmp_path / "tasks", items=4)
    write_task(tasks, "seen", tasks / "data.jsonl", doc_to_image="prompt")
    with pytest.raises(InputError, match="task seen: it shows images or sounds"):
        load(EvaluationRequest(tasks=("seen",), include_path=tasks))


def test_a_task_that_ends_python_does_not(tmp_path):
    tasks = write_tasks(tmp_path / "tasks", items=4)
    write_coded_task(tasks, "ends", "raise SystemExit('Prolog is not installed')")
    with pytest.raises(InputError, match=r"task ends: .*Prolog is not installed"):
        load(EvaluationRequest(tasks=("ends",), include_path=tasks))


def test_arguments_reach_a_task_that_asks_for_them(model, tmp_path):
    request = EvaluationRequest(tasks=("drawn",), include_path=write_drawing_task(tmp_path))
    with pytest.raises(
        InputError, match=r"drawn: it asks for .*--metadata NAME=VALUE, such as tok"
    ):
        load(request)
    request = request.model_copy(update={"metadata": {"tokenizer": str(model), "count": 3}})
    first, again = (list(load(request)[0].test_docs()) for _ in "12")
    assert len(first) == 3
    assert first == again  # what is drawn is drawn with the seed of the request
    (other,) = load(request.model_copy(update={"seed": 1}))
    assert list(other.test_docs()) != first


def test_a_part_that_the_cache_lacks_is_no_fault_of_the_task(tmp_path):
    """It has another part of the data set, of which datasets speaks instead of the hub."""
    cached = tmp_path / "cache" / "nobody___nothing" / "other" / "0.0.0" / "abc"
    cached.mkdir(parents=True)
    (cached / "dataset_info.json").write_text('{"config_name": "other"}')
    source = {"dataset_path": "nobody/nothing", "dataset_name": "mine"}
    kwargs = {"cache_dir": str(tmp_path / "cache")}
    write_task(tmp_path, "part", tmp_path / "none.jsonl", **source, dataset_kwargs=kwargs)
    with pytest.raises(DataUnavailable, match=r"task part: its data is not .*Couldn't find cache"):
        load(EvaluationRequest(tasks=("part",), include_path=tmp_path))


def test_a_metric_that_the_cache_lacks_is_no_fault_of_the_task(tmp_path, monkeypatch):
    monkeypatch.setattr("evaluate.config.HF_EVALUATE_OFFLINE", True)
    write_coded_task(tmp_path, "judged", "import evaluate\n\nevaluate.load('no_such')\n")
    with pytest.raises(DataUnavailable, match=r"task judged: .*Couldn't find a module script"):
        load(EvaluationRequest(tasks=("judged",), include_path=tmp_path))


@pytest.mark.parametrize("name", ["trust_remote_code", "data_dir"])
def test_some_arguments_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} is not passed to tasks"):
        EvaluationRequest(tasks=("gsm8k",), metadata={name: True})


def test_a_task_that_needs_a_package_says_so():
    if importlib.util.find_spec("wonderwords"):
        pytest.skip("it is installed")
    with pytest.raises(InputError, match=r"ruler_cwe: it needs a package .*wonderwords"):
        load(EvaluationRequest(tasks=("ruler_cwe",)))
