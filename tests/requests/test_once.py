"""A task's YAML is read once for an evaluation, whoever needs it; so are the files of a run."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.standins.command import layerswap
from tests.standins.scripted import DATA
from tests.standins.tasks import write_tasks
from tests.standins.word_models import write_model

OPENED = []


@pytest.fixture(scope="module")
def opened():
    """Return the files that this process has opened since the list was last emptied."""
    sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)
    return OPENED


def test_a_tasks_yaml_is_read_once_for_one_evaluation(opened, tmp_path):
    tasks, model = write_tasks(tmp_path / "tasks", items=4), write_model(tmp_path / "model")
    generate = yaml.safe_load((tasks / "words_generate.yaml").read_text())
    (tasks / "_shared").write_text(yaml.safe_dump({**generate, "num_fewshot": 0}))
    (tasks / "own.yaml").write_text("task: own\ninclude: _shared\nmetadata: {language: sw}\n")
    (tasks / "both.yaml").write_text(
        "group: both\ntask: [own, words_choose]\naggregate_metric_list: [{metric: bleu}]\n"
    )
    names = ("--tasks", "both,layerswap_mgsm_sw", "--include-path", tasks, "--languages", "sw")
    data = ("--data-dir", DATA, "--limit", 1)
    opened.clear()
    result = layerswap("evaluate", model, *names, *data, "--backend", "hf", "--out", tmp_path / "o")
    assert result.exit_code == 0, result.output
    counts = Counter(opened)
    expected = dict.fromkeys([*map(str, tasks.glob("*.yaml")), str(tasks / "_shared")], 1)
    assert {path: counts[path] for path in expected} == expected
    shipped = {path: n for path, n in counts.items() if "ablations/tasks/generated/" in path}
    assert set(shipped.values()) <= {1}  # none where an earlier test of this process read it


@pytest.mark.slow
def test_stored_answers_and_the_files_of_a_run_are_read_once(opened, tmp_path):
    tasks, model = write_tasks(tmp_path / "tasks", items=6), write_model(tmp_path / "model")
    names = ["words_generate", "words_choose"]
    words = ("--tasks", ",".join(names), "--include-path", tasks, "--backend", "hf")
    out = tmp_path / "runs" / "model"

    def counts(*command):
        opened.clear()
        result = layerswap(*command)
        assert result.exit_code == 0, result.output
        return Counter(str(Path(path).resolve().relative_to(tmp_path)) for path in _below(tmp_path))

    def _below(folder):
        return [path for path in opened if Path(path).resolve().is_relative_to(folder)]

    counts("evaluate", model, *words, "--out", out)
    for file in out.glob("records/*.jsonl"):
        file.unlink()
    again = counts("evaluate", model, *words, "--out", out)
    answers = [file for file in again if file.startswith("runs/answers/") and "/words_" in file]
    assert {file: again[file] for file in answers} == {
        # Once for the scores, and once for the examples; prompts for the examples only.
        file: 1 if "/prompts/" in file else 2
        for file in answers
    }
    assert len(answers) == 4
    report = counts("report", out)
    files = ["run.json", "records.jsonl", "observations.parquet", "examples.jsonl"]
    files = [f"runs/model/{name}" for name in files]
    records = [str(file.relative_to(tmp_path)) for file in out.glob("records/*.jsonl")]
    assert len(records) == len(names)
    read = [*files, *records, *(f"tasks/{name}.yaml" for name in names)]
    assert {file: report[file] for file in read} == dict.fromkeys(read, 1)
