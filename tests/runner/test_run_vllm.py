"""The same study on one live vLLM engine and on transformers: the same words."""

import pytest

from ablations.runner import records
from ablations.runner.run import RunOptions, run_study
from tests.engines.backends import VLLM
from tests.standins.studies import study_document, write_expert, write_tasks, write_yaml
from tests.standins.talkers import WORDS

pytestmark = [*VLLM, pytest.mark.slow]


def test_two_backends_agree_on_every_cell(tmp_path):
    names = {name: str(tmp_path / name) for name in ("base", "math", "swahili")}
    for seed, name in enumerate(names):
        write_expert(tmp_path / name, seed, hidden=64)  # vLLM on CPU takes heads of 32
    tasks = write_tasks(tmp_path / "tasks", ["words"])
    experts = write_yaml(tmp_path / "experts.yml", {"experts": names, "include_path": str(tasks)})
    options = {"batch_size": 8, "kv_cache_gib": 1, "gpu_memory_utilization": 0.3}
    document = study_document(
        baseline=["base", "task_expert", "soup", "ties"],
        evaluate={"tasks": ["words"], "options": options},
    )
    study = str(write_yaml(tmp_path / "small.yml", document))
    found = {}
    for backend in ("hf", "vllm"):
        out = tmp_path / backend
        result = run_study(study, RunOptions(experts=experts, out=out, backend=backend))
        assert not result.summary.failed
        cells = records.load_run(out).cells
        assert {cell.backend for cell in cells} == {backend}
        assert not any("fallback" in cell.provenance for cell in cells)
        found[backend] = {
            cell.label: [words_of(str(s.answers[0])) for s in cell.tasks[0].samples()]
            for cell in cells
        }
    assert len(found["hf"]) == 8
    assert len({tuple(words) for words in found["hf"].values()}) > 3  # the cells do differ
    assert found["vllm"] == found["hf"]


def words_of(text):
    """Return the words: the backends differ in the space before the first and in special tokens."""
    return tuple(word for word in text.split() if word in WORDS)
