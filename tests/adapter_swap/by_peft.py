"""Adapters made, merged and loaded by peft, and recipes over them. No code of ours but the swap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
import yaml

from ablations.models.find import find_model
from layerswap_method.adapter_swap.run import swap_adapters
from tests.standins.merging import recipe

LINEAR = ["q_proj", "v_proj", "down_proj"]


def merged(base: Path, adapter: Path, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Return every weight of base and adapter, merged by peft in `dtype`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    whole = peft.PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    return dict(whole.merge_and_unload().state_dict())


def logits(base: Path, adapter: Path) -> torch.Tensor:
    """Return what base and adapter say, unmerged."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    whole = peft.PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        return whole(input_ids=torch.tensor([[3, 11, 12, 13, 40]])).logits


def swapped(
    folder: Path,
    base: Path,
    adapters: Mapping[str, Path],
    parameters: Mapping[str, Any],
    rank: int | None = None,
    **top: Any,
) -> tuple[Path, list[str]]:
    """Swap adapters into `folder`; return the new adapter and what was said."""
    folder.mkdir(exist_ok=True)
    models = {role: f"{base}+{adapter}" for role, adapter in adapters.items()}
    document = recipe(models, parameters, base, **top)
    return run(folder, document, rank)


def run(
    folder: Path, document: Mapping[str, Any], rank: int | None = None
) -> tuple[Path, list[str]]:
    """Swap what a recipe names; return the new adapter and what was said."""
    folder.mkdir(exist_ok=True)
    file = folder / "recipe.yml"
    file.write_text(yaml.safe_dump(dict(document), sort_keys=False))
    lines = list(swap_adapters(file, find_model, str(folder / "out"), rank))
    return folder / "out", lines
