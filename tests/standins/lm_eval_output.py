"""What lm-eval's own command writes: two random models, three tasks and a group.

``python -m tests.standins.lm_eval_output FOLDER`` made `tests/runs/lm_eval`, without the facts of
the machine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.standins.tasks import write_task, write_tasks
from tests.standins.word_models import write_model

SAMPLE = Path(__file__).parents[1] / "runs" / "lm_eval"
"""A small output of the command: one folder for each of the models ``one`` and ``two``."""

TASKS = ("words_generate", "words_translate", "words_all")


def write_inputs(folder):
    """Write two models and the tasks, of which ``words_all`` is a group of two."""
    for seed, name in enumerate(("one", "two"), start=1):
        write_model(folder / name, seed)
    tasks = write_tasks(folder / "tasks", items=16)
    for task in tasks.glob("*.yaml"):
        text = task.read_text().replace(str(tasks), "tasks")
        task.write_text(text)
    choose = yaml.safe_load((tasks / "words_choose.yaml").read_text())
    write_task(
        tasks, "words_pick", "", **{**choose, "task": "words_pick", "doc_to_text": "w3 {{prompt}}"}
    )
    metric = {"metric": "acc", "aggregation": "mean", "weight_by_size": True}
    group = {
        "group": "words_all",
        "task": ["words_choose", "words_pick"],
        "aggregate_metric_list": [metric],
        "metadata": {"version": 2.0},
    }
    (tasks / "words_all.yaml").write_text(yaml.safe_dump(group))
    return folder


def lm_eval(folder, model, out, *options, tasks=TASKS, limit=12):
    """Evaluate a model of `write_inputs` by lm-eval's command, below `folder`."""
    command = [
        str(Path(sys.executable).with_name("lm_eval")),
        *("run", "--model", "hf", "--model_args", f"pretrained={model},dtype=float32"),
        *("--include_path", "tasks", "--tasks", ",".join(tasks), "--limit", str(limit)),
        *("--device", "cpu", "--batch_size", "8"),
        *("--output_path", out, "--log_samples", *options),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / out


def _without_machine(file):
    content = json.loads(file.read_text())
    content["pretty_env_info"], content["git_hash"] = "", None
    file.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    place = write_inputs(Path(sys.argv[1]))
    for name in ("one", "two"):
        for path in lm_eval(place, name, f"outputs/{name}").rglob("results_*.json"):
            _without_machine(path)
