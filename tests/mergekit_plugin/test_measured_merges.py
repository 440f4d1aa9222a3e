"""`weighting: magnitude` and `placement: delta_share`: every tensor against float64."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from layerswap_method.layer_swap import measure

from layerswap_method.deltas import known
from layerswap_method.deltas.measure import mean_row_mav
from tests.mergekit_plugin.conftest import NUM_LAYERS, Refused, save_llama
from tests.standins import merging
from tests.standins.merging import merge
from tests.standins.oracle import (
    chosen,
    dominant,
    layer_number,
    mean_change,
    mixture,
    part_of,
    published_shares,
    stored,
)
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import rewritten, tune

Tuned = Mapping[str, Path]
SOUP = {"weighting": "magnitude", "placement": "soup"}


def recipe(tuned: Tuned, parameters: Any, *names: str, **top: Any) -> dict[str, Any]:
    """Return a recipe over the named experts (default: math and swahili)."""
    models = {
        role: [tuned[name] for name in names or ("math", "swahili") if name.startswith(language)]
        for role, language in (("task", "math"), ("language", "swahili"))
    }
    return merging.recipe(models, parameters, tuned["base"], dtype="float32") | top


def inverse(tuned: Tuned, *names: str) -> dict[Path, float]:
    """Return folder -> 1 / (mean change of an expert), in float64 and not rounded."""
    base = stored(tuned["base"])
    return {tuned[name]: 1 / mean_change(stored(tuned[name]), base) for name in names}


def check(
    merged: Path, sources: Mapping[str, Mapping[str, torch.Tensor]], of: Callable[[str], str]
) -> None:
    """Fail unless every tensor is that of its source: weights are rounded to six digits."""
    found = stored(merged)
    assert found.keys() == sources["average"].keys()
    for name, tensor in found.items():
        exact = sources[of(name)][name].double()
        # An average: half a float32 step, and a millionth of the largest change.
        slack = exact.abs() * 2**-24 + 2e-8 if of(name) == "average" else 0 * exact
        assert bool(((tensor.double() - exact).abs() <= slack).all()), name


def plan_file(merged: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((merged / "layer_swap_plan.json").read_text())
    return found


def test_transitions_and_averaged_norms_by_magnitude(tuned: Tuned, tmp_path: Path) -> None:
    counts = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1, "top_transition": 1}
    parameters = {"weighting": "magnitude", "layer_norms": "average", **counts}
    out = merge(recipe(tuned, parameters), tmp_path / "out")
    both = inverse(tuned, "math", "swahili")
    layers = {0: "language", 1: "language", 7: "language", **dict.fromkeys((3, 4, 5), "task")}
    task, language = stored(tuned["math"]), stored(tuned["swahili"])
    sources = {"average": mixture(both), "task": task, "language": language}

    def source(name: str) -> str:
        layer = layer_number(name)
        return "average" if layer is None or "norm" in name else layers.get(layer, "average")

    check(out, sources, source)
    math, swahili = both.values()
    assert 0.1 < math / (math + swahili) < 0.4  # far from a half
    rows = plan_file(out)["deltas"]["weights"]
    assert [row["role"] for row in rows] == ["task", "language"]
    assert [row["merge_weight"] for row in rows] == pytest.approx([math, swahili], rel=2e-6)
    assert [row["mean_change"] for row in rows] == pytest.approx([1 / math, 1 / swahili], rel=1e-6)
    assert rows[0]["share_of_average"] == pytest.approx(math / (math + swahili), rel=1e-5)
    assert plan_file(out)["parameters"]["weighting"] == "magnitude"


def test_soups_within_the_roles_and_weights_of_your_own(tuned: Tuned, tmp_path: Path) -> None:
    # Table 6: experts of one role are souped first; here each by its change, times what is written.
    names = ("math", "math_2", "swahili", "swahili_2")
    document = recipe(tuned, {**SOUP, "language_weight": 2.0}, *names)
    document["models"][1]["parameters"]["weight"] = 3
    out = merge(document, tmp_path / "out")
    # Uniform shares: 1/4 and 3/4 of weight 1, 1/2 and 1/2 of weight 2; each times 1/MAV.
    parts = zip(inverse(tuned, *names).items(), (0.25, 0.75, 1.0, 1.0), strict=True)
    wanted = mixture({path: weight * part for (path, weight), part in parts})
    check(out, {"average": wanted}, lambda name: "average")
    assert plan_file(out)["layers"] == ["average"] * NUM_LAYERS


@pytest.mark.parametrize("tau", [0.001, 0.03])
@pytest.mark.parametrize(("unit", "alpha"), [("layer", 0.9), ("module", 0.3)])
def test_every_tensor_and_every_share(
    tuned: Tuned, tmp_path: Path, unit: str, tau: float, alpha: float
) -> None:
    parameters = {"delta_unit": unit, "delta_threshold": tau, "delta_blend": alpha}
    out = merge(recipe(tuned, {"placement": "delta_share", **parameters}), tmp_path / "out")
    base, task, language = (stored(tuned[name]) for name in ("base", "math", "swahili"))
    of_task, of_language = (published_shares(e, base, unit) for e in (task, language))
    places = {p: chosen(of_task[p] - of_language[p], tau) for p in of_task}
    if tau == 0.03:
        assert set(places.values()) == {"task", "language", "average"}

    def source(name: str) -> str:
        if (layer := layer_number(name)) is None:
            return "average"
        # With modules, in-layer norms stay with the model that is merged into.
        return places.get((layer, part_of(name) if unit == "module" else "layer"), "language")

    blend = mixture({tuned["math"]: alpha, tuned["swahili"]: 1 - alpha})
    check(out, {"task": task, "language": language, "average": blend}, source)
    plan = plan_file(out)
    units = {(each["layer"], each["part"]): each for each in plan["deltas"]["units"]}
    assert {place: each["source"] for place, each in units.items()} == places
    for place, each in units.items():
        assert each["task_share"] == pytest.approx(of_task[place], rel=1e-6)
        assert each["language_share"] == pytest.approx(of_language[place], rel=1e-6)
    assert ("modules" in plan) == (unit == "module")
    for part, written in plan.get("modules", {"layer": plan["layers"]}).items():
        if part in ("layer", "attention", "mlp"):
            assert written == [places[layer, part] for layer in range(NUM_LAYERS)]


@pytest.mark.parametrize("unit", ["layer", "module"])
def test_the_base_has_what_no_expert_dominates(tuned: Tuned, tmp_path: Path, unit: str) -> None:
    parameters = {"delta_unit": unit, "delta_dominance": 0.15, "non_layer": "base"}
    out = merge(recipe(tuned, {"placement": "delta_share", **parameters}), tmp_path / "out")
    base, task, language = (stored(tuned[name]) for name in ("base", "math", "swahili"))
    of_task, of_language = (published_shares(e, base, unit) for e in (task, language))
    places = {p: dominant(of_task[p], of_language[p], 0.15) for p in of_task}
    assert set(places.values()) == {"task", "language", "base"}

    def source(name: str) -> str:
        if (layer := layer_number(name)) is None:
            return "base"
        return places.get((layer, part_of(name) if unit == "module" else "layer"), "language")

    models = {"task": task, "language": language, "base": base}
    check(out, {**models, "average": base}, source)
    units = plan_file(out)["deltas"]["units"]
    assert {(each["layer"], each["part"]): each["source"] for each in units} == places
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "larger than the other's by more than 0.15 of it, else from `" in card
    assert "○ base" in card


def test_shares_of_soups_go_with_magnitude_weights(tuned: Tuned, tmp_path: Path) -> None:
    # The task side is the soup of its experts: its change, not theirs, has the shares.
    parameters = {"placement": "delta_share", "delta_threshold": 0.02, "delta_blend": 0.25}
    document = recipe(tuned, {"weighting": "magnitude", **parameters}, "math", "math_2", "swahili")
    out = merge(document, tmp_path / "out")
    base, maths = stored(tuned["base"]), inverse(tuned, "math", "math_2")
    sides = {"task": mixture(maths), "language": stored(tuned["swahili"])}
    of_task, of_language = (published_shares(e, base, "layer") for e in sides.values())
    layers = [chosen(of_task[p] - of_language[p], 0.02) for p in sorted(of_task)]
    assert plan_file(out)["layers"] == layers
    assert set(layers) == {"task", "language", "average"}
    # 1/4 of every average for the task side, 3/4 for the language side, each times 1/MAV.
    parts = {path: 0.25 / 2 * weight for path, weight in maths.items()}
    (swahili,) = inverse(tuned, "swahili").values()
    sides["average"] = mixture({**parts, tuned["swahili"]: 0.75 * swahili})
    wanted = {
        name: sides["average" if layer is None else layers[layer]][name]
        for name in base
        for layer in [layer_number(name)]
    }
    check(out, {"average": wanted}, lambda name: "average")


def shares(document: dict[str, Any], out: Path) -> list[float]:
    rows = plan_file(merge(document, out))["deltas"]["weights"]
    return [row["share_of_average"] for row in rows]


def test_a_change_twice_as_large_counts_half(tuned: Tuned, tmp_path: Path) -> None:
    base = stored(tuned["base"])
    farther = rewritten(
        tuned["math"], tmp_path / "math", lambda name, t: base[name] + 2 * (t - base[name].float())
    )
    one = shares(recipe(tuned, SOUP), tmp_path / "one")
    other = shares(recipe({**tuned, "math": farther}, SOUP), tmp_path / "other")
    assert other[0] / other[1] == pytest.approx(one[0] / one[1] / 2, rel=1e-4)


def test_neither_roles_nor_the_bases_dtype_change_a_weight(tuned: Tuned, tmp_path: Path) -> None:
    document = recipe(tuned, SOUP)
    first = shares(document, tmp_path / "first")
    for entry, role in zip(document["models"], ("language", "task"), strict=True):
        entry["parameters"]["role"] = role
    assert shares(document, tmp_path / "swapped") == first
    tensors = stored(tmp_path / "first")
    assert all(t.equal(tensors[name]) for name, t in stored(tmp_path / "swapped").items())
    assert {tensor.dtype for tensor in stored(tuned["base"]).values()} == {torch.bfloat16}
    wide = rewritten(tuned["base"], tmp_path / "wide", lambda name, tensor: tensor.float())
    assert shares(recipe({**tuned, "base": wide}, SOUP), tmp_path / "of_wide") == first


def test_every_expert_is_measured_once(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def counting(pair: Any, *args: Any) -> float:
        measured.append(Path(pair.expert).name)
        return mean_row_mav(pair, *args)

    monkeypatch.setattr(measure, "mean_row_mav", counting)
    monkeypatch.setattr(known, "_known", {})
    merge(recipe(tuned, SOUP, "math", "math_2", "swahili"), tmp_path / "a")
    assert measured == ["math", "math_2", "swahili"]
    merge(recipe(tuned, {"weighting": "magnitude", "bottom_layers": 1}), tmp_path / "b")
    assert len(measured) == 3  # known in this process: its files are the same
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_log_and_card_say_the_weights(
    tuned: Tuned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="layerswap"):
        out = merge(recipe(tuned, SOUP), tmp_path / "out", quiet=False)
    row = plan_file(out)["deltas"]["weights"][1]
    said = f"mean |change| {row['mean_change']:.6g}, weight {row['merge_weight']:.6g}"
    assert said in caplog.text
    assert "each row once" in caplog.text
    card = (out / "README.md").read_text()
    assert f"| {row['mean_change']:.6g} | {row['merge_weight']:.6g} |" in card
    assert "all rows of all tensors of the model, each row once" in card
    # The recipe is shown as it was written, not as it was merged.
    for shown in (card, (out / "mergekit_config.yml").read_text()):
        assert "weighting: magnitude" in shown
        assert "task_weight" not in shown


def test_the_plan_is_drawn_in_log_and_card(
    tuned: Tuned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = {"placement": "delta_share", "delta_unit": "module", "delta_threshold": 0.02}
    with caplog.at_level(logging.INFO, logger="layerswap"):
        out = merge(recipe(tuned, parameters), tmp_path / "out", quiet=False)
    signs = {"task": "·", "average": "▒", "language": "█"}
    card = (out / "README.md").read_text()
    for label, part in (("attn", "attention"), ("mlp", "mlp")):
        row = "".join(signs[source] for source in plan_file(out)["modules"][part])
        assert any(said.strip().startswith(label) and row in said for said in caplog.messages)
        assert row in card
    assert "up to a difference of 0.02 it is blended, 0.5 task and 0.5 language" in card


def test_aligned_vocabularies_are_compared_as_stored_and_that_is_said(
    tuned: Tuned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copies = {n: shutil.copytree(tuned[n], tmp_path / n) for n in ("base", "math", "swahili")}
    for folder in copies.values():
        save_word_tokenizer(folder, words(64))
    document = recipe(copies, SOUP, tokenizer={"source": "base"})
    with caplog.at_level(logging.INFO, logger="layerswap"):
        out = merge(document, tmp_path / "out", quiet=False)
    assert "vocabulary rows are compared as they are stored" in caplog.text
    assert "Vocabulary rows are compared as they are stored" in (out / "README.md").read_text()
    found = [row["merge_weight"] for row in plan_file(out)["deltas"]["weights"]]
    assert found == pytest.approx(list(inverse(tuned, "math", "swahili").values()), rel=2e-6)


def test_experts_that_cannot_be_weighed(tuned: Tuned, refused: Refused, tmp_path: Path) -> None:
    def broken(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == "model.layers.3.mlp.up_proj.weight":
            tensor[1, 2] = torch.nan
        return tensor

    given, base = {"weighting": "magnitude"}, tuned["base"]
    refused(
        recipe({**tuned, "base": tuned["math"]}, given),
        f"base_model {tuned['math']} is also the task expert; weighting: magnitude measures",
        "write the pretrained parent of the experts",
    )
    copy = shutil.copytree(base, tmp_path / "copy")
    equal = f"{copy} is equal to {base}: its change is 0, which has no inverse"
    refused(recipe({**tuned, "swahili": copy}, given), equal)
    other = save_llama(tmp_path / "other", 99)
    needs = f"weighting: magnitude needs the experts' base_model: {other} is not the base of"
    refused(recipe({**tuned, "base": other}, given), needs)
    nan = rewritten(tuned["math"], tmp_path / "nan", broken)
    says = "1 of 384 values of model.layers.3.mlp.up_proj.weight are NaN or infinite"
    refused(recipe({**tuned, "math": nan}, given), says)
    still = tune(base, tmp_path / "still", 7, lambda n: 1e-3 * (layer_number(n) is None))
    says = f"the layers of {still} are equal to those of {base}"
    refused(recipe({**tuned, "math": still}, {"placement": "delta_share"}), says)


def test_other_vocabularies_are_refused_whether_aligned_or_not(
    tuned: Tuned, refused: Refused, tmp_path: Path
) -> None:
    copies = {n: shutil.copytree(tuned[n], tmp_path / n) for n in ("base", "math")}
    copies["swahili"] = save_llama(tmp_path / "more", 1, vocab_size=66)
    for name, folder in copies.items():
        save_word_tokenizer(folder, words(66 if name == "swahili" else 64))
    document = recipe(copies, {"weighting": "magnitude"}, tokenizer={"source": "base"})
    refused(document, "have different vocabularies: ", "resize_token_embeddings")
