"""`layerswap verify`: two checkpoints, equal or where they are not."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from ablations.cli import main
from tests.standins.merging import recipe, roles, write
from tests.standins.tuned import edited, with_head
from tests.standins.zoo import make_model

FILE = "model.safetensors"


def verify(one, other, *options):
    done = CliRunner().invoke(main, ["verify", str(one), str(other), *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_layers_that_differ_are_named_with_how_much(trio, tmp_path):
    parameters = {"bottom_layers": 2, "top_layers": 1, "non_layer": "task"}
    document = recipe(roles(trio), parameters, trio.base)
    write(document, tmp_path / "merged")
    write(document, tmp_path / "shards", shard_bytes=20_000)
    code, text = verify(tmp_path / "merged", tmp_path / "shards")
    assert (code, "equal: all 57 tensors" in text) == (0, True)
    code, text = verify(tmp_path / "merged", trio.task)
    assert code == 1
    assert "27 of 57 common tensors differ; layers (0-based): 0-1,5" in text
    code, text = verify(tmp_path / "merged", trio.task, "--format", "json")
    found = json.loads(text)
    assert (code, found["equal"]) == (1, False)
    assert {each["layer"] for each in found["differences"]} == {0, 1, 5}
    ours, theirs = (load_file(folder / FILE) for folder in (tmp_path / "merged", trio.task))
    for each in found["differences"]:
        apart = ours[each["name"]].double() - theirs[each["name"]].double()
        assert each["largest"] == apart.abs().max()
        relative = float(apart.norm() / theirs[each["name"]].double().norm())
        assert each["relative"] == pytest.approx(relative)
        assert (each["values"], each["of"]) == (int((apart != 0).sum()), apart.numel())


HEAD, NORM, UP = "lm_head.weight", "model.norm.weight", "model.layers.5.mlp.up_proj.weight"
CHANGES = {
    "values": (HEAD, lambda t: t.index_fill_(0, torch.tensor([3]), 9), []),
    "nan": (NORM, lambda t: t * torch.nan, ["nan"]),
    "dtype": (NORM, lambda t: t.double(), ["dtypes", "all 57"]),
    "lacking": (UP, None, ["only in"]),
    "shape": (HEAD, lambda t: t[:-1].contiguous(), ["shapes"]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_every_kind_of_difference(kind, trio, tmp_path):
    other = Path(shutil.copytree(trio.task, tmp_path / "other"))
    held, (name, change, parts) = load_file(other / FILE), CHANGES[kind]
    before = held.pop(name).clone()
    save_file(held if change is None else {**held, name: change(before)}, other / FILE)
    code, text = verify(other, trio.task)
    assert code == 1
    assert all(part in text for part in (name, *parts)), text
    assert verify(other, trio.task, "--format", "json")[0] == 1


def test_a_tied_head_may_be_stored_once(tmp_path):
    once = make_model("llama_tied", tmp_path / "once", 1)
    twice = with_head(once, tmp_path / "twice")
    assert verify(once, twice)[0] == verify(twice, once)[0] == 0
    edited(once, tie_word_embeddings=False)
    assert HEAD in verify(once, twice)[1]
    code, text = verify(once, tmp_path / "nowhere")
    assert (code, "no such folder" in text) == (2, True)
