"""`layerswap verify`: the recipe of a published swap on stand-ins, equal or where it is not."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from ablations.cli import main
from tests.standins.merging import write
from tests.standins.tuned import edited
from tests.standins.zoo import make_model

ROOT = Path(__file__).parents[2]
LAYERS, FIRST, LAST = 36, 13, 22
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def swaps(tmp_path_factory):
    """Return the merge of `lighton_sw.yml` on stand-ins, and the swap made by hand, in shards."""
    root = tmp_path_factory.mktemp("swaps")
    for seed, name in enumerate(("EN", "SW")):
        make_model("qwen3", root / name, seed, num_hidden_layers=LAYERS)
    document = yaml.safe_load((ROOT / "recipes/community/lighton_sw.yml").read_text("utf-8"))
    here = {f"lightonai/Qwen3-8B-{name}": str(root / name) for name in ("EN", "SW")}
    document["base_model"] = here[document["base_model"]]
    for entry in document["models"]:
        entry["model"] = here[entry["model"]]
    write(document, root / "merged")
    english, swahili = (load_file(root / name / FILE) for name in ("EN", "SW"))
    layers = tuple(f"model.layers.{number}." for number in range(FIRST, LAST + 1))
    swapped = {n: english[n] if n.startswith(layers) else swahili[n] for n in swahili}
    shutil.copytree(root / "SW", root / "published")
    (root / "published" / FILE).unlink()
    weight_map = {}
    for number in (0, 1):
        half, file = dict(list(swapped.items())[number::2]), f"model-{number}.safetensors"
        save_file(half, root / "published" / file, {"format": "pt"})
        weight_map |= dict.fromkeys(half, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (root / "published" / f"{FILE}.index.json").write_text(json.dumps(index), "utf-8")
    return {name: root / name for name in ("merged", "published", "SW")}


def verify(one, other, *options):
    done = CliRunner().invoke(main, ["verify", str(one), str(other), *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_the_recipe_gives_the_published_swap(swaps):
    code, text = verify(swaps["merged"], swaps["published"])
    assert code == 0
    assert "equal: all 399 tensors" in text


def test_layers_that_differ_are_named_with_how_much(swaps):
    code, text = verify(swaps["merged"], swaps["SW"])
    assert code == 1
    assert "110 of 399 common tensors differ; layers (0-based): 13-22" in text
    code, text = verify(swaps["merged"], swaps["SW"], "--format", "json")
    found = json.loads(text)
    assert (code, found["equal"]) == (1, False)
    assert {each["layer"] for each in found["differences"]} == set(range(FIRST, LAST + 1))
    ours, theirs = (load_file(swaps[name] / FILE) for name in ("merged", "SW"))
    for each in found["differences"]:
        apart = ours[each["name"]].double() - theirs[each["name"]].double()
        assert each["largest"] == apart.abs().max()
        relative = float(apart.norm() / theirs[each["name"]].double().norm())
        assert each["relative"] == pytest.approx(relative)
        assert (each["values"], each["of"]) == (int((apart != 0).sum()), apart.numel())


def changed(name, change):
    return lambda held: {**held, name: change(held[name].clone())}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (changed("lm_head.weight", lambda t: t.index_fill_(0, torch.tensor([3]), 9)), ["lm_head"]),
        (changed("model.norm.weight", lambda t: t * torch.nan), ["nan", "model.norm.weight"]),
        (
            changed("model.norm.weight", lambda t: t.double()),
            ["dtypes", "model.norm.weight", "all 399"],
        ),
        (
            lambda held: {n: t for n, t in held.items() if "layers.35.mlp.up" not in n},
            ["only in", "model.layers.35.mlp.up_proj.weight"],
        ),
        (changed("lm_head.weight", lambda t: t[:-1].contiguous()), ["shapes", "lm_head.weight"]),
    ],
    ids=["values", "nan", "dtype", "lacking", "shape"],
)
def test_every_kind_of_difference(change, parts, swaps, tmp_path):
    other = Path(shutil.copytree(swaps["SW"], tmp_path / "other"))
    save_file(change(load_file(other / FILE)), other / FILE, {"format": "pt"})
    code, text = verify(other, swaps["SW"])
    assert code == 1
    assert all(part in text for part in parts), text
    assert verify(other, swaps["SW"], "--format", "json")[0] == 1


def test_a_tied_head_may_be_stored_once(tmp_path):
    once = make_model("llama_tied", tmp_path / "once", 1)
    twice = Path(shutil.copytree(once, tmp_path / "twice"))
    held = load_file(twice / FILE)
    held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
    save_file(held, twice / FILE, {"format": "pt"})
    assert verify(once, twice)[0] == verify(twice, once)[0] == 0
    edited(once, tie_word_embeddings=False)
    assert "lm_head.weight" in verify(once, twice)[1]
    code, text = verify(once, tmp_path / "nowhere")
    assert code == 2
    assert "no such folder" in text
