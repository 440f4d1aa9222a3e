"""Which tensors go together, from their names."""

import pytest

from ablations.engines.fused import module_of, with_siblings

PARTS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}
NAMES = [
    "lm_head.weight",
    "model.embed_tokens.weight",
    *(
        f"model.layers.{layer}.{rest}"
        for layer in (1, 0)
        for rest in (
            *(f"self_attn.{p}_proj.{kind}" for p in "qkv" for kind in ("weight", "bias")),
            "self_attn.o_proj.weight",
            "input_layernorm.weight",
            *(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
            "mlp.experts.0.gate_proj.weight",
            "mlp.experts.1.down_proj.weight",
        )
    ),
]


@pytest.mark.parametrize("changed", [f"{p}_proj.{k}" for p in "qkv" for k in ("weight", "bias")])
def test_one_of_q_k_v_brings_all_with_their_biases(changed: str) -> None:
    found = with_siblings([f"model.layers.1.self_attn.{changed}"], NAMES, PARTS)
    wanted = {
        f"model.layers.1.self_attn.{p}_proj.{kind}" for p in "qkv" for kind in ("weight", "bias")
    }
    assert set(found) == wanted
    assert len(found) == 6


def test_gate_brings_up_and_an_expert_all_experts() -> None:
    assert with_siblings(["model.layers.0.mlp.up_proj.weight"], NAMES, PARTS) == (
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    )
    assert with_siblings(["model.layers.0.mlp.experts.1.down_proj.weight"], NAMES, PARTS) == (
        "model.layers.0.mlp.experts.0.gate_proj.weight",
        "model.layers.0.mlp.experts.1.down_proj.weight",
    )


@pytest.mark.parametrize(
    "alone",
    ["lm_head.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.o_proj.weight"],
)
def test_what_is_not_fused_goes_alone(alone: str) -> None:
    assert with_siblings([alone], NAMES, PARTS) == (alone,)


def test_every_change_is_sent_once_and_modules_stay_together() -> None:
    found = with_siblings(NAMES, NAMES, PARTS)
    assert sorted(found) == sorted(NAMES)
    modules = [module_of(name, PARTS) for name in found]
    assert modules == sorted(modules)
    assert with_siblings([], NAMES, PARTS) == ()


def test_an_unknown_tensor_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"the model has no tensor 'lm_head\.bias'"):
        with_siblings(["lm_head.bias"], NAMES, PARTS)
