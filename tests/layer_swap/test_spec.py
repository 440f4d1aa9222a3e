"""Which expert each tensor of a recipe comes from."""

from __future__ import annotations

import pytest

from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.tensor_names import layer_part, outside_decoder, split_layer


@pytest.mark.parametrize(
    ("name", "layer", "part"),
    [
        ("model.layers.3.self_attn.q_proj.weight", 3, "attention"),
        ("model.layers.3.self_attn.q_norm.weight", 3, "attention"),
        ("model.layers.12.mlp.gate_up_proj.weight", 12, "mlp"),
        ("model.layers.0.block_sparse_moe.experts.7.w1.weight", 0, "mlp"),
        ("model.layers.0.mlp.experts.11.down_proj.weight", 0, "mlp"),
        ("model.layers.1.feed_forward.w1.weight", 1, "mlp"),
        ("model.layers.1.input_layernorm.weight", 1, "norm"),
        ("model.layers.1.post_attention_layernorm.weight", 1, "norm"),
        ("model.layers.1.attention_norm.weight", 1, "norm"),
        ("transformer.h.4.attn.c_attn.weight", 4, "attention"),
        ("transformer.h.4.ln_1.bias", 4, "norm"),
        ("transformer.h.4.mlp.c_fc.weight", 4, "mlp"),
        ("transformer.h.4.ln_attn.weight", 4, "norm"),
        ("gpt_neox.layers.2.attention.dense.weight", 2, "attention"),
        ("language_model.model.layers.5.self_attn.o_proj.weight", 5, "attention"),
        ("backbone.layers.9.mixer.in_proj.weight", 9, "other"),
    ],
)
def test_names_of_the_families(name: str, layer: int, part: str) -> None:
    assert split_layer(name)[0] == layer
    assert layer_part(name) == part


@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "transformer.wte.weight"],
)
def test_names_outside_the_layers(name: str) -> None:
    assert split_layer(name)[0] is None
    assert not outside_decoder(name)


def test_vision_towers_are_outside_the_decoder() -> None:
    assert outside_decoder("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight")
    assert outside_decoder("model.visual.blocks.0.attn.qkv.weight")
    assert outside_decoder("multi_modal_projector.linear_1.weight")


NAMES = {
    "attention": "model.layers.{}.self_attn.q_proj.weight",
    "mlp": "model.layers.{}.mlp.up_proj.weight",
    "norm": "model.layers.{}.input_layernorm.weight",
}


def sources(spec: LayerSwapSpec, part: str, num_layers: int = 8) -> list[str]:
    plan = spec.plan(num_layers)
    return [spec.named_source(NAMES[part].format(i), plan) for i in range(num_layers)]


SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}
PLANNED = ["language"] * 2 + ["average"] + ["task"] * 4 + ["language"]


@pytest.mark.parametrize("part", list(NAMES))
def test_a_layer_is_one_block_by_default(part: str) -> None:
    assert sources(LayerSwapSpec(**SWAP), part) == PLANNED


def test_norms_averaged_everywhere_in_the_literal_reading() -> None:
    spec = LayerSwapSpec(**SWAP, layer_norms="average")
    assert sources(spec, "norm") == ["average"] * 8
    assert sources(spec, "mlp") == PLANNED


@pytest.mark.parametrize("moved", ["attention", "mlp"])
def test_only_the_swapped_modules_move(moved: str) -> None:
    spec = LayerSwapSpec(**SWAP, swap_modules=moved)  # type: ignore[arg-type]
    for part in NAMES:
        assert sources(spec, part) == (PLANNED if part == moved else ["task"] * 8)


@pytest.mark.parametrize("non_layer", ["average", "task", "language", "base"])
def test_everything_outside_the_layers(non_layer: str) -> None:
    spec = LayerSwapSpec(non_layer=non_layer)  # type: ignore[arg-type]
    assert spec.named_source("lm_head.weight", spec.plan(32)) == non_layer


def test_a_layer_beyond_the_plan_is_refused() -> None:
    spec = LayerSwapSpec()
    with pytest.raises(ValueError, match=r"layer 32 is not in 0\.\.31"):
        spec.named_source("model.layers.32.mlp.up_proj.weight", spec.plan(32))
