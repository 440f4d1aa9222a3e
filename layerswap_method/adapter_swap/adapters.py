"""The adapter of a `layer_swap`, of LoRA adapters or of prefixes.

The changes that LoRA adapters make to the base are read off the merge. Averaging each factor is not
averaging the changes: ``(B1 + B2)(A1 + A2)`` has cross terms. The sum is exact when the ranks are
stacked::

    c1 B1 A1 + c2 B2 A2  ==  [c1 B1, c2 B2] @ [A1; A2]

An average of a prefix's keys and values is the counterpart of an averaged layer, no exact mean of
what attention makes of them.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from layerswap_method.average import weighted_average, weighted_inputs
from layerswap_method.checkpoint.lora import read_adapter_config, read_adapter_tensors
from layerswap_method.checkpoint.low_rank import LowRankChange
from layerswap_method.checkpoint.stored import FLOATS, read_tensor
from layerswap_method.errors import InputError, input_errors
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import Merge, TensorMix

_TENSOR = "prompt_embeddings"
_NUMBERS = ("num_virtual_tokens", "num_layers", "token_dim")


class NewAdapter(NamedTuple):
    """An adapter in memory: its two files (except the base), its record in the plan, log lines."""

    tensors: Mapping[str, torch.Tensor]
    config: Mapping[str, Any]
    record: Mapping[str, Any]
    lines: tuple[str, ...]


class Factors(NamedTuple):
    """One change: ``up @ down``, LoRA's B (outputs x rank) and A (rank x inputs)."""

    down: torch.Tensor
    up: torch.Tensor


def swap_lora(merge: Merge, config: Mapping[str, Any], rank: int | None) -> NewAdapter:
    """Return the adapter that adds to the base what the merge's tensors have beyond it.

    A tensor of one expert has that expert's two matrices bit for bit, and its scaling. An average
    has both experts' matrices, one below the other, and the scaling of the first. `config` is one
    adapter's; a change of a higher rank than `rank` is replaced by the nearest one of that rank.
    """
    changes = {name: _changes(mix) for name, mix in merge.tensors.items()}
    changes = {name: shares for name, shares in changes.items() if shares}
    if not changes:
        raise InputError("swap-adapters: the new adapter would change nothing; swap other layers")
    terms: dict[str, list[tuple[Factors, float]]] = {}
    for name, shares in changes.items():
        scaling = shares[0][0].scaling  # the new adapter's for this tensor
        terms[name] = [
            (_read(change), share * (change.scaling / scaling)) for change, share in shares
        ]
    dtype = _common_dtype(terms.values(), rank)
    tensors: dict[str, torch.Tensor] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    squared_norm, squared_errors = 0.0, list[float]()
    for name, shares in changes.items():
        first, factors = shares[0][0], stack(terms[name], dtype)
        if rank is not None:
            down, up = (factor.double() for factor in factors)
            squared_norm += float(((up.T @ up) * (down @ down.T)).sum()) * first.scaling**2
            if len(factors.down) > rank:
                cut, squared_error = cut_rank(factors, rank)
                factors = Factors(cut.down.to(dtype), cut.up.to(dtype))
                squared_errors.append(squared_error * first.scaling**2)
        tensors[first.down.name] = factors.down.contiguous()
        tensors[first.up.name] = factors.up.contiguous()
        module = first.module
        ranks[module] = len(factors.down)
        alpha = first.scaling * ranks[module]
        alphas[module] = int(alpha) if alpha == int(alpha) else alpha
    low, high = min(ranks.values()), max(ranks.values())
    dtype_name = str(dtype).removeprefix("torch.")
    record: dict[str, Any] = {
        "kind": "lora",
        "tensors": len(changes),
        "ranks": [low, high],
        "dtype": dtype_name,
    }
    span = str(low) if low == high else f"{low} to {high}"
    lines = [f"adapter: {len(changes)} tensors, rank {span}, {dtype_name}"]
    if rank is not None:
        count = len(squared_errors)
        error = math.sqrt(math.fsum(squared_errors) / squared_norm) if squared_norm else 0.0
        record["cut"] = {"rank": rank, "tensors": count, "relative_error": error}
        lines.append(
            f"rank {rank}: {count} of {len(changes)} tensors cut; relative error of the whole "
            f"change {error:.3g}"
        )
    return NewAdapter(tensors, _config(config, ranks, alphas), record, tuple(lines))


def stack(terms: Sequence[tuple[Factors, float]], dtype: torch.dtype) -> Factors:
    """Return ``sum_k(coefficient_k * change_k)`` in `dtype`, whose rank is the sum of the ranks.

    A coefficient of 1 keeps the factors' bits; another multiplies `up` in float64, which is then
    rounded once.
    """
    ups = [up if number == 1 else up.double() * number for (_, up), number in terms]
    return Factors(
        torch.cat([factors.down.to(dtype) for factors, _ in terms]),
        torch.cat([up.to(dtype) for up in ups], dim=1),
    )


def cut_rank(factors: Factors, rank: int) -> tuple[Factors, float]:
    """Return the nearest change of a lower rank in the Frobenius norm, and the squared error.

    The matrix itself is never made: with ``up = Q R`` and ``down^T = P S`` it is
    ``Q (R S^T) P^T``, and only the small middle is decomposed (Eckart and Young, 1936).
    """
    left, small_left = torch.linalg.qr(factors.up.double())
    right, small_right = torch.linalg.qr(factors.down.double().T)
    u, values, v = torch.linalg.svd(small_left @ small_right.T, full_matrices=False)
    root = values[:rank].sqrt()
    cut = Factors(root[:, None] * (v[:rank] @ right.T), left @ (u[:, :rank] * root))
    return cut, float(values[rank:].square().sum())


