"""`delta_revert` through mergekit-yaml: every tensor, the count, and what a user gets wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.mergekit_plugin.conftest import NUM_LAYERS, Experts, Merge
from tests.mergekit_plugin.test_errors import refused

Tensors = dict[str, torch.Tensor]


def nudged(base: Path, folder: Path, dtype: torch.dtype, scale: float = 0.05) -> Path:
    """Write a fine-tune of `base`: each weight moved, in some features more than in others."""
    generator = torch.Generator().manual_seed(5)
    folder.mkdir()
    (folder / "config.json").write_bytes((base / "config.json").read_bytes())
    moved = {}
    for name, tensor in load_file(base / "model.safetensors").items():
        change = torch.randn(tensor.shape, generator=generator)
        change = change * torch.rand(tensor.shape[-1], generator=generator) * scale
        moved[name] = (tensor.float() * (1 + change)).to(dtype)
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def expert(experts: Experts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nudged(experts.base, tmp_path_factory.mktemp("tuned") / "expert", torch.bfloat16)


def recipe(expert: Path, experts: Experts, parameters: Any = None, **top: Any) -> dict[str, Any]:
    return {
        "merge_method": "delta_revert",
        "models": [{"model": str(expert)}],
        "base_model": str(experts.base),
        "parameters": {"bottom_layers": 2, "top_layers": 1} if parameters is None else parameters,
        **top,
    }


def read(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def row_changes(name: str, expert: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Mean over the outputs of a matrix, the first axis, or over a whole vector."""
    return (expert.double() - base.double()).abs().mean(0, keepdim=True)


def layer_of(name: str) -> int | None:
    return int(name.split(".")[2]) if name.startswith("model.layers.") else None


def plan_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "delta_revert_plan.json").read_text())
    return found


