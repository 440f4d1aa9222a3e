"""`slices:` and `modules:` recipes: the output's layer numbers decide; what cannot work says so."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from layerswap_method.errors import InputError
from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import Swap, assert_same, average, expected, layer_number, stored
from tests.standins.zoo import LAYERS

SWAP = Swap(LAYERS)
Ranges = list[dict[str, tuple[int, int]]]


def sliced(given: SimpleNamespace, ranges: Ranges, swap: Swap, **top: Any) -> dict[str, Any]:
    """Return a `slices:` recipe: one {role: layer range} a slice."""
    document = recipe(roles(given), swap.parameters(), **top)
    del document["models"]
    document["slices"] = [{"sources": sources(given, entry)} for entry in ranges]
    return document


def sources(given: SimpleNamespace, entry: dict[str, tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the sources of one slice; the base has no role."""
    return [
        {
            "model": str(getattr(given, role)),
            "layer_range": list(layer_range),
            "parameters": {} if role == "base" else {"role": role},
        }
        for role, layer_range in entry.items()
    ]


def both(task: tuple[int, int], language: tuple[int, int] | None = None) -> Any:
    """Return a slice of both experts; the same layers of both unless said otherwise."""
    return {"task": task, "language": language or task}


def renumbered(
    swap: Swap, ranges: Ranges, task: dict[str, Any], language: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Return the merge of stacked slices: output layer l decides, each input has its own number."""
    wanted = {n: average(t, language[n], swap) for n, t in task.items() if layer_number(n) is None}
    out = 0
    for entry in ranges:
        (start_t, end_t), (start_l, _) = entry["task"], entry["language"]
        for step in range(end_t - start_t):
            for name in task:
                if layer_number(name) != start_t + step:
                    continue
                own = f".{start_t + step}."
                one, other = task[name], language[name.replace(own, f".{start_l + step}.")]
                source = swap.of_layer(out)
                wanted[name.replace(own, f".{out}.")] = {
                    "task": one,
                    "language": other,
                    "average": average(one, other, swap),
                }[source]
            out += 1
    return wanted


STACKS: dict[str, Ranges] = {
    "one slice": [both((0, 6))],
    "two slices": [both((0, 2)), both((2, 6))],
    "frankenmerge": [both((0, 4)), both((2, 6))],
    "shorter": [both((0, 2)), both((4, 6))],
    "shifted": [both((0, 4), (2, 6))],
    "empty ends": [both((0, 0)), both((0, 6)), both((6, 6))],
}


@pytest.mark.parametrize("name", list(STACKS))
def test_output_layer_numbers_decide(name: str, experts: Any, loads: Any, tmp_path: Path) -> None:
    given, ranges = experts("llama"), STACKS[name]
    depth = sum(entry["task"][1] - entry["task"][0] for entry in ranges)
    swap = Swap(depth, b=1)
    out = merge(sliced(given, ranges, swap), tmp_path / "merged", clone_tensors=True)
    wanted = renumbered(swap, ranges, stored(given.task), stored(given.language))
    assert_same(stored(out), wanted)
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == depth
    plan = json.loads((out / "layer_swap_plan.json").read_text())
    assert plan["layers"] == [swap.of_layer(layer) for layer in range(depth)]
    loads(out)


@pytest.mark.parametrize("place", ["first", "last", "both", "neither"])
def test_non_layer_base_finds_a_base_that_not_every_slice_lists(
    place: str, experts: Any, tmp_path: Path
) -> None:
    # mergekit sizes the inputs of norm and head by the first slice and names those of the last.
    given = experts("llama")
    ranges: Ranges = [both((0, 3)), both((3, 6))]
    for i, listed in enumerate([place in ("first", "both"), place in ("last", "both")]):
        if listed:
            ranges[i]["base"] = ranges[i]["task"]
    swap = Swap(LAYERS, non_layer="base")
    document = sliced(given, ranges, swap, base=given.base)
    out = merge(document, tmp_path / "merged")
    assert_same(
        stored(out),
        expected(swap, stored(given.task), stored(given.language), stored(given.base)),
    )


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([both((0, 7))], r"slices\[0\] .* \[0, 7\] is no range of the model's 6 layers"),
        ([both((4, 2))], r"\[4, 2\] is no range"),
        ([both((0, 3), (0, 4))], r"slices\[0\]: its layer_ranges have different lengths \(3, 4"),
        ([both((0, 2))], r"= 2 \+ 1 = 3 is more than the model's 2 layers"),
        ([both((0, 3)), {"task": (3, 6)}], r"slices\[1\].* no model with role: language"),
    ],
    ids=["beyond", "backwards", "lengths", "too short", "one-sided"],
)
def test_slices_that_cannot_work_are_refused_before_any_output(
    ranges: Ranges, message: str, experts: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        merge(sliced(experts("llama"), ranges, SWAP), tmp_path / "new" / "merged")
    assert not (tmp_path / "new").exists()


def test_slices_of_a_model_of_several_modules_are_refused(experts: Any, tmp_path: Path) -> None:
    given = experts("mistral3_vl")
    with pytest.raises(InputError, match=r"slices: works for models of one module; .* write mod"):
        merge(sliced(given, [both((0, 6))], SWAP), tmp_path / "merged")


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2", "gemma3"])
@pytest.mark.parametrize("ranges", [STACKS["frankenmerge"], STACKS["shorter"]], ids=["8", "4"])
def test_a_new_depth_where_the_config_lists_layer_types_is_refused(
    family: str, ranges: Ranges, experts: Any, tmp_path: Path
) -> None:
    # transformers refuses the config that mergekit makes, after all weights were written.
    with pytest.raises(InputError, match=r"the slices give [48] layers .* has 6; the depth cannot"):
        merge(sliced(experts(family), ranges, Swap(4, b=1)), tmp_path / "new" / "merged")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_slices_that_keep_the_depth_work_for_those_too(
    family: str, experts: Any, loads: Any, tmp_path: Path
) -> None:
    given = experts(family)
    out = merge(sliced(given, STACKS["two slices"], SWAP), tmp_path / "merged")
    assert_same(stored(out), expected(SWAP, stored(given.task), stored(given.language)))
    loads(out)


def modular(given: SimpleNamespace, modules: dict[str, Any]) -> dict[str, Any]:
    """Return a `modules:` recipe."""
    document = recipe(roles(given), SWAP.parameters())
    del document["models"]
    return {**document, "modules": modules}


def test_modules_with_models(experts: Any, loads: Any, tmp_path: Path) -> None:
    given = experts("mistral3_vl")
    models = recipe(roles(given))["models"]
    names = ("text_decoder", "multi_modal_projector", "vision_tower")
    document = modular(given, {name: {"models": models} for name in names})
    out = merge(document, tmp_path / "merged")
    assert_same(stored(out), expected(SWAP, stored(given.task), stored(given.language)))
    loads(out)


def test_modules_with_slices(experts: Any, tmp_path: Path) -> None:
    given = experts("mistral3_vl")
    depth = {"text_decoder": LAYERS, "multi_modal_projector": 0, "vision_tower": 3}
    modules = {
        name: {"slices": [{"sources": sources(given, both((0, layers)))}]}
        for name, layers in depth.items()
    }
    out = merge(modular(given, modules), tmp_path / "merged")
    assert_same(stored(out), expected(SWAP, stored(given.task), stored(given.language)))


def test_modules_that_would_lose_one_are_refused(experts: Any, tmp_path: Path) -> None:
    given = experts("mistral3_vl")
    models = recipe(roles(given))["models"]
    with pytest.raises(InputError, match="modules lacks multi_modal_projector, vision_tower"):
        merge(modular(given, {"text_decoder": {"models": models}}), tmp_path / "merged")


def test_an_unknown_module_is_named(experts: Any, tmp_path: Path) -> None:
    given = experts("llama")
    models = recipe(roles(given))["models"]
    with pytest.raises(InputError, match=r"'defualt'; .*did you mean 'default'"):
        merge(modular(given, {"defualt": {"models": models}}), tmp_path / "merged")