def _changes(mix: TensorMix) -> list[tuple[LowRankChange, float]]:
    """Return the changes in a tensor with their shares of it."""
    total = math.fsum(term.coefficient for term in mix.terms)
    return [
        (term.change, term.coefficient / total)
        for term in mix.terms
        if term.change is not None and term.change.scaling != 0
    ]


def _read(change: LowRankChange) -> Factors:
    factors = Factors(read_tensor(change.down), read_tensor(change.up))
    if not all(bool(factor.isfinite().all()) for factor in factors):
        raise InputError(
            f"{change.down.file}: {change.down.name} or its lora_B holds NaN or infinite values; "
            "the adapter is damaged"
        )
    return factors


def _common_dtype(
    changes: Iterable[Sequence[tuple[Factors, float]]], rank: int | None
) -> torch.dtype:
    """Return the widest dtype of the factors; at least float32 where 16 bits would round."""
    dtypes: set[torch.dtype] = set()
    rounds = False
    for terms in changes:
        dtypes |= {factor.dtype for factors, _ in terms for factor in factors}
        # A power of two is exact.
        rounds = rounds or any(abs(math.frexp(number)[0]) != 0.5 for _, number in terms)
        is_cut = rank is not None and sum(len(factors.down) for factors, _ in terms) > rank
        rounds = rounds or is_cut
    dtype = functools.reduce(torch.promote_types, dtypes)
    return torch.promote_types(dtype, torch.float32) if rounds else dtype


def _config(
    expert_config: Mapping[str, Any], ranks: Mapping[str, int], alphas: Mapping[str, float]
) -> Mapping[str, Any]:
    """Return peft's config: the most common rank and alpha, and patterns for other modules."""
    rank = Counter(ranks.values()).most_common(1)[0][0]
    alpha = Counter(alphas.values()).most_common(1)[0][0]
    return {
        "peft_type": "LORA",
        "task_type": expert_config.get("task_type") or "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {module: value for module, value in ranks.items() if value != rank},
        "alpha_pattern": {module: value for module, value in alphas.items() if value != alpha},
        "target_modules": sorted(ranks),
        "fan_in_fan_out": bool(expert_config.get("fan_in_fan_out")),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def swap_prefixes(
    recipe: LayerSwapRecipe, models: Mapping[str, Model], num_layers: int
) -> tuple[NewAdapter, LayerPlan]:
    """Return the prefix whose layers come from the experts as the recipe's plan says, and the plan.

    They must be of one length: an adapter of peft has one length for all layers. `num_layers` is
    the base's.
    """
    spec = recipe.parameters
    experts = [models[entry.model] for entry in recipe.experts]
    without_prefix = [expert.name for expert in experts if expert.adapter is None]
    if without_prefix:
        raise InputError(
            f"swap-adapters: {', '.join(without_prefix)} has no prefix, and the others have one"
        )
    prefixes = [_read_prefix(expert.adapter) for expert in experts if expert.adapter is not None]
    tables = [table for _, table in prefixes]
    problems = [
        f"{expert.name} has {table.shape[1]} layers, and the base has {num_layers}"
        for expert, table in zip(experts, tables, strict=True)
        if table.shape[1] != num_layers
    ]
    if recipe.needs_deltas:
        problems.append(
            f"{spec.delta_setting} measures changes of weights, and a prefix changes none"
        )
    heads = {(config["token_dim"], config["num_attention_heads"]) for config, _ in prefixes}
    if len(heads) > 1:
        problems.append("the prefixes are of models with other heads; they must be of one base")
    if len({len(table) for table in tables}) > 1:
        lengths = ", ".join(str(len(table)) for table in tables)
        problems.append(f"they have {lengths} tokens; train them with one num_virtual_tokens")
    InputError.raise_any("swap-adapters", problems)
    averages = []
    with input_errors("layer_swap recipe"):
        plan = spec.plan(num_layers)
        for layer in range(num_layers):
            # Keys and values belong to attention, for swap_modules.
            name = f"layers.{layer}.self_attn.prefix"
            source = spec.tensor_source(name, layer, plan)
            mean = weighted_inputs(name, source, recipe.inputs()[:-1], spec.average_weights)
            layers = [tables[position][:, layer] for position in mean.inputs]
            averages.append(weighted_average(layers, mean.coefficients))
    table = torch.stack(averages, dim=1)
    config = prefixes[0][0]
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
    adapter = NewAdapter(
        tensors={_TENSOR: table.flatten(1).contiguous()},
        config=new_config,
        record={"kind": "prefix", "tokens": len(table)},
        lines=(f"adapter: prefix of {len(table)} tokens",),
    )
    return adapter, plan


def _read_prefix(adapter: Path) -> tuple[dict[str, Any], torch.Tensor]:
    """Return config, and keys and values, tokens x layers x (2 * width), of a prefix adapter."""
    config, stored = read_adapter_config(adapter), read_adapter_tensors(adapter)
    values: list[Any] = [config.get(name) for name in _NUMBERS]
    if config.get("num_transformer_submodules", 1) not in (None, 1) or set(stored) != {_TENSOR}:
        raise InputError(f"{adapter}: not the prefix of a decoder, which holds {_TENSOR} only")
    tensor = stored[_TENSOR]
    length, layers, width = values
    is_sized = all(type(value) is int and value > 0 for value in values)
    if not is_sized or tensor.shape != (length, layers * 2 * width) or tensor.dtype not in FLOATS:
        sizes = (f"{name} {value!r}" for name, value in zip(_NUMBERS, values, strict=True))
        raise InputError(
            f"{adapter}: {_TENSOR} is {list(tensor.shape)} in {tensor.dtype}, which does not fit "
            f"the config ({', '.join(sizes)})"
        )
    return config, read_tensor(tensor).view(length, layers, 2 * width)
