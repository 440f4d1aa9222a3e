"""The same study on one live vLLM engine and on transformers: the same words."""

import pytest

from ablations.runner import records
from ablations.runner.run import RunOptions, run_study
from tests.engines.backends import VLLM
from tests.standins.studies import write_study
from tests.standins.talkers import WORDS

pytestmark = [*VLLM, pytest.mark.slow]


def test_two_backends_agree_on_every_cell(tmp_path):
    options = {"batch_size": 8, "kv_cache_gib": 1, "gpu_memory_utilization": 0.3}
    evaluate = {"tasks": ["words"], "options": options}
    baseline = ["base", "task_expert", "soup", "ties"]
    study, experts = write_study(tmp_path, baseline=baseline, evaluate=evaluate)
    found = {}
    for backend in ("hf", "vllm"):
        out = tmp_path / backend
        result = run_study(str(study), RunOptions(experts=experts, out=out, backend=backend))
        assert not result.summary.failed
        cells = records.load_run(out).cells
        assert {cell.backend for cell in cells} == {backend}
        assert not any("fallback" in cell.tasks[0].provenance for cell in cells)
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
