"""vLLM serves the swapped adapter on the base: it says what the merged checkpoint says."""

import re
from contextlib import closing
from typing import get_args

import pytest

from ablations.engines import vllm_engine
from ablations.engines.lm_eval_backend import run_tasks
from ablations.engines.options import EngineOptions
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from layerswap_method.adapter_swap.card import SERVED_RANKS
from tests.standins.by_peft import run
from tests.standins.fine_tunes import train_adapter
from tests.standins.fresh_engines import evaluate_cold
from tests.standins.merging import merge, recipe
from tests.standins.tasks import write_tasks
from tests.standins.word_models import write_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # vLLM's imports warn a dozen times
    pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed"),
]
OPTIONS = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)
TARGETS = {
    "task": {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 2, "lora_alpha": 4},
    "language": {"target_modules": ["q_proj", "gate_proj"], "r": 3, "use_rslora": True},
}


def served(base, adapter, request):
    """Ask vLLM with the adapter beside the base's weights."""
    # The output embedding would get another logits processor, which loses log-likelihoods.
    modules = [f"{name}_proj" for name in ("q", "k", "v", "gate", "up", "down")]
    (rank,) = re.findall(r"--max-lora-rank (\d+)", (adapter / "README.md").read_text())
    lora = {
        "lora_local_path": str(adapter),
        "max_lora_rank": int(rank),
        "lora_target_modules": modules,
    }
    from ablations.engines.vllm_model import VllmModel

    vllm_engine.prepare_vllm(OPTIONS)
    with closing(VllmModel(str(base), OPTIONS, **lora)) as lm:
        return run_tasks(lm, resolve(request), None, "vllm")


def test_every_rank_of_a_readme_is_one_of_vllms():
    from vllm.config.lora import MaxLoRARanks

    assert get_args(MaxLoRARanks) == SERVED_RANKS


def test_vllm_serves_the_swap(tmp_path):
    base = write_model(tmp_path / "base", num_hidden_layers=4)
    models = {
        role: f"{base}+{train_adapter(base, tmp_path / role, seed, **TARGETS[role])}"
        for seed, role in enumerate(("task", "language"))
    }
    parameters = {"bottom_layers": 1, "top_layers": 1, "bottom_transition": 1}
    document = recipe(models, parameters, base)
    tasks = ("words_generate", "words_choose")
    request = EvaluationRequest(tasks=tasks, include_path=write_tasks(tmp_path / "tasks"))
    merged = merge(document, tmp_path / "merged", copy_tokenizer=True)
    wanted = evaluate_cold(merged, request, "hf", OPTIONS)
    found = served(base, run(tmp_path / "swap", document)[0], request)
    assert found.scores == wanted.scores
    assert len(found.samples) == len(wanted.samples) > 0
    said = [[s.responses for s in e.samples if s.task == tasks[0]] for e in (found, wanted)]
    assert said[0] == said[1]
    assert evaluate_cold(base, request, "hf", OPTIONS).samples != wanted.samples
