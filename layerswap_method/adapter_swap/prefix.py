"""The prefix adapter of a `layer_swap`: keys and values of each layer by the plan.

An average of keys and values is not an average of what attention makes of them: it is the
counterpart of an averaged layer, no exact mean. peft caches a prefix without positions, so its
tokens have no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from layerswap_method.adapter_swap.lora import NewAdapter
from layerswap_method.average import WeightedInputs, weighted_average, weighted_inputs
from layerswap_method.checkpoint.prefix import PREFIX_TENSOR, Prefix, read_prefix
from layerswap_method.checkpoint.stored import read_rows
from layerswap_method.errors import InputError
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.plan import LayerPlan
from layerswap_method.recipe.references import ModelFiles


def swap_prefixes(
    recipe: LayerSwapRecipe, models: Mapping[str, ModelFiles], num_layers: int
) -> tuple[NewAdapter, LayerPlan]:
    """Return the prefix whose layers come from the experts as the recipe's plan says, and the plan.

    Prefixes of one length are swapped layer by layer. Prefixes of several lengths do not fit into
    one adapter of peft, which has one length for all layers. They can only be set side by side in
    every layer, which is what ``placement: soup`` then does.

    Args:
        recipe: the recipe.
        models: reference -> where each model is, every expert with a prefix.
        num_layers: decoder layers of the base.

    Raises:
        InputError: for prefixes that do not fit each other, the base or the recipe.
    """
    spec = recipe.parameters
    experts = [models[entry.model] for entry in recipe.experts]
    plain = [expert.name for expert in experts if expert.adapter is None]
    if plain:
        raise InputError(
            f"swap-adapters: {', '.join(plain)} has no prefix, and the others have one"
        )
    prefixes = [read_prefix(expert.adapter) for expert in experts if expert.adapter is not None]
    problems = [
        f"{expert.name} has {prefix.layers} layers, and the base has {num_layers}"
        for expert, prefix in zip(experts, prefixes, strict=True)
        if prefix.layers != num_layers
    ]
    if spec.needs_deltas:
        problems.append(
            f"{spec.delta_setting} measures changes of weights, and a prefix changes none"
        )
    if len({(prefix.width, prefix.heads) for prefix in prefixes}) > 1:
        problems.append("the prefixes are of models with other heads; they must be of one base")
    if problems:
        raise InputError.from_problems("swap-adapters", problems)
    inputs = recipe.inputs[:-1]
    try:
        plan = spec.plan(num_layers)
        made_of = []
        for layer in range(num_layers):
            # Keys and values belong to attention, which is what swap_modules asks.
            name = f"layers.{layer}.self_attn.prefix"
            source = spec.tensor_source(name, layer, plan)
            made_of.append(weighted_inputs(name, source, inputs, spec.side_weights))
    except ValueError as error:
        raise InputError(f"layer_swap recipe: {error}") from error
    tables = [_by_layer(each) for each in prefixes]
    lengths = [prefix.length for prefix in prefixes]
    if len(set(lengths)) == 1:
        table = torch.stack(
            [
                weighted_average([tables[i][:, layer] for i in of.inputs], of.coefficients)
                for layer, of in enumerate(made_of)
            ],
            dim=1,
        )
        line = f"adapter: prefix of {table.shape[0]} tokens"
    else:
        table = _side_by_side(spec.placement, made_of, tables, lengths)
        line = f"adapter: prefixes side by side in every layer, {' + '.join(map(str, lengths))}"
        line += " tokens"
    config = {
        "peft_type": "PREFIX_TUNING",
        "task_type": prefixes[0].config.get("task_type") or "CAUSAL_LM",
        "num_virtual_tokens": table.shape[0],
        "num_layers": num_layers,
        "token_dim": prefixes[0].width,
        "num_attention_heads": prefixes[0].heads,
        "num_transformer_submodules": 1,
        "encoder_hidden_size": prefixes[0].config.get("encoder_hidden_size"),
        "prefix_projection": False,
        "inference_mode": True,
    }
    record = {
        "kind": "prefix",
        "tokens": table.shape[0],
        "composed": "by layer" if len(set(lengths)) == 1 else "side by side",
    }
    tensors = {PREFIX_TENSOR: table.flatten(1).contiguous()}
    return NewAdapter(tensors, config, record, (line,)), plan


def _by_layer(prefix: Prefix) -> torch.Tensor:
    """Return keys and values as tokens x layers x 2 * width."""
    return read_rows(prefix.stored).view(prefix.length, prefix.layers, 2 * prefix.width)


def _side_by_side(
    placement: str,
    made_of: Sequence[WeightedInputs],
    tables: Sequence[torch.Tensor],
    lengths: Sequence[int],
) -> torch.Tensor:
    if placement != "soup" or len({number for of in made_of for number in of.coefficients}) > 1:
        raise InputError(
            f"swap-adapters: the prefixes have {', '.join(map(str, lengths))} tokens, and a prefix "
            "adapter has one length for all layers; train them with one num_virtual_tokens, or "
            "write placement: soup without weights to set them side by side in every layer"
        )
    return torch.cat([tables[i] for i in made_of[0].inputs])
