"""Tasks with the data of their files, and what is wrong with them before a model is loaded."""

import importlib.util
import os
import subprocess
import sys

import pytest

from ablations.engines.task_loading import load_tasks
from ablations.scoring.evaluation import EvaluationRequest
from layerswap_method.errors import InputError
from tests.standins.tasks import write_drawing_task, write_rows, write_task, write_tasks


@pytest.mark.parametrize("place", ["data.jsonl", "{folder}/data.jsonl", "{folder}/*.jsonl"])
def test_items_are_those_of_the_file_also_where_its_time_of_writing_stayed(tmp_path, place):
    """As archives, images and rsync -t leave it; the cache of datasets goes by that time."""
    folder = tmp_path / "tasks"
    data = write_rows(folder, [{"prompt": "w1", "answer": "w1"}])
    write_task(folder, "own", place.format(folder=folder))
    request = EvaluationRequest(tasks=("own",), include_path=folder)
    times = data.stat()
    for answer in ("w1", "w2", "w1"):
        data.write_text(data.read_text().replace('"answer": "w1"', f'"answer": "{answer}"'))
        os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert data.stat().st_mtime_ns == times.st_mtime_ns
        ((task,), _) = load_tasks(request)
        assert [doc["answer"] for doc in task.test_docs()] == [answer]
        data.write_text(data.read_text().replace("w2", "w1"))


_LOADED = """
import sys
from ablations.engines.task_loading import load_tasks
from ablations.scoring.evaluation import EvaluationRequest
((task,), _) = load_tasks(EvaluationRequest(tasks=("own",), include_path=sys.argv[1]))
print(task.doc_to_target(next(iter(task.test_docs()))))
"""


@pytest.mark.slow
def test_functions_are_those_of_the_file_also_where_its_time_of_writing_stayed(tmp_path):
    """Python's cache of compiled files goes by time and size."""
    folder = tmp_path / "tasks"
    write_task(folder, "own", write_rows(folder, [{"prompt": "w1"}]))
    text = (folder / "own.yaml").read_text().replace("'{{answer}}'", "!function u.target")
    (folder / "own.yaml").write_text(text)
    for answer in ("w1", "w2"):
        (folder / "u.py").write_text(f"def target(doc):\n    return {answer!r}\n")
        os.utime(folder / "u.py", (1e9, 1e9))
        command = [sys.executable, "-c", _LOADED, str(folder)]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        assert done.stdout.split()[-1] == answer


def test_a_task_of_whole_texts_is_refused_before_a_model_is_loaded(tmp_path):
    tasks = write_tasks(tmp_path / "tasks", items=4)
    data = tasks / "data.jsonl"
    rolling = {"output_type": "loglikelihood_rolling", "doc_to_target": "{{prompt}}"}
    metrics = [{"metric": "word_perplexity"}]
    write_task(tasks, "roll", data, **rolling, generation_kwargs=None, metric_list=metrics)
    with pytest.raises(InputError, match="task roll: it scores the likelihood of whole texts"):
        load_tasks(EvaluationRequest(tasks=("roll",), include_path=tasks))


def test_a_task_of_images_is_refused_before_a_model_is_loaded(tmp_path):
    tasks = write_tasks(tmp_path / "tasks", items=4)
    write_task(tasks, "seen", tasks / "data.jsonl", doc_to_image="prompt")
    with pytest.raises(InputError, match="task seen: it shows images or sounds"):
        load_tasks(EvaluationRequest(tasks=("seen",), include_path=tasks))


def test_a_task_that_ends_python_does_not(tmp_path):
    tasks = write_tasks(tmp_path / "tasks", items=4)
    write_task(tasks, "ends", tasks / "data.jsonl", dataset_path="", dataset_kwargs=None)
    with (tasks / "ends.yaml").open("a") as file:
        file.write("custom_dataset: !function ends.load\n")
    (tasks / "ends.py").write_text("raise SystemExit('Prolog is not installed')")
    with pytest.raises(InputError, match=r"task ends: .*Prolog is not installed"):
        load_tasks(EvaluationRequest(tasks=("ends",), include_path=tasks))


def test_arguments_reach_a_task_that_asks_for_them(model, tmp_path):
    request = EvaluationRequest(tasks=("drawn",), include_path=write_drawing_task(tmp_path))
    with pytest.raises(
        InputError, match=r"drawn: it asks for .*--metadata NAME=VALUE, such as tok"
    ):
        load_tasks(request)
    request = request.model_copy(update={"metadata": {"tokenizer": str(model), "count": 3}})
    first, again = (list(load_tasks(request)[0][0].test_docs()) for _ in "12")
    assert len(first) == 3
    assert first == again  # what is drawn is drawn with the seed of the request
    ((other,), _) = load_tasks(request.model_copy(update={"seed": 1}))
    assert list(other.test_docs()) != first


@pytest.mark.parametrize("name", ["trust_remote_code", "data_dir"])
def test_some_arguments_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} is not passed to tasks"):
        EvaluationRequest(tasks=("gsm8k",), metadata={name: True})


def test_a_task_that_needs_a_package_says_so():
    if importlib.util.find_spec("wonderwords"):
        pytest.skip("it is installed")
    with pytest.raises(InputError, match=r"ruler_cwe: it needs a package .*wonderwords"):
        load_tasks(EvaluationRequest(tasks=("ruler_cwe",)))
