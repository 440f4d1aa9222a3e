"""Who makes the weights of a cell, and that what is damaged is nobody's but an error."""

import json
import shutil

import pytest

from ablations.models.find import Expert
from ablations.study.identity import Fingerprints, merge_key
from ablations.study.made_by import made_by
from layerswap_method.errors import InputError
from layerswap_method.methods.read import read_recipe
from tests.standins.fine_tunes import edited, write_adapter
from tests.standins.studies import write_expert

PROJECTION = "model.layers.1.mlp.down_proj"


@pytest.fixture
def expert(tmp_path):
    """Return an expert with an adapter that changes one of its tensors."""
    folder = write_expert(tmp_path / "base", 0)
    shapes = json.loads((folder / "config.json").read_text())
    sizes = shapes["intermediate_size"], shapes["hidden_size"]
    return Expert("math", folder, write_adapter(tmp_path / "adapter", PROJECTION, *sizes))


def recipe_of(expert, **more):
    entry = {"model": expert.reference}
    return read_recipe({"merge_method": "passthrough", "models": [entry], **more})


@pytest.mark.parametrize(
    ("config", "more", "maker"),
    [
        ({}, {}, "files"),
        ({}, {"dtype": "float32"}, "files"),
        ({}, {"tokenizer_source": "base"}, "mergekit"),
        ({"use_dora": True}, {}, "mergekit"),
        ({"use_dora": True}, {"dtype": "float32"}, "mergekit"),
        ({"peft_type": "PREFIX_TUNING"}, {}, "engine"),
    ],
    ids=str,
)
def test_an_adapter_says_who_merges_it(expert, config, more, maker):
    edited(expert.adapter, "adapter_config.json", **config)
    assert made_by(recipe_of(expert, **more), {expert.reference: expert}) == maker


@pytest.mark.parametrize("fault", ["quantised", "pickled"])
def test_a_model_that_only_an_engine_loads_has_a_key(expert, fault):
    alone = Expert("math", expert.folder)
    recipe, experts = recipe_of(alone), {alone.reference: alone}
    assert made_by(recipe, experts) == "files"
    if fault == "quantised":
        edited(alone.folder, quantization_config={"quant_method": "awq"})
    else:
        (file,) = alone.folder.glob("*.safetensors")
        file.rename(alone.folder / "pytorch_model.bin")
    assert made_by(recipe, experts) == "engine"
    assert merge_key(recipe, [alone], Fingerprints())


def test_a_damaged_adapter_is_no_reason_for_mergekit(expert, tmp_path):
    """Its merge is refused when the study is planned, and not tried again by another program."""
    recipe, experts = recipe_of(expert, dtype="float32"), {expert.reference: expert}
    shutil.rmtree(expert.adapter)
    write_adapter(expert.adapter, PROJECTION, 5, 7)
    assert made_by(recipe, experts) == "files"
    with pytest.raises(InputError, match="down_proj"):
        merge_key(recipe, [expert], Fingerprints())
