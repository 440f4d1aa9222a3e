"""Which tensors are layers of the text decoder, in every architecture of transformers."""

import json
from pathlib import Path

import pytest

from layerswap_method.tensor_names import find_decoder, is_norm, layer_part
from tools.architectures import rows

ARCHITECTURES = json.loads((Path(__file__).parent / "architectures.json").read_text())
"""Written by `python -m tools.architectures` from transformers' own classes."""

TENSOR = "self_attn.q_proj.weight"


@pytest.mark.slow
def test_the_table_is_what_transformers_builds():
    assert dict(rows()) == ARCHITECTURES


def names_of(stacks):
    """Return the names of one tensor in every layer, as a file has them."""
    return [f"{stack}.{i}.{TENSOR}" for stack, size in stacks.items() for i in range(size)]


def test_the_table_has_what_users_merge():
    assert len(ARCHITECTURES) > 250
    assert {"LlamaForCausalLM", "VideoLlavaForConditionalGeneration"} <= set(ARCHITECTURES)
    several = [row for row in ARCHITECTURES.values() if len(row["stacks"]) > 1 and row["decoder"]]
    assert len(several) > 80


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_text_decoder_of_every_architecture(architecture):
    row = ARCHITECTURES[architecture]
    names = names_of(row["stacks"])
    decoder = find_decoder(names, row["layers"])
    if row["decoder"] is None:
        assert not decoder.prefix
        assert "stack" in decoder.doubt
        assert [decoder.layer(name) for name in names] == [None] * len(names)
        return
    assert (decoder.prefix, decoder.doubt) == (row["decoder"], "")
    layers = [layer for name in names if (layer := decoder.layer(name)) is not None]
    assert layers == list(range(row["stacks"][row["decoder"]]))


ALIKE = {"Cosmos3OmniForConditionalGeneration"}
"""Architectures whose file calls the layers of a vision tower as a text model's could be called."""


@pytest.mark.parametrize("architecture", [n for n, row in ARCHITECTURES.items() if row["decoder"]])
def test_no_length_of_another_stack_misleads(architecture):
    """Towers of the decoder's length, as in small or distilled models."""
    decoder, stacks = (ARCHITECTURES[architecture][key] for key in ("decoder", "stacks"))
    depth = stacks[decoder]
    found = find_decoder(names_of(dict.fromkeys(stacks, depth)), depth)
    if architecture in ALIKE:
        assert found.prefix == ""
        assert all(f"{stack} (" in found.doubt for stack in ("layers", "blocks"))
    else:
        assert (found.prefix, found.doubt) == (decoder, "")


def test_layers_behind_the_decoders_predict_further_tokens():
    stacks = {"model.layers": 7, "model.visual.blocks": 6, "mtp.layers": 1}
    decoder = find_decoder(names_of(stacks), 6, 1)
    assert decoder == ("model.layers", 6, 7, "")
    assert decoder.layer(f"model.layers.5.{TENSOR}") == 5
    assert decoder.layer(f"model.layers.6.{TENSOR}") is None
    assert decoder.layer(f"mtp.layers.0.{TENSOR}") is None


def test_a_loaded_model_has_other_prefixes():
    decoder = find_decoder(
        names_of({"language_model.model.layers": 4, "vision_tower.layers": 4}), 4
    )
    assert decoder.layer(f"model.language_model.layers.3.{TENSOR}") == 3
    assert decoder.layer(f"model.vision_tower.layers.3.{TENSOR}") is None


NAMES = [
    ("model.layers.3.self_attn.q_norm.weight", 3, "attention", True),
    ("model.layers.5.something.weight", 5, "other", False),
    # the module is called norm_attn_norm, and its attention was taken for a norm
    ("transformer.blocks.7.norm_attn_norm.attn.Wqkv.weight", 7, "attention", False),
    ("transformer.blocks.7.norm_attn_norm.norm_1.weight", 7, "norm", True),
    # layers that predict further tokens were layer 0 of the decoder
    ("model.mtp.layers.0.input_layernorm.weight", None, None, True),
    ("model.vision_tower.encoder.layers.3.self_attn.q_proj.weight", None, None, False),
    ("vpm.encoder.layers.0.mlp.fc1.weight", None, None, False),
    ("talker.model.layers.3.mlp.up_proj.weight", None, None, False),
]


@pytest.mark.parametrize(("name", "layer", "part", "norm"), NAMES)
def test_layer_and_part_follow_from_the_name(name, layer, part, norm):
    """The names of all architectures that mergekit knows are in tests/families."""
    assert (find_decoder([name]).layer(name), is_norm(name)) == (layer, norm)
    if layer is not None:
        assert layer_part(name) == part