def kept_weights(merged: Tensors, expert: Tensors, base: Tensors) -> int:
    """Weights of rows that equal the expert's and are not the base's: no count of ours."""
    kept = 0
    for name, tensor in merged.items():
        rows = row_changes(name, tensor, base[name]) > 0
        kept += int(rows.sum()) * (tensor.numel() // rows.numel())
    return kept


LOCATIONS = [
    ({"bottom_layers": 2, "top_layers": 1}, {0, 1, 7}, ()),
    ({"revert_layers": "0-1,7"}, {0, 1, 7}, ()),
    ({"revert_layers": "3", "top_layers": 1}, {3, 7}, ()),
    ({"revert_modules": "attention"}, set(), ("self_attn",)),
    ({"revert_modules": "mlp,non_layer", "bottom_layers": 1}, {0}, ("mlp", None)),
    ({"bottom_layers": 0}, set(), ()),
]


@pytest.mark.parametrize(("parameters", "layers", "modules"), LOCATIONS)
def test_given_layers_and_modules_are_the_bases_and_the_rest_the_experts(
    expert: Path,
    experts: Experts,
    merge: Merge,
    parameters: dict[str, Any],
    layers: set[int],
    modules: tuple[str | None, ...],
) -> None:
    result = merge(recipe(expert, experts, parameters))
    assert result.exit_code == 0, result.output
    ours, theirs, merged = read(expert), read(experts.base), read(result.folder)
    assert merged.keys() == ours.keys()
    reverted = 0
    for name, tensor in merged.items():
        layer = layer_of(name)
        part = name.split(".")[3] if layer is not None else None
        goes_back = layer in layers or part in modules
        assert torch.equal(tensor, theirs[name] if goes_back else ours[name]), name
        reverted += tensor.numel() if goes_back else 0
    plan = plan_of(result.folder)
    total = sum(tensor.numel() for tensor in merged.values())
    assert (plan["kept"]["weights"], plan["kept"]["kept_weights"]) == (total, total - reverted)
    assert plan["reverted_layers"] == sorted(layers)
    assert plan["num_layers"] == NUM_LAYERS


def check_rows(merged: Tensors, expert: Tensors, base: Tensors, threshold: float) -> int:
    """Fail unless every row is the side its change says; return how many stay."""
    stay = 0
    for name, tensor in merged.items():
        kept = row_changes(name, expert[name], base[name]) >= threshold
        assert torch.equal(tensor, torch.where(kept, expert[name], base[name])), name
        stay += int(kept.sum())
    return stay


def test_rows_below_the_threshold_are_the_bases(
    expert: Path, experts: Experts, merge: Merge
) -> None:
    result = merge(recipe(expert, experts, {"threshold": 0.0004}))
    assert result.exit_code == 0, result.output
    ours, theirs = read(expert), read(experts.base)
    stay = check_rows(read(result.folder), ours, theirs, 0.0004)
    kept = plan_of(result.folder)["kept"]
    assert kept["kept_rows"] == stay
    assert 0 < stay < kept["rows"]


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.7])
def test_keep_fraction_keeps_that_share_of_the_weights(
    fraction: float, expert: Path, experts: Experts, merge: Merge
) -> None:
    result = merge(recipe(expert, experts, {"keep_fraction": fraction}))
    assert result.exit_code == 0, result.output
    ours, theirs, merged = read(expert), read(experts.base), read(result.folder)
    plan = plan_of(result.folder)
    check_rows(merged, ours, theirs, plan["threshold"])
    total = sum(tensor.numel() for tensor in merged.values())
    largest = max(ours[n].numel() // row_changes(n, ours[n], theirs[n]).numel() for n in ours)
    kept = kept_weights(merged, ours, theirs)
    assert fraction * total <= kept <= fraction * total + largest
    assert plan["kept"]["kept_weights"] == kept
    assert plan["parameters"]["keep_fraction"] == fraction
    assert sum(k["kept_weights"] for k in plan["kept_by_layer"].values()) == kept
    assert sum(k["rows"] for k in plan["kept_by_module"].values()) == plan["kept"]["rows"]


def test_the_whole_fraction_is_the_expert(expert: Path, experts: Experts, merge: Merge) -> None:
    result = merge(recipe(expert, experts, {"keep_fraction": 1.0}))
    ours, merged = read(expert), read(result.folder)
    assert all(torch.equal(merged[name], ours[name]) for name in ours)
    assert plan_of(result.folder)["kept"]["fraction"] == 1.0


def test_rows_layers_and_modules_are_one_union(
    expert: Path, experts: Experts, merge: Merge
) -> None:
    parameters = {"threshold": 0.0004, "bottom_layers": 1, "revert_modules": "mlp"}
    result = merge(recipe(expert, experts, parameters))
    assert result.exit_code == 0, result.output
    merged, ours, theirs = read(result.folder), read(expert), read(experts.base)
    whole = {n for n in merged if layer_of(n) == 0 or ".mlp." in n}
    assert 0 < len(whole) < len(merged)
    assert all(torch.equal(merged[name], theirs[name]) for name in whole)
    check_rows({n: t for n, t in merged.items() if n not in whole}, ours, theirs, 0.0004)


def test_rows_are_compared_as_stored_and_cast_after(
    experts: Experts, merge: Merge, tmp_path: Path
) -> None:
    """A light change vanishes in bfloat16; compared before the cast it does not."""
    tuned = nudged(experts.base, tmp_path / "light", torch.float32, scale=1e-4)
    threshold = 1e-7
    result = merge(recipe(tuned, experts, {"threshold": threshold}, dtype="bfloat16"))
    assert result.exit_code == 0, result.output
    ours, theirs, merged = read(tuned), read(experts.base), read(result.folder)
    expected = {
        name: torch.where(
            row_changes(name, ours[name], theirs[name]) >= threshold, ours[name], theirs[name]
        ).bfloat16()
        for name in ours
    }
    assert all(torch.equal(merged[name], expected[name]) for name in expected)
    assert plan_of(result.folder)["kept"]["fraction"] > 0.5


def test_log_plan_and_card_say_what_is_kept(
    expert: Path, experts: Experts, merge: Merge, caplog: pytest.LogCaptureFixture
) -> None:
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    out = experts.root / "said"
    document = recipe(expert, experts, {"keep_fraction": 0.7, "top_layers": 1})
    config = MergeConfiguration.model_validate(document)
    run_merge(config, str(out), MergeOptions(copy_tokenizer=False))
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


def test_listing_the_base_changes_nothing(expert: Path, experts: Experts, merge: Merge) -> None:
    document = recipe(expert, experts)
    first = read(merge(document).folder)
    document["models"].append({"model": str(experts.base)})
    second = merge(document)
    assert second.exit_code == 0, second.output
    again = read(second.folder)
    assert all(torch.equal(again[name], first[name]) for name in first)


WRONG = [
    ({"treshold": 0.1}, "unknown parameter 'treshold'; did you mean 'threshold'?"),
    ({}, "nothing says what to revert; write one of threshold, keep_fraction"),
    ({"threshold": "1e-5"}, "this is text (YAML reads 1e-6 and quoted numbers so): write 1.0e-05"),
    ({"threshold": [0.1, 0.2]}, "threshold is a list or filter, which mergekit interpolates"),
    ({"threshold": 0.1, "keep_fraction": 0.5}, "both say which rows stay; drop one"),
    ({"keep_fraction": 70}, "keep_fraction is 70: Input should be less than or equal to 1"),
    ({"revert_layers": [0, 1]}, "revert_layers is a list, which mergekit interpolates; write a"),
    ({"revert_layers": 3}, 'revert_layers is 3; it must be a string in quotes, such as "3"'),
    ({"revert_layers": "8"}, "layer 8 does not exist; the model has layers 0 to 7"),
    ({"revert_modules": ["mlp", "norm"]}, 'write a string: "mlp,norm"'),
    ({"revert_modules": "atention"}, "did you mean 'attention'?"),
    ({"bottom_layers": 7, "top_layers": 2}, "7 + 2 = 9 is more than the model's 8 layers"),
]


@pytest.mark.parametrize(("parameters", "message"), WRONG)
def test_parameters(
    expert: Path, experts: Experts, merge: Merge, parameters: dict[str, Any], message: str
) -> None:
    refused(merge(recipe(expert, experts, parameters)), "delta_revert recipe", message)


def test_every_problem_is_named_at_once(expert: Path, experts: Experts, merge: Merge) -> None:
    document = recipe(expert, experts, {"botom_layers": 1, "threshold": -1.0})
    document["models"] = [
        {"model": str(expert), "parameters": {"role": "task"}},
        {"model": str(experts.task), "parameters": {"threshold": 1.0}},
    ]
    document |= {"threshold": 0.1, "tokenizer": {"source": "base"}}
    refused(
        merge(document),
        "the recipe has the unknown key 'threshold', which mergekit ignores; it belongs under",
        "unknown parameter 'botom_layers'; did you mean 'bottom_layers'?",
        "threshold is -1.0",
        "tokenizer has no place here",
        "delta_revert has no roles",
        "threshold belongs under the recipe's top parameters:",
        "lists 2 models beside the base_model",
    )


def test_structures_that_it_does_not_take(expert: Path, experts: Experts, merge: Merge) -> None:
    document = recipe(expert, experts)
    del document["models"]
    sources = [{"model": str(expert), "layer_range": [0, 8]}]
    refused(merge({**document, "slices": [{"sources": sources}]}), "write models: in place of")
    refused(merge({**recipe(expert, experts), "models": []}), "it needs models:, slices: or")
    missing = recipe(expert, experts)
    del missing["base_model"]
    refused(merge(missing), "base_model is missing")
    same = recipe(experts.base, experts)
    refused(merge(same), "lists 0 models beside the base_model (none)")


def test_a_name_that_is_nearly_right(expert: Path, experts: Experts, merge: Merge) -> None:
    document = {**recipe(expert, experts), "merge_method": "delta-revert"}
    refused(merge(document), "did you mean 'delta_revert'?")


def test_a_base_that_is_not_the_base(experts: Experts, merge: Merge) -> None:
    for parameters in ({"threshold": 0.1}, {"keep_fraction": 0.5}):
        refused(merge(recipe(experts.task, experts, parameters)), "is not the base of")


def test_a_change_that_is_not_finite(
    expert: Path, experts: Experts, merge: Merge, tmp_path: Path
) -> None:
    folder = tmp_path / "nan"
    folder.mkdir()
    (folder / "config.json").write_bytes((expert / "config.json").read_bytes())
    tensors = read(expert)
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    result = merge(recipe(folder, experts, {"keep_fraction": 0.5}))
    refused(result, "1 of 16 values of model.norm.weight are NaN or infinite")


def test_another_vocabulary(experts: Experts, merge: Merge, tmp_path: Path) -> None:
    from tests.mergekit_plugin.conftest import save_llama

    wider = save_llama(tmp_path / "wider", 0, vocab_size=72)
    result = merge(recipe(wider, experts))
    refused(result, "rows are compared one by one: give the base with the expert's vocabulary")
    assert "tokenizer:" not in result.output, "delta_revert takes none"


def test_a_row_that_is_not_finite(
    expert: Path, experts: Experts, merge: Merge, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_bytes((expert / "config.json").read_bytes())
    tensors = read(expert)
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.inf
    save_file(tensors, damaged / "model.safetensors", metadata={"format": "pt"})
    result = merge(recipe(damaged, experts, {"threshold": 1.0e-3}))
    refused(result, "model.layers.1.mlp.up_proj.weight: a row's mean change is not finite")
