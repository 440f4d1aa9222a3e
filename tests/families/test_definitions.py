"""All of mergekit's own architecture definitions: what we read off their names is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from layerswap_method.mergekit_plugin.definitions import decoder_module
from mergekit.architecture.json_definitions import NAME_TO_ARCH

from layerswap_method.errors import InputError
from layerswap_method.tensor_names import layer_part, outside_decoder, split_layer

ENCODER_DECODERS = {"T5ForConditionalGeneration", "WhisperForConditionalGeneration"}
ENCODERS = ("bert", "roberta", "distilbert")
"""Model types that are no text decoders; their layers follow the plan all the same."""

NO_ATTENTION = ("mamba.", "mixer.", "conv.")
"""Layer modules that are neither attention nor feed-forward (and `mixer` of Phi's old code)."""

ARCHITECTURES = [
    pytest.param(name, arch, id=f"{name}-{arch.expected_model_type}")
    for name, archs in sorted(NAME_TO_ARCH.items())
    for arch in archs
]


def layer_names(module: Any, layer: int) -> Iterator[str]:
    """Yield the full names of one layer's tensors."""
    for weight in module.architecture.definition.layer_templates.weights:
        name = weight.name.replace("${layer_index}", str(layer))
        yield f"{module.weight_prefix or ''}{name}"


def test_there_are_definitions() -> None:
    assert len(ARCHITECTURES) > 50
    assert {param.values[0] for param in ARCHITECTURES} >= ENCODER_DECODERS


@pytest.mark.parametrize(("name", "arch"), ARCHITECTURES)
def test_the_decoder_its_layers_and_their_parts_are_found(name: str, arch: Any) -> None:
    if name in ENCODER_DECODERS:
        with pytest.raises(InputError, match="what is merged by layer is one text decoder"):
            decoder_module(arch)
        return
    decoder = decoder_module(arch)
    assert decoder in ("default", "text_decoder")
    found = list(layer_names(arch.modules[decoder], 17))
    assert found
    for tensor in found:
        layer, rest = split_layer(tensor)
        assert layer == 17, tensor
        assert not outside_decoder(tensor), tensor
        if not arch.expected_model_type.startswith(ENCODERS):
            part = layer_part(tensor)
            assert (part == "other") == rest.startswith(NO_ATTENTION), (tensor, part)
    for other, module in arch.modules.items():
        if other != decoder:
            assert all(outside_decoder(tensor) for tensor in layer_names(module, 17)), other


NUMBERED_EMBEDDINGS = "MixFormerSequentialForCausalLM"
"""Phi's first remote code calls its embeddings layer 0. The planner is not misled by that."""


@pytest.mark.parametrize(("name", "arch"), ARCHITECTURES)
def test_nothing_outside_the_layers_looks_like_one(name: str, arch: Any) -> None:
    for module in arch.modules.values():
        definition = module.architecture.definition
        for weight in (*definition.pre_weights, *definition.post_weights):
            tensor = f"{module.weight_prefix or ''}{weight.name}"
            numbered = split_layer(tensor.replace("${num_layers}", "6"))[0] is not None
            assert not numbered or outside_decoder(tensor) or name == NUMBERED_EMBEDDINGS, tensor
