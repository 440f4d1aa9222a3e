"""Every recipe's own command, run by the real `mergekit-yaml`, and every tensor of the result.

The models are tiny stand-ins with the real layer counts under the recipes' own names: hub ids
come from a hub on this machine, through huggingface_hub's real downloads; local paths lie in the
working folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from tests.recipes.documents import (
    RECIPES,
    ROOT,
    command,
    first_commands,
    header,
    is_hub_id,
    load,
)
from tests.recipes.expected import DOMINANCE, REVERTS, SHARES, SOUPS, SWAPS, TIES
from tests.recipes.hub import serve_hub
from tests.recipes.oracle import check_average, check_revert, check_shares, check_swap
from tests.recipes.standins import (
    ALPHA,
    ORIGINALS,
    RANK,
    VOCABULARY,
    build_model,
    folder_of,
    layer_count,
    stored_dtype,
)
from tests.recipes.workshop import Workshop
from tests.standins.oracle import stored

pytestmark = pytest.mark.slow

Checkpoint = dict[str, torch.Tensor]
Errors = Mapping[str, str | None]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    root: Path = tmp_path_factory.mktemp("recipes")
    with serve_hub(root / "hub") as endpoint:
        yield Workshop(root, endpoint)


@pytest.fixture(scope="module")
def errors(workshop: Workshop) -> Errors:
    return workshop.merge_all()


@pytest.fixture
def merged(workshop: Workshop, errors: Errors, recipe: str) -> Checkpoint:
    assert errors[recipe] is None, errors[recipe]
    return workshop.merged(recipe)


def sources(workshop: Workshop, recipe: str, role: str | None = None) -> list[Checkpoint]:
    entries = load(recipe)["models"]
    chosen = [e for e in entries if role is None or e["parameters"]["role"] == role]
    return [workshop.source(entry["model"]) for entry in chosen]


def result_dtype(recipe: str) -> torch.dtype:
    document = load(recipe)
    return DTYPES[document.get("out_dtype", document["dtype"])]


@pytest.mark.parametrize("recipe", SWAPS)
def test_layer_swap_recipe(workshop: Workshop, merged: Checkpoint, recipe: str) -> None:
    check_swap(
        merged,
        SWAPS[recipe],
        sources(workshop, recipe, "task"),
        sources(workshop, recipe, "language"),
        result_dtype(recipe),
        workshop.source(load(recipe)["base_model"]),
    )
    plan = json.loads((workshop.output(recipe) / "layer_swap_plan.json").read_text())
    swapped = {i for i, source in enumerate(plan["layers"]) if source == "language"}
    assert swapped == SWAPS[recipe].language


@pytest.mark.parametrize("recipe", SHARES)
def test_delta_share_recipe(workshop: Workshop, merged: Checkpoint, recipe: str) -> None:
    (task,), (language,) = (sources(workshop, recipe, role) for role in ("task", "language"))
    base = workshop.source(load(recipe)["base_model"])
    dominance = DOMINANCE.get(recipe)
    found = check_shares(
        merged, SHARES[recipe], task, language, base, result_dtype(recipe), dominance
    )
    plan = json.loads((workshop.output(recipe) / "layer_swap_plan.json").read_text())
    assert [unit["source"] for unit in plan["deltas"]["units"]] == found
    assert {"task", "language"} <= set(found), "the rule had no choice to make"


@pytest.mark.parametrize("recipe", SOUPS)
def test_soup_recipe(workshop: Workshop, merged: Checkpoint, recipe: str) -> None:
    models = sources(workshop, recipe)
    assert merged.keys() == models[0].keys()
    total = sum(SOUPS[recipe])
    dtype = result_dtype(recipe)
    for name, tensor in merged.items():
        # `linear` averages what mergekit loaded, and it loads with a cast to the recipe's dtype.
        loaded = [model[name].to(dtype) for model in models]
        check_average(name, tensor, loaded, [w / total for w in SOUPS[recipe]], dtype)


@pytest.mark.parametrize("recipe", TIES)
def test_ties_recipe(workshop: Workshop, merged: Checkpoint, recipe: str) -> None:
    document = load(recipe)
    base = workshop.source(document["base_model"])
    task, language = (
        {name: tensor.to(result_dtype(recipe)) for name, tensor in model.items()}
        for model in sources(workshop, recipe)
    )
    changed = 0
    for name, tensor in merged.items():
        assert bool(torch.isfinite(tensor).all()), name
        assert not torch.equal(tensor, task[name]), name
        assert not torch.equal(tensor, language[name]), name
        changed += int((tensor != base[name].to(tensor.dtype)).sum())
    share = changed / sum(tensor.numel() for tensor in merged.values())
    # Each expert keeps a fifth of its delta: between 0.2 (the same fifth) and 0.4 (disjoint).
    assert 0.2 <= share <= 0.41


@pytest.mark.parametrize("recipe", REVERTS)
def test_revert_recipe(workshop: Workshop, merged: Checkpoint, recipe: str) -> None:
    (expert,) = sources(workshop, recipe)
    base = workshop.source(load(recipe)["base_model"])
    plan = json.loads((workshop.output(recipe) / "delta_revert_plan.json").read_text())
    wanted = REVERTS[recipe]
    threshold = wanted.threshold if wanted.keep is None else plan["threshold"]
    assert threshold == plan["threshold"]
    kept = check_revert(merged, wanted.layers, threshold, expert, base, result_dtype(recipe))
    total = sum(tensor.numel() for tensor in merged.values())
    assert plan["kept"]["kept_weights"] == kept
    if wanted.keep is not None:
        assert wanted.keep <= kept / total <= wanted.keep + 0.01
    elif "pocket" in recipe:
        assert 0.1 < kept / total < 0.9, "the rule had no choice to make"


@pytest.mark.parametrize("recipe", RECIPES)
def test_output_is_a_whole_checkpoint(workshop: Workshop, merged: Checkpoint, recipe: str) -> None:
    out = workshop.output(recipe)
    present = {file.name for file in out.iterdir()}
    assert present >= {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "mergekit_config.yml",
        "README.md",
    }
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == layer_count(load(recipe)["base_model"])
    assert all(tensor.dtype == result_dtype(recipe) for tensor in merged.values())
    recorded = config.get("dtype", config.get("torch_dtype"))
    assert recorded == load(recipe).get("out_dtype", load(recipe)["dtype"])


def test_nothing_but_the_outputs_is_left(workshop: Workshop, errors: Errors) -> None:
    outputs = {workshop.output(recipe).resolve() for recipe in RECIPES}
    folders = {p for name in ("merged", "runs/merged") for p in (workshop.folder / name).iterdir()}
    assert {p.resolve() for p in folders} - outputs == {workshop.folder / "merged/lora_cache"}
    assert outputs <= {p.resolve() for p in folders}


def test_adapters_are_merged_as_lora_says(workshop: Workshop, errors: Errors) -> None:
    from safetensors.torch import load_file

    names = [entry["model"].split("+") for entry in load("recipes/lora_experts.yml")["models"]]
    for base_name, adapter_name in names:
        base, copy = workshop.source(base_name), workshop.source(f"{base_name}+{adapter_name}")
        folder = folder_of(adapter_name, workshop.hub, workshop.folder)
        adapter = load_file(folder / "adapter_model.safetensors")
        changed = 0
        for name, tensor in copy.items():
            expected = base[name].double()
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{prefix}.lora_A.weight" in adapter:
                a, b = (adapter[f"{prefix}.lora_{side}.weight"].double() for side in "AB")
                expected = expected + ALPHA / RANK * (b @ a)
                changed += 1
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-6)
            assert tensor.dtype == torch.float32
        assert changed == 2 * layer_count(base_name)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if "/different_bases/" in r])
def test_different_bases_are_harmonised_by_the_headers_commands(
    workshop: Workshop, errors: Errors, recipe: str, tmp_path: Path
) -> None:
    compat, harmonize = first_commands(recipe)
    assert (compat[1], harmonize[1]) == ("compat", "harmonize")
    models = [word for word in compat if word in ORIGINALS]
    assert f"harmonize {' '.join(f'./originals/{name}' for name in models)} --out DIR" in (
        workshop.run_first(compat)
    )
    out = harmonize[harmonize.index("--out") + 1]
    named = {entry["model"] for entry in load(recipe)["models"]}
    assert named == {f"{out}/{name.split('/')[1]}" for name in models}
    assert load(recipe)["base_model"] in named
    raw = tmp_path / "raw.yml"
    text = (ROOT / recipe).read_text(encoding="utf-8")
    for name in models:
        text = text.replace(f"{out}/{name.split('/')[1]}", f"./originals/{name}")
    raw.write_text(text)
    (refused,) = workshop.merge([["mergekit-yaml", str(raw), "./variants/raw"]])
    assert refused is not None
    assert "layerswap compat ./originals/" in refused


@pytest.mark.parametrize("recipe", ["recipes/swahili.yml", "recipes/pocket/layer_swap.yml"])
def test_the_console_script_gives_the_same_file(
    workshop: Workshop, errors: Errors, recipe: str, tmp_path: Path
) -> None:
    out = tmp_path / "merged"
    words = [*workshop.console_script(), recipe, str(out), *command(recipe)[3:]]
    run = workshop.run(words)
    assert run.returncode == 0, run.stderr[-4000:]
    first = sorted(workshop.output(recipe).glob("*.safetensors"))
    assert first
    for file in first:
        assert (out / file.name).read_bytes() == file.read_bytes()


def test_the_headers_advice_on_vocabularies_works(workshop: Workshop) -> None:
    recipe, math, wider = "recipes/swahili.yml", "MergeBench/Llama-3.1-8B_math", "stand/in-wider"
    advice = "tokenizer: {source: base}"
    assert f"`{advice}`" in dict(header(recipe))["To change"]
    build_model(wider, workshop.hub / wider, vocabulary=VOCABULARY + 8)
    text = (ROOT / recipe).read_text(encoding="utf-8").replace(math, wider)
    (workshop.folder / "plain.yml").write_text(text)
    (workshop.folder / "aligned.yml").write_text(f"{text}{advice}\n")
    plain, aligned = workshop.merge(
        [["mergekit-yaml", f"{name}.yml", f"./variants/{name}"] for name in ("plain", "aligned")]
    )
    assert plain is not None
    assert "different vocabularies" in plain
    assert advice in plain
    assert not (workshop.folder / "variants/plain").exists()
    assert aligned is None, aligned
    task = {
        name: tensor[:VOCABULARY] if tensor.shape[0] == VOCABULARY + 8 else tensor
        for name, tensor in workshop.source(wider).items()
    }
    # mergekit's executor, which `tokenizer:` needs, casts what it reads before it averages.
    task, language = (
        {name: tensor.to(torch.bfloat16) for name, tensor in model.items()}
        for model in (task, *sources(workshop, recipe, "language"))
    )
    merged = stored(workshop.folder / "variants/aligned")
    check_swap(merged, SWAPS[recipe], [task], [language], torch.bfloat16)


def test_the_check_can_fail(workshop: Workshop, errors: Errors) -> None:
    recipe = "recipes/swahili_transition.yml"
    task, language = (sources(workshop, recipe, role) for role in ("task", "language"))
    wrong = {
        "model.layers.4.mlp.up_proj.weight": task[0],
        "model.layers.6.input_layernorm.weight": language[0],
        "model.layers.5.self_attn.q_proj.weight": task[0],
        "model.norm.weight": language[0],
    }
    for name, model in wrong.items():
        spoilt = {**workshop.merged(recipe), name: model[name].to(torch.bfloat16)}
        with pytest.raises(AssertionError, match=name):
            check_swap(spoilt, SWAPS[recipe], task, language, torch.bfloat16)


def test_standins_hold_both_dtypes() -> None:
    models = {entry["model"] for recipe in SWAPS for entry in load(recipe)["models"]}
    on_hub = {stored_dtype(m) for m in models if is_hub_id(m)}
    assert on_hub == {torch.float32, torch.bfloat16}
