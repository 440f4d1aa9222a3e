"""Llama in depth: stored dtypes, casts, weights, placements, tied and untied embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from layerswap_method.errors import InputError
from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import Swap, assert_same, average, expected, stored
from tests.standins.tuned import with_head
from tests.standins.zoo import LAYERS

SWAP = Swap(LAYERS)
DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@pytest.mark.parametrize("name", list(DTYPES))
def test_every_stored_dtype_is_kept_and_averages_are_rounded_once(
    name: str, experts: Any, tmp_path: Path
) -> None:
    given = experts("llama", dtype=DTYPES[name])
    out = merge(recipe(roles(given), SWAP.parameters()), tmp_path / "merged")
    wanted = expected(SWAP, stored(given.task), stored(given.language))
    assert {tensor.dtype for tensor in wanted.values()} == {DTYPES[name]}
    assert_same(stored(out), wanted)


@pytest.mark.parametrize(("w_task", "w_lang"), [(1.0, 2.0), (3.0, 1.0), (0.25, 0.75)])
def test_unequal_weights_are_divided_once(
    w_task: float, w_lang: float, experts: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    swap = Swap(LAYERS, w_task=w_task, w_lang=w_lang)
    out = merge(recipe(roles(given), swap.parameters()), tmp_path / "merged")
    assert_same(stored(out), expected(swap, stored(given.task), stored(given.language)))


@pytest.mark.parametrize(("kept", "weights"), [("task", (1.0, 0.0)), ("language", (0.0, 1.0))])
def test_a_weight_of_zero_keeps_the_other_expert_bit_for_bit(
    kept: str, weights: tuple[float, float], experts: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    swap = Swap(LAYERS, b=0, u=0, t_b=3, t_u=3, w_task=weights[0], w_lang=weights[1])
    out = merge(recipe(roles(given), swap.parameters()), tmp_path / "merged")
    assert_same(stored(out), stored(getattr(given, kept)))


@pytest.mark.parametrize("stored_as", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("wanted_as", ["bfloat16", "float16", "float32", "float64"])
def test_dtype_rounds_once_from_the_stored_values(
    stored_as: str, wanted_as: str, experts: Any, tmp_path: Path
) -> None:
    given = experts("llama", dtype=DTYPES[stored_as])
    document = recipe(roles(given), SWAP.parameters(), dtype=wanted_as)
    out = merge(document, tmp_path / "merged")
    wanted = expected(SWAP, stored(given.task), stored(given.language), dtype=DTYPES[wanted_as])
    assert_same(stored(out), wanted)


@pytest.mark.parametrize(
    ("top", "wanted_as"),
    [
        ({"out_dtype": "float32"}, "float32"),
        ({"dtype": "float32", "out_dtype": "float16"}, "float16"),
    ],
    ids=["alone", "after dtype"],
)
def test_out_dtype_is_the_one_rounding(
    top: dict[str, str], wanted_as: str, experts: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    out = merge(recipe(roles(given), SWAP.parameters(), **top), tmp_path / "merged")
    wanted = expected(SWAP, stored(given.task), stored(given.language), dtype=DTYPES[wanted_as])
    assert_same(stored(out), wanted)


def test_experts_of_different_dtypes_meet_in_the_wider_one(experts: Any, tmp_path: Path) -> None:
    task, language = experts("llama"), experts("llama", dtype=torch.float32)
    models = {"task": task.task, "language": language.language}
    out = merge(recipe(models, SWAP.parameters()), tmp_path / "merged")
    first, second = stored(task.task), stored(language.language)
    wanted = expected(SWAP, first, second)
    for name in wanted:
        if SWAP.of_tensor(name) == "average":
            wanted[name] = average(first[name], second[name], SWAP, torch.float32)
    assert_same(stored(out), wanted)


@pytest.mark.parametrize("order", [("task", "language"), ("language", "task")])
def test_tied_against_untied_is_refused(
    order: tuple[str, str], experts: Any, tmp_path: Path
) -> None:
    untied, tied = experts("llama"), experts("llama_tied")
    models = dict(zip(order, (tied.task, untied.language), strict=True))
    with pytest.raises(InputError, match=r"ties its output embedding .* untie the first"):
        merge(recipe(models, SWAP.parameters()), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_tied_model_that_stores_its_head_as_well_keeps_it_tied(
    experts: Any, loads: Any, tmp_path: Path
) -> None:
    # Older checkpoints store the tied head as a copy; the other expert does not.
    given = experts("llama_tied")
    folder = with_head(given.task, tmp_path / "task")
    models = {"task": folder, "language": given.language}
    out = merge(recipe(models, SWAP.parameters()), tmp_path / "merged")
    wanted = expected(SWAP, stored(given.task), stored(given.language))
    wanted["lm_head.weight"] = wanted["model.embed_tokens.weight"]
    assert_same(stored(out), wanted)
    loads(out)


def test_several_models_of_a_role_are_souped_first(experts: Any, tmp_path: Path) -> None:
    given = experts("llama")
    document = recipe(roles(given), SWAP.parameters())
    document["models"][0]["parameters"]["weight"] = 1
    document["models"].append(
        {"model": str(given.base), "parameters": {"role": "task", "weight": 3}}
    )
    out = merge(document, tmp_path / "merged")
    task, other, language = (stored(f) for f in (given.task, given.base, given.language))
    wide = {n: (task[n].double() + 3 * other[n].double()) / 4 for n in task}
    wanted = {}
    for name in task:
        source = SWAP.of_tensor(name)
        soup = Swap(LAYERS, w_task=1, w_lang=3)
        if source == "language":
            wanted[name] = language[name]
        elif source == "task":
            wanted[name] = average(task[name], other[name], soup)
        else:
            wanted[name] = average(wide[name], language[name], SWAP, torch.bfloat16)
    assert_same(stored(out), wanted)


@pytest.mark.parametrize(
    ("name", "bits"), [("bfloat16", 8), ("float16", 11)], ids=["bfloat16", "float16"]
)
@pytest.mark.parametrize("stored_as", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_an_average_just_above_a_tie_is_not_rounded_twice(
    name: str, bits: int, stored_as: torch.dtype, experts: Any, tmp_path: Path
) -> None:
    # The exact mean, 1 + 2^-bits + 2^-24, is above the midpoint of 1 and the next 16-bit number;
    # a mean rounded to float32 first is on it, and would then go to 1.
    tie = 1 + 2.0**-bits

    models = {
        role: experts("llama", dtype=stored_as, fill=value).task
        for role, value in (("task", tie), ("language", tie + 2.0**-23))
    }
    for index, top in enumerate(({"dtype": name}, {"out_dtype": name})):
        out = merge(recipe(models, SWAP.parameters(), **top), tmp_path / str(index))
        merged = stored(out)["model.norm.weight"]
        assert merged.dtype == DTYPES[name]
        assert set(merged.double().tolist()) == {1 + 2.0 ** (1 - bits)}
