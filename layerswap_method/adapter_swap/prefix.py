"""The prefix adapter of a `layer_swap`: keys and values of each layer by the plan.

Knows prefixes, roles and the plan; not recipes or files that are written. An average of keys and
values is not an average of what attention makes of them: it is the counterpart of an averaged
layer, no exact mean. peft caches a prefix without positions, so its tokens have no order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from layerswap_method.adapter_swap.adapter import NewAdapter
from layerswap_method.algorithm.average import weighted_average
from layerswap_method.algorithm.coefficients import Input, Terms, source_terms
from layerswap_method.algorithm.plan import LayerPlan
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.checkpoints.prefix import PREFIX_TENSOR, Prefix, read_prefix
from layerswap_method.checkpoints.spans import read_rows
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.spec import LayerSwapSpec


def swap_prefixes(
    spec: LayerSwapSpec, experts: Sequence[StreamInput], num_layers: int
) -> tuple[NewAdapter, LayerPlan]:
    """Return the prefix whose layers come from the experts as the recipe's plan says, and the plan.

    Prefixes of one length are swapped layer by layer. Prefixes of several lengths do not fit into
    one adapter of peft, which has one length for all layers. They can only be set side by side in
    every layer, which is what ``placement: soup`` then does.

    Args:
        spec: the recipe's top-level parameters.
        experts: every model with a role, each with a prefix.
        num_layers: decoder layers of the base.

    Raises:
        InputError: for prefixes that do not fit each other, the base or the recipe.
    """
    prefixes = [read_prefix(expert.adapter) for expert in experts if expert.adapter is not None]
    _check(spec, experts, prefixes, num_layers)
    inputs = [Input(expert.role, expert.weight) for expert in experts]
    try:
        plan = spec.plan(num_layers)
        made_of = [_terms(spec, layer, plan, inputs) for layer in range(num_layers)]
    except ValueError as error:
        raise InputError(f"layer_swap: {error}") from error
    tables = [_by_layer(each) for each in prefixes]
    lengths = {prefix.length for prefix in prefixes}
    if len(lengths) == 1:
        table = _swapped(made_of, tables)
        done = f"adapter: prefix of {table.shape[0]} tokens"
    else:
        table = _side_by_side(spec, made_of, tables, [prefix.length for prefix in prefixes])
        lengths_said = " + ".join(str(prefix.length) for prefix in prefixes)
        done = f"adapter: prefixes side by side in every layer, {lengths_said} tokens"
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
        "composed": "by layer" if len(lengths) == 1 else "side by side",
    }
    tensors = {PREFIX_TENSOR: table.flatten(1).contiguous()}
    return NewAdapter(tensors, config, record, (done,)), plan


def _check(
    spec: LayerSwapSpec,
    experts: Sequence[StreamInput],
    prefixes: Sequence[Prefix],
    num_layers: int,
) -> None:
    problems = []
    if len(prefixes) < len(experts):
        plain = [expert.name for expert in experts if expert.adapter is None]
        problems.append(f"{', '.join(plain)} has no prefix, and the others have one")
    if spec.needs_deltas:
        problems.append(
            "weighting: magnitude and placement: delta_share measure changes of weights, and a "
            "prefix changes none"
        )
    odd = [
        f"{expert.name} has {prefix.layers} layers, and the base has {num_layers}"
        for expert, prefix in zip(experts, prefixes, strict=False)
        if prefix.layers != num_layers
    ]
    if len({(prefix.width, prefix.heads) for prefix in prefixes}) > 1:
        odd.append("the prefixes are of models with other heads; they must be of one base")
    if problems or odd:
        raise InputError.from_problems("swap-adapters", [*problems, *odd])


def _terms(spec: LayerSwapSpec, layer: int, plan: LayerPlan, inputs: Sequence[Input]) -> Terms:
    # Keys and values belong to attention, which is what swap_modules asks.
    name = f"layers.{layer}.self_attn.prefix"
    source = spec.tensor_source(name, layer, plan)
    return source_terms(name, source, inputs, spec.side_weights)


def _by_layer(prefix: Prefix) -> torch.Tensor:
    """Return keys and values as tokens x layers x 2 * width."""
    return read_rows(prefix.stored).view(prefix.length, prefix.layers, 2 * prefix.width)


def _swapped(made_of: Sequence[Terms], tables: Sequence[torch.Tensor]) -> torch.Tensor:
    layers = [
        weighted_average([tables[i][:, n] for i in terms.inputs], terms.coefficients, terms.divisor)
        for n, terms in enumerate(made_of)
    ]
    return torch.stack(layers, dim=1)


def _side_by_side(
    spec: LayerSwapSpec,
    made_of: Sequence[Terms],
    tables: Sequence[torch.Tensor],
    lengths: Sequence[int],
) -> torch.Tensor:
    if spec.placement != "soup" or len({number for t in made_of for number in t.coefficients}) > 1:
        raise InputError(
            f"swap-adapters: the prefixes have {', '.join(map(str, lengths))} tokens, and a prefix "
            "adapter has one length for all layers; train them with one num_virtual_tokens, or "
            "write placement: soup without weights to set them side by side in every layer"
        )
    return torch.cat([tables[i] for i in made_of[0].inputs])
