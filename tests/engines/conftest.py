"""A tiny random Llama with a word-level tokenizer, and local lm-eval tasks on it."""

import json
from pathlib import Path

import pytest
import yaml

from tests.standins.word_tokenizer import save_word_tokenizer

WORDS = [f"w{index}" for index in range(24)]
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]


def write_model(folder: Path, seed: int = 0) -> Path:
    """Write a random two-layer Llama that says something else for every seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = [*SPECIAL, *WORDS]
    save_word_tokenizer(folder, vocabulary, padding_side="left", model_max_length=128)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.5,  # large: a random model must not say one word to everything
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    network = LlamaForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        # Never said: lm-eval drops special tokens inside an answer with HF and keeps them with
        # vLLM. A trained model does not say them there; a random one would.
        network.lm_head.weight[[0, 1, 3]] = 0
    network.save_pretrained(folder)
    return folder


def write_tasks(folder: Path, items: int = 24) -> Path:
    """Write a generation, a translation and a multiple-choice task."""
    folder.mkdir(parents=True)
    rows = [
        {
            "prompt": " ".join(WORDS[(index * step) % len(WORDS)] for step in range(1, 7)),
            "answer": WORDS[index % len(WORDS)],
            "sentence": " ".join(WORDS[(index + step) % len(WORDS)] for step in range(6)),
            "choices": [WORDS[index % len(WORDS)], WORDS[(index + 7) % len(WORDS)]],
        }
        for index in range(1, items + 1)
    ]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"train": str(data), "test": str(data)}},
        "test_split": "test",
        "fewshot_split": "train",
        "fewshot_config": {"sampler": "first_n"},
        "doc_to_text": "{{prompt}}",
        "metadata": {"version": 3.0},
    }
    stripped = [
        {
            "name": "stripped",
            "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}],
        }
    ]
    generation = {"until": ["<eos>"], "do_sample": False, "max_gen_toks": 8}
    mean = {"aggregation": "mean", "higher_is_better": True}
    tasks = {
        "words_generate": {
            "output_type": "generate_until",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": generation,
            "num_fewshot": 2,
            "filter_list": [
                {
                    "name": "first-word",
                    "filter": [
                        {"function": "regex", "regex_pattern": r"(w\d+)"},
                        {"function": "take_first"},
                    ],
                }
            ],
            "metric_list": [{"metric": "exact_match", **mean}],
        },
        "words_translate": {
            "output_type": "generate_until",
            "doc_to_target": "{{sentence}}",
            "generation_kwargs": generation,
            "filter_list": stripped,
            "metric_list": [{"metric": "bleu", "aggregation": "bleu", "higher_is_better": True}],
        },
        "words_choose": {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": 0,
            "metric_list": [{"metric": "acc", **mean}, {"metric": "acc_norm", **mean}],
        },
    }
    for name, task in tasks.items():
        text = yaml.safe_dump({"task": name, **common, **task}, sort_keys=False)
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "random")


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks") / "words")
