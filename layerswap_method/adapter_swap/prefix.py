"""The prefix adapter of a `layer_swap`: keys and values of each layer by the plan.

An average of keys and values is not an average of what attention makes of them: it is the
counterpart of an averaged layer, no exact mean. peft caches a prefix without positions, so its
tokens have no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from layerswap_method.adapter_swap.lora import NewAdapter
from layerswap_method.average import WeightedInputs, weighted_average, weighted_inputs
from layerswap_method.checkpoint.lora import read_adapter_config, read_adapter_tensors
from layerswap_method.checkpoint.stored import FLOATS, read_tensor
from layerswap_method.errors import InputError, input_errors
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.plan import LayerPlan
from layerswap_method.recipe.references import Model

_TENSOR = "prompt_embeddings"
_NUMBERS = ("num_virtual_tokens", "num_layers", "token_dim", "num_attention_heads")


def swap_prefixes(
    recipe: LayerSwapRecipe, models: Mapping[str, Model], num_layers: int
) -> tuple[NewAdapter, LayerPlan]:
    """Return the prefix whose layers come from the experts as the recipe's plan says, and the plan.

    Prefixes of one length are swapped layer by layer. Prefixes of several lengths do not fit into
    one adapter of peft, which has one length for all layers. They can only be set side by side in
    every layer, which is what ``placement: soup`` then does. `num_layers` are the base's.
    """
    spec = recipe.parameters
    experts = [models[entry.model] for entry in recipe.experts]
    plain = [expert.name for expert in experts if expert.adapter is None]
    if plain:
        raise InputError(
            f"swap-adapters: {', '.join(plain)} has no prefix, and the others have one"
        )
    prefixes = [_read_prefix(expert.adapter) for expert in experts if expert.adapter is not None]
    tables = [table for _, table in prefixes]
    config = prefixes[0][0]
    problems = [
        f"{expert.name} has {table.shape[1]} layers, and the base has {num_layers}"
        for expert, table in zip(experts, tables, strict=True)
        if table.shape[1] != num_layers
    ]
    if spec.needs_deltas:
        problems.append(
            f"{spec.delta_setting} measures changes of weights, and a prefix changes none"
        )
    if len({(own["token_dim"], own["num_attention_heads"]) for own, _ in prefixes}) > 1:
        problems.append("the prefixes are of models with other heads; they must be of one base")
    InputError.raise_any("swap-adapters", problems)
    made_of = []
    with input_errors("layer_swap recipe"):
        plan = spec.plan(num_layers)
        for layer in range(num_layers):
            # Keys and values belong to attention, which is what swap_modules asks.
            name = f"layers.{layer}.self_attn.prefix"
            source = spec.tensor_source(name, layer, plan)
            made_of.append(weighted_inputs(name, source, recipe.inputs[:-1], spec.side_weights))
    if len({len(table) for table in tables}) == 1:
        layers = [
            weighted_average([tables[i][:, layer] for i in of.inputs], of.coefficients)
            for layer, of in enumerate(made_of)
        ]
        table = torch.stack(layers, dim=1)
        composed, line = "by layer", f"adapter: prefix of {len(table)} tokens"
    else:
        table = _side_by_side(spec.placement, made_of, tables)
        lengths = " + ".join(str(len(own)) for own in tables)
        composed, line = "side by side", f"prefixes side by side in every layer, {lengths} tokens"
        line = f"adapter: {line}"
    new_config = {
        "peft_type": "PREFIX_TUNING",
        "task_type": config.get("task_type") or "CAUSAL_LM",
        "num_virtual_tokens": len(table),
        "num_layers": num_layers,
        "token_dim": config["token_dim"],
        "num_attention_heads": config["num_attention_heads"],
        "num_transformer_submodules": 1,
        "encoder_hidden_size": config.get("encoder_hidden_size"),
        "prefix_projection": False,
        "inference_mode": True,
    }
    record = {"kind": "prefix", "tokens": len(table), "composed": composed}
    return NewAdapter({_TENSOR: table.flatten(1).contiguous()}, new_config, record, (line,)), plan


def _read_prefix(adapter: Path) -> tuple[dict[str, Any], torch.Tensor]:
    """Return config, and keys and values, tokens x layers x (2 * width), of a prefix adapter.

    peft saves what its encoder gives, also of an encoder with a projection: one row per prefix
    token, and in it for each layer a key and a value of all heads.
    """
    config, stored = read_adapter_config(adapter), read_adapter_tensors(adapter)
    values: list[Any] = [config.get(name) for name in _NUMBERS]
    length, layers, width, _ = values
    problems = [
        f"{name} is {value!r}"
        for name, value in zip(_NUMBERS, values, strict=True)
        if type(value) is not int or value < 1
    ]
    if config.get("num_transformer_submodules", 1) not in (None, 1):
        problems.append("it is of an encoder and a decoder (num_transformer_submodules)")
    if set(stored) != {_TENSOR}:
        problems.append(f"it holds {', '.join(sorted(stored)[:3])} and not {_TENSOR} alone")
    elif not problems:
        tensor = stored[_TENSOR]
        if tensor.shape != (length, layers * 2 * width) or tensor.dtype not in FLOATS:
            problems.append(
                f"{_TENSOR} is {list(tensor.shape)} in {tensor.dtype}, and the config says "
                f"[{length}, {layers} * 2 * {width}] of floats"
            )
    if problems:
        raise InputError(f"{adapter}: cannot be read as a prefix: {'; '.join(problems)}")
    return config, read_tensor(stored[_TENSOR]).view(length, layers, 2 * width)


def _side_by_side(
    placement: str, made_of: Sequence[WeightedInputs], tables: Sequence[torch.Tensor]
) -> torch.Tensor:
    if placement != "soup" or len({number for of in made_of for number in of.coefficients}) > 1:
        raise InputError(
            f"swap-adapters: the prefixes have {', '.join(str(len(own)) for own in tables)} "
            "tokens, and a prefix adapter has one length for all layers; train them with one "
            "num_virtual_tokens, or write placement: soup without weights to set them side by side "
            "in every layer"
        )
    return torch.cat([tables[i] for i in made_of[0].inputs])
