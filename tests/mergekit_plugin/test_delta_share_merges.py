"""`placement: delta_share` through mergekit-yaml, against the published rule written out here."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.mergekit_plugin.conftest import NUM_LAYERS, Merge, save_llama
from tests.mergekit_plugin.test_errors import refused
from tests.standins.merging import merge as merge_in_process
from tests.standins.tuned import Tensors, layer_of, mean_change, stored, tune

MODULES = {"attention": "self_attn", "mlp": "mlp"}


def moved(layers: Mapping[int, float], module: str | None = None) -> Any:
    """Return how far each tensor moves: 1e-3, and in `layers` that many times as far."""

    def scale(name: str) -> float:
        factor = layers.get(-1 if (layer := layer_of(name)) is None else layer, 1.0)
        return 1e-3 * (factor if module is None or f".{module}." in name else 1.0)

    return scale


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a base, two task experts that moved the middle and a language expert, the ends."""
    root = tmp_path_factory.mktemp("shares")
    scales = {
        "math": moved({3: 2.0, 4: 2.0}),
        "math_2": moved({4: 3.0}, "mlp"),
        "swahili": moved({0: 4.0, 7: 2.0}, "self_attn"),
    }
    base = save_llama(root / "base", 0)
    made = {
        name: tune(base, root / name, i, scale) for i, (name, scale) in enumerate(scales.items())
    }
    return {"base": base, **made}


def recipe(tuned: Mapping[str, Path], parameters: Any, *names: str, **top: Any) -> dict[str, Any]:
    models = [
        {
            "model": str(tuned[name]),
            "parameters": {"role": "task" if "math" in name else "language"},
        }
        for name in names or ("math", "swahili")
    ]
    return {
        "merge_method": "layer_swap",
        "base_model": str(tuned["base"]),
        "models": models,
        "parameters": {"placement": "delta_share", **parameters},
        "dtype": "float32",
        **top,
    }


def soup(parts: Mapping[Path, float]) -> Tensors:
    """Return the weighted mean of checkpoints in float64."""
    total, tensors = sum(parts.values()), [stored(path) for path in parts]
    return {
        name: torch.stack(
            [t[name].double() * w / total for t, w in zip(tensors, parts.values(), strict=True)]
        ).sum(0)
        for name in tensors[0]
    }


def published_shares(expert: Tensors, base: Tensors, unit: str) -> dict[tuple[int, str], float]:
    """Return each unit's share of an expert's relative change, as the authors' programs have it."""
    norms: dict[tuple[int, str], list[float]] = {}
    for name, tensor in base.items():
        if layer_of(name) is None or "norm" in name:
            continue
        before = tensor.double()
        part = next(part for part, key in MODULES.items() if f".{key}." in name)
        place = (layer_of(name) or 0, part if unit == "module" else "layer")
        ratio = float((expert[name].double() - before).norm() / before.norm())
        norms.setdefault(place, []).append(ratio)
    summed = {
        place: sum(r * r for r in found) ** 0.5 if unit == "module" else sum(found)
        for place, found in norms.items()
    }
    return {place: norm / sum(summed.values()) for place, norm in summed.items()}


def decide(difference: float, tau: float) -> str:
    return "task" if difference > tau else "language" if difference < -tau else "average"


