"""A swap needs one tensor more than the model on vLLM's CPU build, and a few blocks on HF."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.evaluation import vllm_engine
from ablations.live import open_live
from layerswap_method.streams import StreamInput, linear_stream
from tests.benchmarks.watch_memory import Watch
from tests.live.models import OPTIONS
from tests.word_tokenizer import save_word_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*torch_dtype.*")]

ROWS, WIDTH = 40_000, 256
LARGEST = 4 * ROWS * WIDTH
"""Bytes of either embedding: 39 MiB, most of the model."""


def write_wide(folder: Path, seed: int) -> Path:
    """Write a random float32 Llama that is nearly all vocabulary."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = ["<pad>", "<bos>", "<eos>", "<unk>", "w"]
    save_word_tokenizer(folder, words, padding_side="left", model_max_length=64)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=ROWS,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("backend", "tensors"),
    [
        ("hf", 0.5),
        pytest.param(
            "vllm",
            1.3,
            marks=[
                pytest.mark.vllm,
                pytest.mark.filterwarnings("ignore"),
                pytest.mark.skipif(not vllm_engine.is_installed(), reason="needs vLLM"),
            ],
        ),
    ],
)
def test_a_swap_that_averages_everything(backend: str, tensors: float, tmp_path: Path) -> None:
    folders = [write_wide(tmp_path / str(seed), seed) for seed in range(3)]
    live = open_live(folders[0], backend, OPTIONS)  # type: ignore[arg-type]
    live.start()
    try:
        for index, first in enumerate((0, 1, 0)):  # what a swap frees serves the next
            pair = [StreamInput(str(each), each) for each in (folders[first], folders[2])]
            watch = Watch()
            report = live.swap(linear_stream(pair))
            rose = watch.end()
            assert report.bytes > 2 * LARGEST
            if backend == "hf" and index == 0:
                continue  # transformers maps the checkpoint; what is written becomes our own
            assert rose["anonymous_rise_bytes"] < tensors * LARGEST
            assert rose["rss_rise_bytes"] < tensors * LARGEST
    finally:
        live.close()
