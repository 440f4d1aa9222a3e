"""Adapters made, merged and loaded by peft, and recipes over them. No code of ours but the swap."""

import peft
import torch
import transformers

from layerswap_method.adapter_swap.run import swap_adapters
from layerswap_method.methods.read import read_recipe_file
from layerswap_method.recipe.references import find_model_files
from tests.standins.merging import recipe, write_recipe

LINEAR = ["q_proj", "v_proj", "down_proj"]


def merged(base, adapter, dtype=torch.float64):
    """Return every weight of base and adapter, merged by peft in `dtype`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    whole = peft.PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    return dict(whole.merge_and_unload().state_dict())


def logits(base, adapter):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    whole = peft.PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        return whole(input_ids=torch.tensor([[3, 11, 12, 13, 40]])).logits


def swapped(folder, base, adapters, parameters, rank=None):
    models = {role: f"{base}+{adapter}" for role, adapter in adapters.items()}
    return run(folder, recipe(models, parameters, base), rank)


def run(folder, document, rank=None):
    """Swap what a recipe names; return the new adapter and the lines of the log."""
    folder.mkdir(exist_ok=True)
    file = write_recipe(folder / "recipe.yml", document)
    lines = []
    out = str(folder / "out")
    swap_adapters(read_recipe_file(file), find_model_files, out, lines.append, rank)
    return folder / "out", lines
