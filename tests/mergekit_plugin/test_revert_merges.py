"""`delta_revert` through mergekit: every tensor, the count, and what a user gets wrong.

What rows do in each family stands in `tests/families/test_revert.py`.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.mergekit_plugin.conftest import NUM_LAYERS, Experts, Refused, save_llama
from tests.standins.merging import merge, revert_recipe
from tests.standins.oracle import assert_same, layer_number, part_of, row_change, stored
from tests.standins.tuned import rewritten, uneven

LAYERS = {"bottom_layers": 2, "top_layers": 1}


@pytest.fixture(scope="module")
def expert(experts: Experts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return uneven(experts.base, tmp_path_factory.mktemp("tuned") / "expert", 0.05)


def plan_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "delta_revert_plan.json").read_text())
    return found


LOCATIONS = [
    ({"bottom_layers": 2, "top_layers": 1}, {0, 1, 7}, ()),
    ({"revert_layers": "0-1,7"}, {0, 1, 7}, ()),
    ({"revert_layers": "3", "top_layers": 1}, {3, 7}, ()),
    ({"revert_modules": "attention"}, set(), ("attention",)),
    ({"revert_modules": "mlp,non_layer", "bottom_layers": 1}, {0}, ("mlp", None)),
    ({"bottom_layers": 0}, set(), ()),
]


@pytest.mark.parametrize(("parameters", "layers", "modules"), LOCATIONS)
def test_given_layers_and_modules_are_the_bases_and_the_rest_the_experts(
    expert: Path,
    experts: Experts,
    tmp_path: Path,
    parameters: dict[str, Any],
    layers: set[int],
    modules: tuple[str | None, ...],
) -> None:
    out = merge(revert_recipe(expert, experts.base, parameters), tmp_path / "out")
    ours, theirs = stored(expert), stored(experts.base)

    def goes_back(name: str) -> bool:
        layer = layer_number(name)
        return layer in layers or (None if layer is None else part_of(name)) in modules

    assert_same(stored(out), {n: (theirs if goes_back(n) else ours)[n] for n in ours})
    plan, total = plan_of(out), sum(tensor.numel() for tensor in ours.values())
    kept = sum(tensor.numel() for name, tensor in ours.items() if not goes_back(name))
    assert (plan["kept"]["weights"], plan["kept"]["kept_weights"]) == (total, kept)
    assert plan["reverted_layers"] == sorted(layers)
    assert plan["num_layers"] == NUM_LAYERS


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.7, 1.0])
def test_keep_fraction_keeps_that_share_of_the_weights(
    fraction: float, expert: Path, experts: Experts, tmp_path: Path
) -> None:
    document = revert_recipe(expert, experts.base, {"keep_fraction": fraction})
    out = merge(document, tmp_path / "out")
    ours, theirs, plan = stored(expert), stored(experts.base), plan_of(out)
    changes = {name: row_change(name, ours[name], theirs[name], "llama") for name in ours}
    stays = {name: change.float() >= plan["threshold"] for name, change in changes.items()}
    assert_same(stored(out), {n: torch.where(stays[n], ours[n], theirs[n]) for n in ours})
    sizes = {name: tensor.numel() // stays[name].numel() for name, tensor in ours.items()}
    kept = sum(int(stays[name].sum()) * size for name, size in sizes.items())
    total = sum(tensor.numel() for tensor in ours.values())
    assert fraction * total <= kept <= fraction * total + max(sizes.values())
    assert plan["kept"]["kept_weights"] == kept
    assert plan["parameters"]["keep_fraction"] == fraction
    assert sum(k["kept_weights"] for k in plan["kept_by_layer"].values()) == kept
    assert sum(k["rows"] for k in plan["kept_by_module"].values()) == plan["kept"]["rows"]


def test_rows_are_compared_as_stored_and_cast_after(experts: Experts, tmp_path: Path) -> None:
    """A light change vanishes in bfloat16; compared before the cast it does not."""
    tuned = uneven(experts.base, tmp_path / "light", 1e-4, torch.float32)
    threshold = 1e-7
    document = revert_recipe(tuned, experts.base, {"threshold": threshold}, dtype="bfloat16")
    out = merge(document, tmp_path / "out")
    ours, theirs = stored(tuned), stored(experts.base)
    rows = {name: row_change(name, ours[name], theirs[name], "llama") for name in ours}
    wanted = {n: torch.where(rows[n] >= threshold, ours[n], theirs[n]).bfloat16() for n in ours}
    assert_same(stored(out), wanted)
    assert plan_of(out)["kept"]["fraction"] > 0.5


def test_log_plan_and_card_say_what_is_kept(
    expert: Path, experts: Experts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document = revert_recipe(expert, experts.base, {"keep_fraction": 0.7, "top_layers": 1})
    with caplog.at_level(logging.INFO, logger="layerswap"):
        out = merge(document, tmp_path / "out", quiet=False)
    kept = plan_of(out)["kept"]
    share = f"{kept['kept_weights']} of {kept['weights']} weights ({100 * kept['fraction']:.2f} %)"
    assert f"{share} stay the expert's" in caplog.text
    assert "(keep_fraction 0.7)" in caplog.text
    assert "layers that go back whole: 7 of 0-7" in caplog.text
    card = (out / "README.md").read_text()
    assert share in card
    assert "### What was reverted" in card
    assert "keep_fraction: 0.7" in card, "the user's own recipe"
    assert "threshold:" not in (out / "mergekit_config.yml").read_text()


def test_listing_the_base_changes_nothing(expert: Path, experts: Experts, tmp_path: Path) -> None:
    document = revert_recipe(expert, experts.base, LAYERS)
    first = stored(merge(document, tmp_path / "first"))
    document["models"].append({"model": str(experts.base)})
    assert_same(stored(merge(document, tmp_path / "second")), first)


WRONG = [
    ({"treshold": 0.1}, "unknown parameter 'treshold'; did you mean 'threshold'?"),
    ({}, "nothing says what to revert; write one of threshold, keep_fraction"),
    ({"threshold": "1e-5"}, "this is text (YAML reads 1e-6 and quoted numbers so): write 1.0e-05"),
    ({"threshold": [0.1, 0.2]}, "threshold is a list or filter, which mergekit interpolates"),
    ({"threshold": 0.1, "keep_fraction": 0.5}, "both say which rows stay; drop one"),
    ({"keep_fraction": 70}, "keep_fraction is 70; it must be 1 or less"),
    ({"revert_layers": [0, 1]}, "revert_layers is a list, which mergekit interpolates; write a"),
    ({"revert_layers": 3}, 'revert_layers is 3; it must be a string in quotes, such as "3"'),
    ({"revert_layers": "8"}, "layer 8 does not exist; the model has layers 0 to 7"),
    ({"revert_modules": ["mlp", "norm"]}, 'write a string: "mlp,norm"'),
    ({"revert_modules": "atention"}, "did you mean 'attention'?"),
    ({"bottom_layers": 7, "top_layers": 2}, "7 + 2 = 9 is more than the model's 8 layers"),
]


@pytest.mark.parametrize(("parameters", "message"), WRONG)
def test_parameters(
    expert: Path, experts: Experts, refused: Refused, parameters: dict[str, Any], message: str
) -> None:
    refused(revert_recipe(expert, experts.base, parameters), "delta_revert recipe", message)


def test_structures_that_it_does_not_take(expert: Path, experts: Experts, refused: Refused) -> None:
    document = revert_recipe(expert, experts.base, LAYERS)
    without = {key: value for key, value in document.items() if key != "models"}
    sources = [{"model": str(expert), "layer_range": [0, 8]}]
    refused({**without, "slices": [{"sources": sources}]}, "write models: in place of")
    refused({**document, "models": []}, "it needs models:, slices: or")
    del without["base_model"]
    refused({**without, "models": document["models"]}, "base_model is missing")
    same = revert_recipe(experts.base, experts.base, LAYERS)
    refused(same, "lists 0 models beside the base_model (none)")
    refused({**document, "merge_method": "delta-revert"}, "did you mean 'delta_revert'?")


def test_what_cannot_be_compared(
    expert: Path, experts: Experts, refused: Refused, tmp_path: Path
) -> None:
    for parameters in ({"threshold": 0.1}, {"keep_fraction": 0.5}):
        refused(revert_recipe(experts.task, experts.base, parameters), "is not the base of")
    wider = save_llama(tmp_path / "wider", 0, vocab_size=72)
    says = "rows are compared one by one: give the base with the expert's vocabulary"
    said = refused(revert_recipe(wider, experts.base, LAYERS), says)
    assert "tokenizer:" not in said, "delta_revert takes none"


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("model.norm.weight", {"keep_fraction": 0.5}, "1 of 16 values of {} are NaN or infinite"),
        (
            "model.layers.1.mlp.up_proj.weight",
            {"threshold": 1.0e-3},
            "{}: a row's mean change is not finite",
        ),
    ],
)
def test_a_change_that_is_not_finite(
    name: str,
    parameters: dict[str, float],
    message: str,
    expert: Path,
    experts: Experts,
    refused: Refused,
    tmp_path: Path,
) -> None:
    def damaged(tensor_name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor_name == name:
            tensor.view(-1)[0] = torch.nan
        return tensor

    folder = rewritten(expert, tmp_path / "damaged", damaged)
    refused(revert_recipe(folder, experts.base, parameters), message.format(name))
