"""A folder as a user has it: recipes, a hub, tiny models under their names, and merges of those."""

import json
import os
import subprocess
import sys
import zlib
from functools import cached_property

import torch
from click.testing import CliRunner

from ablations.cli import main
from layerswap_method.tensor_names import decoder_layer
from tests.recipes.documents import (
    RECIPES,
    ROOT,
    command,
    first_commands,
    is_hub_id,
    layer_count,
    references,
)
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import rewritten, train_adapter
from tests.standins.zoo import make_model

HARMONIZED = "./experts/different_bases/"
"""Where recipes expect what `layerswap harmonize` wrote."""


def sizes(heads, kv_heads, neurons, **more):
    given = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return {**given, "intermediate_size": neurons, **more}


# The real sizes of models that are harmonised: hidden and MLP over 256, heads over 4.
ORIGINALS = {
    "meta-math/MetaMath-7B-V1.0": sizes(8, 8, 43),
    "LeoLM/leo-mistral-hessianai-7b": sizes(8, 2, 56, family="mistral", sliding_window=16),
    "Lugha-Llama/Lugha-Llama-8B-wura": sizes(8, 2, 56),
    "MergeBench/Llama-3.2-3B_math": sizes(
        6,
        2,
        32,
        **{"hidden_size": 12, "num_hidden_layers": 28, "tie_word_embeddings": True},
        # As the real pair: another RoPE, which --force is for.
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
    ),
}
MERGE_ALL = """
import json, sys, traceback
import huggingface_hub, layerswap_method
layerswap_method.register()
# mergekit asks the hub for these; the others are found in its cache
huggingface_hub.list_repo_files = lambda *names, **how: ["model.safetensors"]
from mergekit.scripts.run_yaml import main
errors = []
for words in json.loads(sys.argv[1]):
    try:
        main.main(args=words[1:], standalone_mode=False)
        errors.append(None)
    except (Exception, SystemExit):
        errors.append(traceback.format_exc())
print(json.dumps(errors))
"""


class Workshop:
    """Stand-ins of every model that a recipe names, and the merges made from them."""

    def __init__(self, root):
        self.hub = root / "hf_home" / "hub"
        self.folder = root / "workspace"
        self.folder.mkdir(parents=True)
        (self.folder / "recipes").symlink_to(ROOT / "recipes")
        given = {pair for recipe in RECIPES for pair in references(recipe)}
        for model, adapter in sorted(given):
            if not model.startswith(HARMONIZED):
                self.build(model, adapter)
        for name, changes in ORIGINALS.items():
            self.write(name, self.folder / "originals" / name, **changes)
        before = os.getcwd()  # noqa: PTH109
        os.chdir(self.folder)
        for line in (line for recipe in RECIPES for line in first_commands(recipe)):
            given = [f"./originals/{word}" if word in ORIGINALS else word for word in line]
            assert CliRunner().invoke(main, given).exit_code == 0, given
        os.chdir(before)

    def path(self, name):
        """Return where a model is; one of the hub in the hub's cache, as its only commit."""
        if not is_hub_id(name):
            return self.folder / name
        cached = self.hub / f"models--{name.replace('/', '--')}"
        (cached / "refs").mkdir(parents=True, exist_ok=True)
        (cached / "refs" / "main").write_text("0" * 40)
        return cached / "snapshots" / ("0" * 40)

    def build(self, model, adapter):
        if not self.path(model).exists():
            self.write(model, self.path(model))
        if adapter and not self.path(adapter).exists():
            targets = {"target_modules": ["q_proj", "down_proj"], "r": 2, "lora_alpha": 4}
            train_adapter(
                self.path(model), self.path(adapter), zlib.crc32(adapter.encode()), **targets
            )

    def write(self, name, folder, family="llama", **changes):
        """Write a fine-tune of one parent, whose layers and features moved unevenly far."""
        own = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        depth = changes.pop("num_hidden_layers", layer_count(name))
        settings = {"tie_word_embeddings": name.startswith("runs/pocket/"), **changes}
        # Lugha-Llama is stored in float32 (a first-party page seen in part), others in bfloat16.
        is_half = is_hub_id(name) and not name.startswith("Lugha-Llama/")
        dtype = torch.bfloat16 if is_half else torch.float32
        settings |= {"num_hidden_layers": depth, "dtype": dtype}
        parent = make_model(family, folder.with_name(f"{folder.name}-parent"), 0, **settings)
        paces = 0.7 + 0.6 * torch.rand(depth + 1, generator=own)

        def edit(tensor, values):
            change = torch.randn(values.shape, generator=own)
            moved = 0.04 * torch.rand(values.shape[-1:], generator=own).square()
            layer = decoder_layer(tensor)
            return (values.float() + change * moved * paces[-1 if layer is None else layer]).to(
                dtype
            )

        rewritten(parent, folder, edit)
        save_word_tokenizer(folder, words(96))

    @cached_property
    def errors(self):
        """Run every recipe's own command, all in one process; recipe -> error or None."""
        ours = ("HF_", "TRANSFORMERS_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        home = {"HF_HOME": str(self.hub.parent), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        line = [sys.executable, "-c", MERGE_ALL, json.dumps([command(r) for r in RECIPES])]
        how = {"cwd": self.folder, "env": kept | home, "capture_output": True, "timeout": 1200}
        done = subprocess.run(line, text=True, check=False, **how)
        assert done.returncode == 0, done.stderr[-4000:]
        return dict(zip(RECIPES, json.loads(done.stdout.splitlines()[-1]), strict=True))
