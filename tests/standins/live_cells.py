"""Tiny random experts that talk, their merges on disk, and what cold engines say of those."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ablations.engines.options import EngineOptions
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from tests.standins.fine_tunes import tune, write_adapter
from tests.standins.fresh_engines import evaluate_cold
from tests.standins.merging import linear_recipe, merge, recipe, revert_recipe
from tests.standins.tasks import write_tasks
from tests.standins.tokenizers import SPECIAL
from tests.standins.word_models import WORDS, write_model

OPTIONS = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)
FAMILIES = ("llama_tied", "qwen2", "llama")
LAYERS = 3
POSITIONS = 1024
SHOTS = 20
"""Enough for a prefix of some cache blocks, shared by all items."""


def write_expert(folder, family, seed):
    """Write a random model of a family: tied float32, biased bfloat16, or untied float32."""
    import torch
    import transformers

    kind, words, dtype = "Llama", WORDS, torch.float32
    if family == "qwen2":
        kind, words, dtype = "Qwen2", _PIECES, torch.bfloat16
    sizes = {"num_hidden_layers": LAYERS, "max_position_embeddings": POSITIONS}
    sizes |= {"vocab_size": 28, "tie_word_embeddings": family == "llama_tied"}
    write_model(folder, seed, kind=kind, words=words, is_moved=True, dtype=dtype, **sizes)
    if family == "qwen2":  # transformers takes Qwen2's class for it, whatever the files say
        transformers.Qwen2Tokenizer(
            vocab={token: index for index, token in enumerate([*SPECIAL, *_PIECES])},
            merges=[("Ġ", "w")],
            **{f"{token[1:-1]}_token": token for token in SPECIAL},
            padding_side="left",
            model_max_length=POSITIONS,
        ).save_pretrained(folder)
    return folder


_PIECES = ["w", *"0123456789", "Ġ", "Ċ", "Ġw"]


def write_prefix_tasks(folder):
    """Write tasks, one with a long few-shot prefix, and return the request for all of them."""
    write_tasks(folder)
    task = yaml.safe_load((folder / "words_generate.yaml").read_text())
    task |= {"task": "words_prefix", "num_fewshot": SHOTS}
    (folder / "words_prefix.yaml").write_text(yaml.safe_dump(task))
    return EvaluationRequest(tasks=("words_prefix", "words_choose"), include_path=folder)


@dataclass(frozen=True)
class World:
    """Experts of one family, recipes over them, and what to ask."""

    root: Path
    base: Path
    cells: Mapping[str, dict[str, Any]]
    request: EvaluationRequest

    @property
    def tasks(self):
        """The tasks of the request."""
        return resolve(self.request)

    def cold(self, backend, name):
        """Merge a cell with mergekit, and evaluate the checkpoint in an engine of its own."""
        out = self.root / f"merged-{name}"
        if not out.exists():
            merge(
                self.cells[name],
                out,
                copy_tokenizer=True,
                lora_merge_cache=str(self.root / "cache"),
            )
        return evaluate_cold(out, self.request, backend, OPTIONS)


def make_world(root, family):
    """Write experts and an adapter of a single projection, and name some cells."""
    import torch

    base, task, language = (
        write_expert(root / name, family, seed)
        for seed, name in enumerate(("base", "task", "language"))
    )
    dtype = torch.bfloat16 if family == "qwen2" else torch.float32
    tuned = tune(base, root / "tuned", 7, 0.1, dtype)  # a fifth of the weights themselves
    only_k = write_adapter(root / "only_k", "model.layers.1.self_attn.k_proj", 64, 32)
    both = {"task": task, "language": language}
    swap = {"bottom_layers": 1, "top_layers": 0}
    return World(
        root=root,
        base=base,
        cells={
            "base": {"merge_method": "passthrough", "models": [{"model": str(base)}]},
            "swap": recipe(both, {**swap, "bottom_transition": 1}, base),
            "attention": recipe(both, {**swap, "swap_modules": "attention"}, base),
            "only_k": {"merge_method": "passthrough", "models": [{"model": f"{base}+{only_k}"}]},
            "reverted": revert_recipe(tuned, base, {"keep_fraction": 0.5, "bottom_layers": 1}),
            "soup": linear_recipe([task, language]),
        },
        request=write_prefix_tasks(root / "tasks"),
    )
