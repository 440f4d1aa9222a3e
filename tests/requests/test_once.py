"""A task's YAML is read once for an evaluation, whoever needs it."""

import sys
from collections import Counter

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
