"""What is read from disk: exactly the tensors that the plan needs, of the experts it needs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import Swap, layer_number, part_of, stored
from tests.standins.zoo import LAYERS

Read = set[tuple[str, str]]
"""(folder name of the model, tensor)."""


def models_of(source: str) -> tuple[str, ...]:
    """Return the models whose tensor a source needs."""
    return ("task", "language") if source == "average" else (source,)


def needed(sources: list[str], non_layer: str, names: list[str]) -> Read:
    """Return the requests of a merge with these layer sources."""
    wanted: Read = set()
    for name in names:
        layer = layer_number(name)
        source = non_layer if layer is None else sources[layer]
        wanted |= {(model, name) for model in models_of(source)}
    return wanted


def layer_sources(placement: str, parameters: dict[str, Any]) -> list[str]:
    """Return the sources of the layers, written from the definitions of the placements."""
    if placement == "outer":
        b, u = parameters["bottom_layers"], parameters["top_layers"]
        t_b, t_u = parameters["bottom_transition"], parameters["top_transition"]
        return [Swap(LAYERS, b, u, t_b, t_u).of_layer(layer) for layer in range(LAYERS)]
    swapped = {
        "middle": {1, 2, 3},  # b + u = 3 layers from (6 - 3) // 2
        "alternating": {0, 2, 4},
        "layers": {0, 5},
    }[placement]
    above = {layer + 1 for layer in swapped} if parameters.get("bottom_transition") else set()
    below = {layer - 1 for layer in swapped} if parameters.get("top_transition") else set()
    return [
        "language" if layer in swapped else "average" if layer in above | below else "task"
        for layer in range(LAYERS)
    ]


PLACEMENTS: list[dict[str, Any]] = [
    {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1, "top_transition": 1},
    {"bottom_layers": 3, "top_layers": 3, "bottom_transition": 0, "top_transition": 0},
    {"bottom_layers": 0, "top_layers": 0, "bottom_transition": 0, "top_transition": 1},
    {"placement": "middle", "bottom_layers": 2, "top_layers": 1, "bottom_transition": 1},
    {"placement": "alternating", "bottom_layers": 2, "top_layers": 1},
    {"placement": "layers", "language_layers": "0,5", "top_transition": 1},
]


@pytest.mark.parametrize("parameters", PLACEMENTS, ids=lambda p: p.get("placement", "outer"))
@pytest.mark.parametrize("non_layer", ["average", "task", "language", "base"])
def test_only_the_needed_tensors_are_requested_and_each_once(
    parameters: dict[str, Any], non_layer: str, experts: Any, reads: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    document = recipe(roles(given), {**parameters, "non_layer": non_layer}, given.base)
    out = merge(document, tmp_path / "merged")
    sources = layer_sources(parameters.get("placement", "outer"), parameters)
    assert json.loads((out / "layer_swap_plan.json").read_text())["layers"] == sources
    assert set(reads) == needed(sources, non_layer, list(stored(given.task)))
    assert len(reads) == len(set(reads))


def test_random_placement_reads_the_drawn_layers_only(
    experts: Any, reads: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    drawn = set()
    for seed in range(4):
        reads.clear()
        parameters = {"placement": "random", "bottom_layers": 2, "top_layers": 1, "seed": seed}
        out = merge(recipe(roles(given), parameters), tmp_path / str(seed))
        sources = json.loads((out / "layer_swap_plan.json").read_text())["layers"]
        assert sorted(sources) == ["language"] * 3 + ["task"] * 3
        assert set(reads) == needed(sources, "average", list(stored(given.task)))
        drawn.add(tuple(sources))
    assert len(drawn) > 1


@pytest.mark.parametrize("modules", ["attention", "mlp"])
def test_module_swaps_read_the_other_modules_from_the_task_expert_alone(
    modules: str, experts: Any, reads: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    swap = Swap(LAYERS, non_layer="task")
    merge(recipe(roles(given), {**swap.parameters(), "swap_modules": modules}), tmp_path / "merged")
    wanted: Read = set()
    for name in stored(given.task):
        layer = layer_number(name)
        moved = layer is not None and part_of(name) == modules
        source = swap.of_tensor(name) if moved else "task"
        wanted |= {(model, name) for model in models_of(source)}
    assert set(reads) == wanted


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gemma2", "mistral3_vl", "gpt2"])
def test_other_families_read_no_more_either(
    family: str, experts: Any, reads: Any, tmp_path: Path
) -> None:
    given: SimpleNamespace = experts(family)
    swap = Swap(LAYERS)
    merge(recipe(roles(given), swap.parameters(), given.base), tmp_path / "merged")
    sources = [swap.of_layer(layer) for layer in range(LAYERS)]
    assert set(reads) == needed(sources, "average", list(stored(given.task)))


def test_a_model_of_weight_zero_is_not_read(experts: Any, reads: Any, tmp_path: Path) -> None:
    given = experts("llama")
    document = recipe(roles(given), Swap(LAYERS).parameters())
    document["models"].append(
        {"model": str(given.base), "parameters": {"role": "language", "weight": 0}}
    )
    merge(document, tmp_path / "merged")
    assert {model for model, _ in reads} == {"task", "language"}