@pytest.mark.parametrize("tau", [0.001, 0.03])
@pytest.mark.parametrize(("unit", "alpha"), [("layer", 0.5), ("module", 0.3), ("layer", 0.9)])
def test_every_tensor_and_every_share(
    tuned: dict[str, Path], merge: Merge, unit: str, tau: float, alpha: float
) -> None:
    parameters = {"delta_unit": unit, "delta_threshold": tau, "delta_blend": alpha}
    result = merge(recipe(tuned, parameters))
    assert result.exit_code == 0, result.output
    base, task, language = (stored(tuned[name]) for name in ("base", "math", "swahili"))
    of_task, of_language = (published_shares(e, base, unit) for e in (task, language))
    sources = {p: decide(of_task[p] - of_language[p], tau) for p in of_task}
    if tau == 0.03:
        assert set(sources.values()) == {"task", "language", "average"}
    blend = soup({tuned["math"]: alpha, tuned["swahili"]: 1 - alpha})

    for name, tensor in stored(result.folder).items():
        layer, source = layer_of(name), "average"
        if layer is not None and unit == "layer":
            source = sources[layer, "layer"]
        elif layer is not None:  # in-layer norms stay with the model that is merged into
            part = next((part for part, key in MODULES.items() if f".{key}." in name), None)
            source = "language" if part is None else sources[layer, part]
        if source == "average":
            error = (tensor.double() - blend[name]).abs()
            assert bool((error <= blend[name].abs() * 2**-24).all()), name
        else:
            assert torch.equal(tensor, (task if source == "task" else language)[name]), name

    plan = json.loads((result.folder / "layer_swap_plan.json").read_text())
    units = {(each["layer"], each["part"]): each for each in plan["deltas"]["units"]}
    assert {place: each["source"] for place, each in units.items()} == sources
    for place, each in units.items():
        assert each["task_share"] == pytest.approx(of_task[place], rel=1e-6)
        assert each["language_share"] == pytest.approx(of_language[place], rel=1e-6)
    for side in ("task_share", "language_share"):
        assert sum(each[side] for each in units.values()) == pytest.approx(1, abs=1e-12)
    if unit == "layer":
        assert plan["layers"] == [sources[layer, "layer"] for layer in range(NUM_LAYERS)]
        assert "modules" not in plan
    else:
        for part in MODULES:
            wanted = [sources[layer, part] for layer in range(NUM_LAYERS)]
            assert plan["modules"][part] == wanted


def test_soups_of_a_role_and_magnitude_weights_go_together(
    tuned: dict[str, Path], merge: Merge
) -> None:
    # The task side is the soup of its experts: its change, not theirs, has the shares.
    parameters = {"weighting": "magnitude", "delta_threshold": 0.02, "delta_blend": 0.25}
    result = merge(recipe(tuned, parameters, "math", "math_2", "swahili"))
    assert result.exit_code == 0, result.output
    base = stored(tuned["base"])
    inverse = {
        name: 1 / mean_change(stored(tuned[name]), base) for name in ("math", "math_2", "swahili")
    }
    math = {tuned[name]: inverse[name] for name in ("math", "math_2")}
    task, language = soup(math), stored(tuned["swahili"])
    of_task, of_language = (published_shares(e, base, "layer") for e in (task, language))
    plan = json.loads((result.folder / "layer_swap_plan.json").read_text())
    wanted = [decide(of_task[p] - of_language[p], 0.02) for p in of_task]
    assert plan["layers"] == wanted
    assert set(wanted) == {"task", "language", "average"}
    # 1/4 of every average for the task side, 3/4 for the language side, each times 1/MAV.
    blend = soup(
        {
            **{path: 0.25 / 2 * weight for path, weight in math.items()},
            tuned["swahili"]: 0.75 * inverse["swahili"],
        }
    )
    expected = {"task": task, "language": language, "average": blend}
    for name, tensor in stored(result.folder).items():
        layer = layer_of(name)
        exact = expected["average" if layer is None else wanted[layer]][name].double()
        error = (tensor.double() - exact).abs()
        # Half a float32 step, and a millionth of the largest change.
        assert bool((error <= exact.abs() * 2**-24 + 2e-8).all()), name


def test_the_plan_is_drawn_in_log_and_card(
    tuned: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = {"delta_unit": "module", "delta_threshold": 0.02}
    with caplog.at_level(logging.INFO, logger="layerswap"):
        out = merge_in_process(recipe(tuned, parameters), tmp_path / "out", quiet=False)
    said = [record.message for record in caplog.records]
    plan = json.loads((out / "layer_swap_plan.json").read_text())
    signs = {"task": "·", "average": "▒", "language": "█"}
    card = (out / "README.md").read_text()
    for label, part in (("attn", "attention"), ("mlp", "mlp")):
        row = "".join(signs[source] for source in plan["modules"][part])
        assert any(line.strip().startswith(label) and row in line for line in said)
        assert row in card
    assert "up to a difference of 0.02 it is blended, 0.5 task and 0.5 language" in card


def test_an_expert_without_a_change_has_no_shares(
    tuned: dict[str, Path], merge: Merge, tmp_path: Path
) -> None:
    still = tune(tuned["base"], tmp_path / "still", 7, lambda name: 1e-3 * (layer_of(name) is None))
    document = recipe(tuned, {})
    document["models"][0]["model"] = str(still)
    refused(merge(document), f"the layers of {still} are equal to those of {tuned['base']}")
