"""What a feature is: without its weights it has no influence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.deltas.features import feature_layout, input_axis, spread_features
from layerswap_method.errors import InputError
from tests.standins.zoo import FAMILIES, make_config


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, FAMILIES[family].model)(make_config(family)).float().eval()


def magnitudes(delta: torch.Tensor, axis: int | None) -> torch.Tensor:
    layout = feature_layout(delta.shape, axis)
    parts = delta.abs().reshape(layout.matrices, layout.rows, layout.columns)
    return parts.mean(1 if layout.across else 2).flatten().float()


def silence(weight: torch.nn.Parameter, name: str, model_type: str, feature: int) -> None:
    """Set every weight of one feature to 0."""
    axis = input_axis(name, weight.ndim, model_type)
    assert axis is not None
    layout = feature_layout(weight.shape, axis)
    kept = torch.ones(layout.features)
    kept.view(len(weight) if weight.ndim == 3 else 1, -1)[:, feature] = 0
    assert 0 < int((kept == 0).sum()) < kept.numel()
    weight.data *= spread_features(kept, weight.shape, axis)


Module = Callable[[Any], tuple[Any, str]]
MODULES: dict[str, tuple[str, str, int]] = {
    "linear": ("llama", "model.layers.0.mlp.down_proj", 24),
    "fused qkv": ("phi3", "model.layers.0.self_attn.qkv_proj", 16),
    "fused gate and up": ("phi3", "model.layers.0.mlp.gate_up_proj", 16),
    "Conv1D attention": ("gpt2", "transformer.h.0.attn.c_attn", 16),
    "Conv1D up": ("gpt2", "transformer.h.0.mlp.c_fc", 16),
    "Conv1D down": ("gpt2", "transformer.h.0.mlp.c_proj", 64),
}


@pytest.mark.parametrize("case", list(MODULES))
def test_a_feature_whose_weights_are_zero_has_no_influence(case: str) -> None:
    family, name, features = MODULES[case]
    model = model_of(family)
    module = model.get_submodule(name)
    inputs = torch.randn(3, features)
    other = inputs.clone()
    other[:, 5] += 1
    before = module(other) - module(inputs)
    assert float(before.detach().abs().min()) > 0
    silence(module.weight, f"{name}.weight", model.config.model_type, 5)
    assert torch.equal(module(other), module(inputs))


@pytest.mark.parametrize("family", ["gpt_oss", "mixtral"])
def test_so_it_is_for_the_stacked_experts_of_a_mixture(family: str) -> None:
    model = model_of(family)
    name = "model.layers.0.mlp.experts"
    experts = model.get_submodule(name)
    inputs = torch.randn(4, 16)
    other = inputs.clone()
    other[:, 5] += 1
    chosen = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2]])
    weights = torch.full((4, 2), 0.5)

    def run(values: torch.Tensor) -> torch.Tensor:
        return experts(values, chosen, weights).detach()

    assert float((run(other) - run(inputs)).abs().max()) > 0
    silence(experts.gate_up_proj, f"{name}.gate_up_proj", model.config.model_type, 5)
    torch.testing.assert_close(run(other), run(inputs), rtol=0, atol=0)


SHAPES = st.one_of(
    st.tuples(st.lists(st.integers(1, 7), min_size=1, max_size=1), st.none()),
    st.tuples(st.lists(st.integers(1, 7), min_size=2, max_size=2), st.sampled_from([None, 0, 1])),
    st.tuples(st.lists(st.integers(1, 5), min_size=3, max_size=3), st.sampled_from([1, 2])),
    st.tuples(st.lists(st.integers(1, 4), min_size=4, max_size=5), st.just(1)),
)


@given(SHAPES, st.integers(0, 2**31))
def test_the_mean_over_features_is_the_mean_over_values(
    place: tuple[list[int], int | None], seed: int
) -> None:
    shape, axis = place
    delta = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = magnitudes(delta, axis)
    layout = feature_layout(shape, axis)
    assert rows.numel() == layout.features
    assert layout.matrices * layout.rows * layout.columns == delta.numel()
    torch.testing.assert_close(rows.mean(), delta.abs().mean().float())
    spread = spread_features(rows, shape, axis)
    torch.testing.assert_close(spread.expand(shape).mean(), delta.abs().mean().float())


def test_too_many_axes_are_refused() -> None:
    with pytest.raises(InputError, match="odd has 6 axes; which of them are inputs is not known"):
        input_axis("odd", 6, "llama")
