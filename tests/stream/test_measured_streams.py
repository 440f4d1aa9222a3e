"""Streams of recipes that go by the experts' changes: mergekit's tensors, bit for bit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from layerswap_method.errors import InputError
from layerswap_method.tensor_names import split_layer
from tests.standins.merging import merge, recipe, roles
from tests.standins.streams import check_stream, stream_of
from tests.standins.tuned import tune, write_adapter
from tests.standins.zoo import LAYERS, make_model

PARAMETERS: list[dict[str, Any]] = [
    {"weighting": "magnitude", "bottom_layers": 1, "top_layers": 1, "bottom_transition": 2},
    {"weighting": "magnitude", "placement": "soup"},
    {"weighting": "magnitude", "placement": "soup", "non_layer": "task", "task_weight": 0.3},
    {"weighting": "magnitude", "bottom_layers": 1, "layer_norms": "average"},
    {"placement": "soup", "language_weight": 0.7},
    {"placement": "delta_share", "delta_threshold": 0.01},
    {"placement": "delta_share", "delta_threshold": 0.01, "delta_unit": "module"},
    {"placement": "delta_share", "delta_dominance": 0.15},
    {
        "placement": "delta_share",
        "delta_threshold": 0.03,
        "delta_blend": 0.3,
        "weighting": "magnitude",
        "layer_norms": "average",
    },
]


def scale_of(scales: list[float], name: str) -> float:
    return scales[LAYERS if (layer := split_layer(name)[0]) is None else layer]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function: family, dtype -> a base and its fine-tunes, two of them for a language."""
    made: dict[str, SimpleNamespace] = {}

    def make(family: str, dtype: torch.dtype = torch.bfloat16) -> SimpleNamespace:
        key = f"{family} {dtype}"
        if key not in made:
            root = tmp_path_factory.mktemp(family)
            base = make_model(family, root / "base", 0)
            experts = {}
            for seed, name in enumerate(("task", "language", "other"), start=1):
                # Every layer by another factor for every expert.
                scales = [1e-3 * (1 + (seed * layer) % 4) for layer in range(LAYERS + 1)]
                scale = partial(scale_of, scales)
                experts[name] = tune(base, root / name, seed, scale, dtype)
            made[key] = SimpleNamespace(base=base, **experts)
        return made[key]

    return make


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda p: "-".join(map(str, p.values())))
@pytest.mark.parametrize("count", [1, 2])
def test_every_parameter(
    parameters: dict[str, Any], count: int, tuned: Any, tmp_path: Path
) -> None:
    given = tuned("llama")
    document = recipe(roles(given), parameters, given.base)
    if count == 2:
        entry = {"model": str(given.other), "parameters": {"role": "language", "weight": 0.7}}
        document["models"].append(entry)
    check_stream(document, tmp_path / "merged")
    if parameters.get("placement") == "delta_share":
        plan = json.loads((tmp_path / "merged" / "layer_swap_plan.json").read_text())
        found = plan.get("modules", {"layers": plan["layers"]})
        assert len({source for sources in found.values() for source in sources}) == 3


@pytest.mark.parametrize(
    "family", ["llama_tied", "qwen3", "gemma2", "phi3", "gpt2", "opt", "olmo2", "mistral3_vl"]
)
def test_every_family(family: str, tuned: Any, tmp_path: Path) -> None:
    given = tuned(family)
    parameters = {"weighting": "magnitude", "bottom_layers": 1, "bottom_transition": 2}
    check_stream(recipe(roles(given), parameters, given.base), tmp_path / "magnitude")
    for unit in ("layer", "module"):
        shares = {"placement": "delta_share", "delta_unit": unit}
        check_stream(recipe(roles(given), shares, given.base), tmp_path / unit)


def test_experts_and_a_recipe_of_other_dtypes(tuned: Any, tmp_path: Path) -> None:
    given = tuned("llama", torch.float32)
    for parameters in (PARAMETERS[0], PARAMETERS[-1]):
        for top in ({}, {"dtype": "bfloat16"}, {"dtype": "float32", "out_dtype": "float16"}):
            name = f"{parameters['weighting']}-{len(parameters)}-{'-'.join(top)}"
            check_stream(recipe(roles(given), parameters, given.base, **top), tmp_path / name)


def test_an_adapter_is_measured_as_it_was_trained(tuned: Any, tmp_path: Path) -> None:
    # Merged into its bf16 base, much of it would be lost; both paths measure the adapter itself.
    given = tuned("llama")
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.self_attn.k_proj", 16, 8, 0.025)
    models = {"task": f"{given.base}+{adapter}", "language": given.language}
    document = recipe(models, {"weighting": "magnitude", "placement": "soup"}, given.base)
    check_stream(document, tmp_path / "merged", lora_merge_cache=str(tmp_path / "cache"))


def test_a_base_with_an_adapter_is_refused_in_both(tuned: Any, tmp_path: Path) -> None:
    given = tuned("llama")
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.self_attn.k_proj", 16, 8)
    soup = {"weighting": "magnitude", "placement": "soup"}
    document = recipe(roles(given), soup, f"{given.base}+{adapter}")
    message = "the base has an adapter; merge it into a folder first"
    with pytest.raises(InputError, match=message):
        stream_of(document)
    with pytest.raises(InputError, match=message):
        merge(document, tmp_path / "merged", lora_merge_cache=str(tmp_path / "cache"))


def test_experts_of_another_base_are_refused(tuned: Any) -> None:
    given, other = tuned("llama"), tuned("qwen3")
    document = recipe(roles(given), {"placement": "delta_share"}, other.base)
    with pytest.raises(InputError):
        stream_of(document)
