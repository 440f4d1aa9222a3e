"""`layerswap verify`: the recipe of a published swap on stand-ins, equal or where it is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from ablations.cli import main
from tests.merge.conftest import run_merge
from tests.standins.tuned import edited
from tests.standins.zoo import make_model

ROOT = Path(__file__).parents[2]
LAYERS, FIRST, LAST = 36, 13, 22
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def swaps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the merge of `lighton_sw.yml` on stand-ins, and the swap made by hand, in shards."""
    root = tmp_path_factory.mktemp("swaps")
    for seed, name in enumerate(("EN", "SW")):
        make_model("qwen3", root / name, seed, num_hidden_layers=LAYERS)
    document = yaml.safe_load((ROOT / "recipes/community/lighton_sw.yml").read_text("utf-8"))
    here = {f"lightonai/Qwen3-8B-{name}": str(root / name) for name in ("EN", "SW")}
    document["base_model"] = here[document["base_model"]]
    for entry in document["models"]:
        entry["model"] = here[entry["model"]]
    done = run_merge(document, root / "merged")
    assert done.exit_code == 0, done.output
    english, swahili = (load_file(root / name / FILE) for name in ("EN", "SW"))
    taken = {
        name
        for name in english
        if any(name.startswith(f"model.layers.{n}.") for n in range(FIRST, LAST + 1))
    }
    assert len(taken) == 110
    swapped = {name: english[name] if name in taken else swahili[name] for name in swahili}
    shutil.copytree(root / "SW", root / "published")
    (root / "published" / FILE).unlink()
    halves = [dict(list(swapped.items())[start::2]) for start in (0, 1)]
    weight_map = {}
    for number, half in enumerate(halves):
        file = f"model-{number}.safetensors"
        save_file(half, root / "published" / file, {"format": "pt"})
        weight_map |= dict.fromkeys(half, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (root / "published" / f"{FILE}.index.json").write_text(json.dumps(index), "utf-8")
    return {"merged": root / "merged", "published": root / "published", "SW": root / "SW"}


def verify(one: Path, other: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["verify", str(one), str(other), *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_the_recipe_gives_the_published_swap(swaps: dict[str, Path]) -> None:
    code, text = verify(swaps["merged"], swaps["published"])
    assert code == 0
    assert text.startswith("equal: all 399 tensors of ")


def test_layers_that_differ_are_named_with_how_much(swaps: dict[str, Path]) -> None:
    code, text = verify(swaps["merged"], swaps["SW"])
    assert code == 1
    assert "110 of 399 common tensors differ; layers (0-based): 13-22; outside the lay" in text
    assert "  layer 13: 11 tensors, largest difference " in text
    code, text = verify(swaps["merged"], swaps["SW"], "--format", "json")
    found = json.loads(text)
    assert code == 1
    assert found["equal"] is False
    assert {each["layer"] for each in found["differences"]} == set(range(FIRST, LAST + 1))
    ours, theirs = (load_file(swaps[name] / FILE) for name in ("merged", "SW"))
    for each in found["differences"]:
        apart = ours[each["name"]].double() - theirs[each["name"]].double()
        assert each["largest"] == apart.abs().max()
        assert each["relative"] == pytest.approx(
            float(apart.norm() / theirs[each["name"]].double().norm())
        )
        assert each["values"] == int((apart != 0).sum())
        assert each["of"] == apart.numel()


def one_value(held: dict[str, torch.Tensor]) -> None:
    held["lm_head.weight"][3, 1] += 1


def not_a_number(held: dict[str, torch.Tensor]) -> None:
    held["model.norm.weight"][0] = torch.nan


def narrower(held: dict[str, torch.Tensor]) -> None:
    held["model.norm.weight"] = held["model.norm.weight"].double()


def lacking(held: dict[str, torch.Tensor]) -> None:
    del held["model.layers.35.mlp.up_proj.weight"]


def shorter(held: dict[str, torch.Tensor]) -> None:
    held["lm_head.weight"] = held["lm_head.weight"][:-1].contiguous()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            one_value,
            "1 of 399 common tensors differ; layers (0-based): none; outside the layers:",
        ),
        (not_a_number, "outside the layers: 1 tensors, largest difference nan"),
        (narrower, "other dtypes (compared by value): 1 tensors: model.norm.weight"),
        (lacking, "1 tensors: model.layers.35.mlp.up_proj.weight"),
        (shorter, "other shapes: 1 tensors: lm_head.weight"),
    ],
)
def test_every_kind_of_difference(
    change: Callable[[dict[str, torch.Tensor]], None],
    says: str,
    swaps: dict[str, Path],
    tmp_path: Path,
) -> None:
    other = Path(shutil.copytree(swaps["SW"], tmp_path / "other"))
    held = load_file(other / FILE)
    change(held)
    save_file(held, other / FILE, {"format": "pt"})
    code, text = verify(other, swaps["SW"])
    assert code == 1
    assert says in text
    if change is narrower:
        assert "the values of all 399 common tensors are equal" in text


def test_a_tied_head_may_be_stored_once(tmp_path: Path) -> None:
    once = make_model("llama_tied", tmp_path / "once", 1)
    twice = Path(shutil.copytree(once, tmp_path / "twice"))
    held = load_file(twice / FILE)
    held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
    save_file(held, twice / FILE, {"format": "pt"})
    assert verify(once, twice)[0] == verify(twice, once)[0] == 0
    edited(once, tie_word_embeddings=False)
    assert "1 tensors: lm_head.weight" in verify(once, twice)[1]


def test_what_cannot_be_compared(swaps: dict[str, Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["verify", str(swaps["SW"]), str(tmp_path / "nowhere")])
    assert done.exit_code == 2
    assert "no such folder" in done.output
