"""`weighting: magnitude` through mergekit-yaml: every tensor against an independent float64."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from layerswap_method.deltas import known
from layerswap_method.deltas.magnitudes import mean_row_mav
from layerswap_method.layer_swap import measure
from tests.mergekit_plugin.conftest import NUM_LAYERS, Merge, save_llama
from tests.mergekit_plugin.test_errors import refused
from tests.standins.merging import merge as merge_in_process
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import Tensors, layer_of, mean_change, stored, tune


@dataclass(frozen=True)
class Tuned:
    """A base and its fine-tunes, in float32 and far enough apart that weights matter."""

    base: Path
    math: Path
    math_2: Path
    swahili: Path
    swahili_2: Path

    def recipe(self, parameters: Any, *names: str, **top: Any) -> dict[str, Any]:
        """Return a recipe over the named experts (default: math and swahili)."""
        models = [
            {
                "model": str(getattr(self, name)),
                "parameters": {"role": "task" if "math" in name else "language"},
            }
            for name in names or ("math", "swahili")
        ]
        return {
            "merge_method": "layer_swap",
            "base_model": str(self.base),
            "models": models,
            "parameters": {"weighting": "magnitude", **parameters},
            "dtype": "float32",
            **top,
        }

    def inverse(self, name: str) -> float:
        """Return 1 / (mean change of an expert), in float64 and not rounded."""
        return 1 / mean_change(stored(getattr(self, name)), stored(self.base))


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    root = tmp_path_factory.mktemp("tuned")
    base = save_llama(root / "base", 0)
    scales = {"math": 4e-4, "math_2": 2e-4, "swahili": 1e-4, "swahili_2": 3e-4}
    made = {
        # Layers move differently far, so that a mean over layers or tensors is another number.
        name: tune(base, root / name, i, lambda tensor, s=scale: s * (1 + (layer_of(tensor) or 0)))  # type: ignore[misc]
        for i, (name, scale) in enumerate(scales.items(), start=1)
    }
    return Tuned(base, **made)


def mixture(experts: Mapping[Path, float], name: str) -> torch.Tensor:
    """Return the weighted mean of one tensor over checkpoints, in float64."""
    total = sum(experts.values())
    parts = [stored(path)[name].double() * weight / total for path, weight in experts.items()]
    return torch.stack(parts).sum(0)


def check(merged: Path, wanted: Mapping[str, torch.Tensor]) -> None:
    """Fail unless every tensor is the wanted one: its weights are rounded to six digits."""
    found = stored(merged)
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        error = (tensor.double() - wanted[name]).abs()
        # Half a float32 step, and a millionth of the largest change.
        assert bool((error <= wanted[name].abs() * 2**-24 + 4e-9).all()), (name, error.max())


def plan_file(merged: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((merged / "layer_swap_plan.json").read_text())
    return found


def test_transitions_non_layer_parameters_and_averaged_norms(tuned: Tuned, merge: Merge) -> None:
    parameters = {
        "bottom_layers": 2,
        "top_layers": 1,
        "bottom_transition": 1,
        "top_transition": 1,
        "layer_norms": "average",
    }
    result = merge(tuned.recipe(parameters))
    assert result.exit_code == 0, result.output
    both = {tuned.math: tuned.inverse("math"), tuned.swahili: tuned.inverse("swahili")}
    sources = {0: tuned.swahili, 1: tuned.swahili, 7: tuned.swahili}
    sources |= dict.fromkeys((3, 4, 5), tuned.math)

    def wanted(name: str) -> torch.Tensor:
        layer = layer_of(name)
        if layer is None or "norm" in name or layer not in sources:
            return mixture(both, name)
        return stored(sources[layer])[name].double()

    check(result.folder, {name: wanted(name) for name in stored(tuned.base)})
    share = tuned.inverse("math") / (tuned.inverse("math") + tuned.inverse("swahili"))
    assert 0.1 < share < 0.4  # far from a half
    rows = plan_file(result.folder)["deltas"]["weights"]
    assert [row["role"] for row in rows] == ["task", "language"]
    assert [row["merge_weight"] for row in rows] == pytest.approx(list(both.values()), rel=2e-6)
    assert [row["mean_change"] for row in rows] == pytest.approx(
        [1 / weight for weight in both.values()], rel=1e-6
    )
    assert rows[0]["share_of_average"] == pytest.approx(share, rel=1e-5)
    assert plan_file(result.folder)["parameters"]["weighting"] == "magnitude"


def test_a_weighted_soup_averages_everything(tuned: Tuned, merge: Merge) -> None:
    result = merge(tuned.recipe({"placement": "soup"}))
    assert result.exit_code == 0, result.output
    both = {tuned.math: tuned.inverse("math"), tuned.swahili: tuned.inverse("swahili")}
    check(result.folder, {name: mixture(both, name) for name in stored(tuned.base)})
    assert plan_file(result.folder)["layers"] == ["average"] * NUM_LAYERS


def test_soups_within_the_roles_and_weights_of_your_own(tuned: Tuned, merge: Merge) -> None:
    # Table 6: experts of one role are souped first; here each by its change, times what is written.
    names = ("math", "math_2", "swahili", "swahili_2")
    recipe = tuned.recipe(
        {"bottom_layers": 1, "top_layers": 1, "bottom_transition": 1, "language_weight": 2.0},
        *names,
    )
    recipe["models"][1]["parameters"]["weight"] = 3
    result = merge(recipe)
    assert result.exit_code == 0, result.output
    inverse = {name: tuned.inverse(name) for name in names}
    math = {tuned.math: inverse["math"], tuned.math_2: 3 * inverse["math_2"]}
    swahili = {tuned.swahili: inverse["swahili"], tuned.swahili_2: inverse["swahili_2"]}
    # Uniform shares: 1/4 and 3/4 of weight 1, 1/2 and 1/2 of weight 2; each times 1/MAV.
    both = {path: weight / 4 for path, weight in math.items()}
    both |= dict(swahili.items())

    def wanted(name: str) -> torch.Tensor:
        sides = {0: swahili, 7: swahili, **dict.fromkeys(range(2, 7), math)}
        layer = layer_of(name)
        return mixture(both if layer is None else sides.get(layer, both), name)

    check(result.folder, {name: wanted(name) for name in stored(tuned.base)})


def rewritten(folder: Path, out: Path, change: Any) -> Path:
    """Write a copy of a checkpoint with `change(name, tensor)` in the place of each tensor."""
    out.mkdir()
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = {name: change(name, tensor) for name, tensor in stored(folder).items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def shares(merged: Path) -> list[float]:
    return [row["share_of_average"] for row in plan_file(merged)["deltas"]["weights"]]


def test_a_change_twice_as_large_counts_half(tuned: Tuned, merge: Merge, tmp_path: Path) -> None:
    base = stored(tuned.base)
    farther = rewritten(
        tuned.math, tmp_path / "math", lambda name, t: base[name] + 2 * (t - base[name].float())
    )
    one = shares(merge(tuned.recipe({"placement": "soup"})).folder)
    changed = tuned.recipe({"placement": "soup"})
    changed["models"][0]["model"] = str(farther)
    other = shares(merge(changed).folder)
    odds = [pair[0] / pair[1] for pair in (one, other)]
    assert odds[1] == pytest.approx(odds[0] / 2, rel=1e-4)


def test_swapping_the_roles_swaps_the_weights(tuned: Tuned, merge: Merge) -> None:
    there = merge(tuned.recipe({"placement": "soup"}))
    first, tensors = shares(there.folder), stored(there.folder)
    swapped = tuned.recipe({"placement": "soup"})
    for entry, role in zip(swapped["models"], ("language", "task"), strict=True):
        entry["parameters"]["role"] = role
    back = merge(swapped)
    assert shares(back.folder) == first
    assert all(torch.equal(tensors[name], t) for name, t in stored(back.folder).items())


def test_every_expert_is_measured_once(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def counting(pair: Any, *args: Any) -> float:
        measured.append(Path(pair.expert).name)
        return mean_row_mav(pair, *args)

    monkeypatch.setattr(measure, "mean_row_mav", counting)
    monkeypatch.setattr(known, "_known", {})
    merge_in_process(
        tuned.recipe({"placement": "soup"}, "math", "math_2", "swahili"), tmp_path / "a"
    )
    assert measured == ["math", "math_2", "swahili"]
    merge_in_process(tuned.recipe({"bottom_layers": 1, "top_layers": 0}), tmp_path / "b")
    assert len(measured) == 3  # known in this process: its files are the same
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert not [
        f for f in tuned.math.iterdir() if "safetensors" not in f.name and f.suffix != ".json"
    ]


def test_log_and_card_say_the_weights(
    tuned: Tuned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="layerswap"):
        out = merge_in_process(tuned.recipe({"placement": "soup"}), tmp_path / "out", quiet=False)
    row = plan_file(out)["deltas"]["weights"][1]
    said = [record.message for record in caplog.records]
    assert any(
        f"mean |change| {row['mean_change']:.6g}, weight {row['merge_weight']:.6g}" in line
        for line in said
    )
    assert any("each row once" in line for line in said)
    card = (out / "README.md").read_text()
    assert f"| {row['mean_change']:.6g} | {row['merge_weight']:.6g} |" in card
    assert "all rows of all tensors of the model, each row once" in card
    # The recipe is shown as it was written, not as it was merged.
    for shown in (card, (out / "mergekit_config.yml").read_text()):
        assert "weighting: magnitude" in shown
        assert "task_weight" not in shown


def test_aligned_vocabularies_are_compared_as_stored_and_that_is_said(
    tuned: Tuned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("base", "math", "swahili"):
        shutil.copytree(getattr(tuned, name), tmp_path / name)
        save_word_tokenizer(tmp_path / name, words(64))
    recipe = tuned.recipe({"placement": "soup"}, tokenizer={"source": "base"})
    text = json.dumps(recipe).replace(str(tuned.base.parent), str(tmp_path))
    with caplog.at_level(logging.INFO, logger="layerswap"):
        out = merge_in_process(json.loads(text), tmp_path / "out", quiet=False)
    assert "vocabulary rows are compared as they are stored" in caplog.text
    assert "Vocabulary rows are compared as they are stored" in (out / "README.md").read_text()
    wanted = [tuned.inverse("math"), tuned.inverse("swahili")]
    found = [row["merge_weight"] for row in plan_file(out)["deltas"]["weights"]]
    assert found == pytest.approx(wanted, rel=2e-6)


def test_a_base_that_is_an_expert_is_refused(tuned: Tuned, merge: Merge) -> None:
    recipe = tuned.recipe({}, base_model=str(tuned.math))
    message = f"base_model {tuned.math} is also the task expert; weighting: magnitude measures"
    refused(merge(recipe), message, "write the pretrained parent of the experts")


def test_an_expert_that_did_not_change_is_refused(
    tuned: Tuned, merge: Merge, tmp_path: Path
) -> None:
    copy = rewritten(tuned.base, tmp_path / "copy", lambda name, tensor: tensor)
    recipe = tuned.recipe({})
    recipe["models"][1]["model"] = str(copy)
    refused(
        merge(recipe), f"{copy} is equal to {tuned.base}: its change is 0, which has no inverse"
    )


def test_a_base_of_other_experts_is_refused(tuned: Tuned, merge: Merge, tmp_path: Path) -> None:
    other = save_llama(tmp_path / "other", 99)
    refused(
        merge(tuned.recipe({}, base_model=str(other))),
        f"weighting: magnitude needs the experts' base_model: {other} is not the base of",
    )


def test_weights_that_are_no_numbers_are_refused(
    tuned: Tuned, merge: Merge, tmp_path: Path
) -> None:
    def broken(name: str, tensor: torch.Tensor) -> torch.Tensor:
        result = tensor.clone()
        if name == "model.layers.3.mlp.up_proj.weight":
            result[1, 2] = float("nan")
        return result

    recipe = tuned.recipe({})
    recipe["models"][0]["model"] = str(rewritten(tuned.math, tmp_path / "nan", broken))
    result = merge(recipe)
    refused(result, "1 of 384 values of model.layers.3.mlp.up_proj.weight are NaN or infinite")
    assert not result.folder.exists()


def test_other_vocabularies_are_refused_whether_aligned_or_not(
    tuned: Tuned, merge: Merge, tmp_path: Path
) -> None:
    base, math = (
        shutil.copytree(folder, tmp_path / folder.name) for folder in (tuned.base, tuned.math)
    )
    more = save_llama(tmp_path / "more", 1, vocab_size=66)
    for folder, size in ((base, 64), (math, 64), (more, 66)):
        save_word_tokenizer(folder, words(size))
    recipe = replace(tuned, base=base, math=math, swahili=more).recipe(
        {}, tokenizer={"source": "base"}
    )
    refused(merge(recipe), "have different vocabularies: ", "resize_token_embeddings")


def test_the_base_may_be_stored_in_another_dtype(
    tuned: Tuned, merge: Merge, tmp_path: Path
) -> None:
    base: Tensors = load_file(tuned.base / "model.safetensors")
    assert {tensor.dtype for tensor in base.values()} == {torch.bfloat16}
    wide = rewritten(tuned.base, tmp_path / "wide", lambda name, tensor: tensor.float())
    one = shares(merge(tuned.recipe({"placement": "soup"})).folder)
    assert shares(merge(tuned.recipe({"placement": "soup"}, base_model=str(wide))).folder) == one
