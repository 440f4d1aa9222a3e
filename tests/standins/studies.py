"""Random Llamas in the place of experts, and tasks that any of them can be asked."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.standins.word_tokenizer import save_word_tokenizer

WORDS = [f"w{index}" for index in range(24)]
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]


def write_expert(
    folder: Path, seed: int, *, layers: int = 4, hidden: int = 32, dtype: Any = None
) -> Path:
    """Write a random Llama with a word-level tokenizer; another one for every seed.

    Without a dtype (of torch) it is float32.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = [*SPECIAL, *WORDS]
    save_word_tokenizer(folder, vocabulary, padding_side="left", model_max_length=64)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.5,  # large: a random model must not say one word to everything
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(dtype or torch.float32).save_pretrained(folder)
    return folder


def write_tasks(folder: Path, names: Sequence[str], items: int = 8) -> Path:
    """Write one exact-match task for every name."""
    folder.mkdir(parents=True)
    rows = [
        {"prompt": " ".join(WORDS[(i * s) % 24] for s in range(1, 5)), "answer": WORDS[i % 24]}
        for i in range(1, items + 1)
    ]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in names:
        write_task(folder, name, data)
    return folder


def write_task(folder: Path, name: str, data: Path, **changes: Any) -> None:
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["<eos>"], "do_sample": False, "max_gen_toks": 4},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
        **changes,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task, sort_keys=False))


def study_document(**changes: Any) -> dict[str, Any]:
    """Return a small study of `layer_swap`."""
    return {
        "name": "small",
        "question": "How many?",
        "recipe": {
            "merge_method": "layer_swap",
            "models": [{"model": "task"}, {"model": "language"}],
            "base_model": "base",
            "parameters": {"bottom_layers": 1, "top_layers": 1, "non_layer": "task"},
            "dtype": "float32",
        },
        "baseline": ["base", "task_expert"],
        "vary": {"bottom_layers": [0, 1], "top_layers": [0, 1]},
        "experts": {"task": ["math"], "language": ["swahili"]},
        "evaluate": {"tasks": ["words"], "options": {"batch_size": 8}},
        **changes,
    }


def write_yaml(path: Path, document: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
    return path
