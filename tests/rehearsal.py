"""`make rehearsal`: the commands of "On your own GPUs", offline, on tiny models of the same names.

The models are random: what they score means nothing. What is shown is that every command on the
way to the report works, with hub ids, a vocabulary of 128,256 tokens and MGSM.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ablations.study.files import find_file, read_experts_file
from tests.standins.word_models import write_model

HAND_WRITTEN = Path(__file__).parent / "tasks" / "data"
VOCABULARY = 128_256
"""Tokens of Llama 3.1, of which the last 256 are special."""

_ROLE = "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    + _ROLE
    + "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    + "{% if add_generation_prompt %}"
    + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|finetune_right_pad_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)


def write_hub_cache(cache, ids, texts):
    """Write a random model for every hub id, as `huggingface_hub` keeps what it has downloaded.

    The merges of the tokenizer are learned from `texts`.
    """
    tokenizer = _tokenizer(texts)
    for seed, name in enumerate(ids):
        folder = cache / f"models--{name.replace('/', '--')}"
        commit = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
        write_model(
            folder / "snapshots" / commit,
            seed,
            says_special=True,
            dtype=torch.bfloat16,
            vocab_size=VOCABULARY,
            intermediate_size=128,
            num_hidden_layers=8,
            max_position_embeddings=8192,
            initializer_range=0.3,  # large: it must not say one word to everything
            bos_token_id=VOCABULARY - 256,
            eos_token_id=[VOCABULARY - 255, VOCABULARY - 251],
        )
        tokenizer.save_pretrained(folder / "snapshots" / commit)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(commit)


def _tokenizer(texts):
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    trained = json.loads(bpe.to_str())["model"]
    vocabulary, plain = trained["vocab"], VOCABULARY - 256
    # As tokens of the model, not added ones, which transformers takes minutes to read.
    vocabulary |= {f"unused{number}": number for number in range(len(vocabulary), plain)}
    bpe.model = models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in trained["merges"]])
    reserved = (f"<|reserved_special_token_{index}|>" for index in range(256 - len(_SPECIAL)))
    bpe.add_special_tokens([*_SPECIAL, *reserved])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=_SPECIAL[0],
        eos_token=_SPECIAL[5],
        pad_token=_SPECIAL[2],
        chat_template=CHAT_TEMPLATE,
        model_max_length=8192,
        padding_side="left",
    )


def main():
    """Write the models, run the commands, and say how long each took."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make rehearsal")
    parser.add_argument("--out", type=Path, default=Path("runs/rehearsal"))
    parser.add_argument("--data-dir", type=Path, default=HAND_WRITTEN, help="of the real MGSM")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--limit", default="2", help="items a task")
    given = parser.parse_args()
    out = given.out.resolve()
    experts = read_experts_file(find_file("llama_8b", "experts")).experts.values()
    names = [str(entry.path) for entry in experts]
    if not (out / "hub").exists():
        write_hub_cache(out / "hub", names, _texts(given.data_dir))
    # The models are made here; whatever is asked of the hub beyond them is an error.
    here = {"HF_HUB_CACHE": str(out / "hub"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    run = str(out / "layer_count")
    tasks = "evaluate.tasks=[layerswap_mgsm_sw, layerswap_mgsm_en]"
    settings = ["evaluate.options.kv_cache_gib=1", tasks, "evaluate.apply_chat_template=true"]
    # A random model never stops by itself.
    settings += ["evaluate.gen_kwargs={max_gen_toks: 64}"]
    small = [part for setting in settings for part in ("--set", setting)]
    study = ["run", "layer_count", "--experts", "llama_8b", "--data-dir", str(given.data_dir)]
    study += ["--limit", given.limit, "--backend", given.backend, *small, "--out", run]
    check = ["check", "recipes/swahili.yml"]
    for command in (check, [*study, "--dry-run"], study, ["report", run]):
        sys.stdout.write(f"\n$ layerswap {shlex.join(command)}\n")
        sys.stdout.flush()
        started = time.monotonic()
        code = "from ablations.cli import main; main()"
        subprocess.run([sys.executable, "-c", code, *command], env=os.environ | here, check=True)
        sys.stdout.write(f"({time.monotonic() - started:.0f} s)\n")


def _texts(data_dir):
    """Return questions and answers of MGSM, for a tokenizer that needs few tokens for them."""
    files = sorted(file for name in ("sw", "en") for file in data_dir.rglob(f"{name}_t*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line]
    return [str(value) for row in rows for value in row.values()]


if __name__ == "__main__":
    main()
