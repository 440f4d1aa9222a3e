"""A folder as a user has it: recipes, a hub, tiny models under their names, and merges of those."""

import json
import os
import subprocess
import sys
import zlib
from functools import cached_property

import torch

from layerswap_method.tensor_names import decoder_layer
from tests.recipes.documents import RECIPES, ROOT, command, is_hub_id, layer_count, references
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import rewritten, train_adapter
from tests.standins.zoo import make_model

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
        for model, adapter in sorted({pair for recipe in RECIPES for pair in references(recipe)}):
            self.build(model, adapter)

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

    def write(self, name, folder):
        """Write a fine-tune of one parent, whose layers and features moved unevenly far."""
        own, depth = torch.Generator().manual_seed(zlib.crc32(name.encode())), layer_count(name)
        # Lugha-Llama is stored in float32 (a first-party page seen in part), others in bfloat16.
        is_half = is_hub_id(name) and not name.startswith("Lugha-Llama/")
        dtype = torch.bfloat16 if is_half else torch.float32
        sizes = {"num_hidden_layers": depth, "dtype": dtype}
        sizes |= {"tie_word_embeddings": name.startswith("runs/pocket/")}
        parent = make_model("llama", folder.with_name(f"{folder.name}-parent"), 0, **sizes)
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
