"""Differences of several checkpoints, field by field, and remedies for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablations.harmonize.fields import (
    COMMANDS,
    DECODERS,
    FIELDS,
    FROM_BASE,
    NOTHING,
    Remedy,
    stated_fields,
)
from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.compatible import odd_dtypes
from layerswap_method.checkpoint.settings import differing_settings, text_configs
from layerswap_method.checkpoint.tied_heads import ties
from layerswap_method.checkpoint.tokens import match_tokens
from layerswap_method.frozen import Frozen

_HARMONIZE = COMMANDS["harmonize"]
_TOKENIZER = "tokenizer: {source: union} in the recipe"


class ComparedField(Frozen):
    """One field of several checkpoints, with its values in their order (None: nothing states it).

    `advice` is what to do, in words; empty where the values are the same.
    """

    field: str
    values: tuple[Any, ...]
    same: bool
    remedy: Remedy
    advice: str


def compare_fields(checkpoints: Sequence[Checkpoint]) -> tuple[ComparedField, ...]:
    """Return every field, compared. Raises `InputError` for a file that cannot be read."""
    return tuple(_rows(checkpoints))


def obstacles(rows: Sequence[ComparedField]) -> list[ComparedField]:
    """Return the rows that nothing reconciles; an unknown architecture stands for its sizes."""
    impossible = [row for row in rows if row.remedy == "impossible"]
    named = {row.advice for row in impossible if row.field == "architecture"} - {NOTHING}
    return [row for row in impossible if row.field == "architecture" or row.advice not in named]


def _rows(checkpoints: Sequence[Checkpoint]) -> Iterator[ComparedField]:
    documents = text_configs(checkpoints)
    classes = [model.config.architecture for model in checkpoints]
    can_harmonize = all(name in DECODERS for name in classes)
    *decoders, last_decoder = DECODERS

    def row(
        field: str,
        values: Sequence[Any],
        remedy: Remedy = "impossible",
        advice: str = NOTHING,
        same: bool | None = None,
    ) -> ComparedField:
        if same is None:
            same = all(value == values[0] for value in values)
        if same:
            remedy, advice = "none needed", ""
        elif remedy in COMMANDS and not can_harmonize:
            remedy = "impossible"
            advice = f"only {', '.join(decoders)} and {last_decoder} can be harmonised"
        return ComparedField(
            field=field, values=tuple(values), same=same, remedy=remedy, advice=advice
        )

    if not can_harmonize or all(DECODERS[name] in ("llama", "mistral") for name in classes):
        yield row("architecture", classes, "harmonize", f"{_HARMONIZE}Mistral becomes Llama")
    else:
        yield row("architecture", classes)
    yield row("experts (MoE)", [_num_experts(document) for document in documents])
    # A class's defaults hold for the classes that are known.
    shapes = [
        stated_fields(document, defaults=name in DECODERS)
        for document, name in zip(documents, classes, strict=True)
    ]
    for name, field in FIELDS.items():
        advice = COMMANDS.get(field.remedy, "") + field.effect
        yield row(field.label, [shape[name] for shape in shapes], field.remedy, advice)
    compared_keys = {key for field in FIELDS.values() for key in field.keys}
    ropes = [(shape["rope_base"], shape["rope_scaling"]) for shape in shapes]
    is_one_class = all(name == classes[0] for name in classes)  # other classes have other keys
    settings = differing_settings(documents) if is_one_class else {}
    for key, values in settings.items():
        is_rope = key.startswith("rope_parameters.") and any(rope != ropes[0] for rope in ropes)
        if key not in compared_keys and not is_rope:
            yield row(key, values, "recipe", FROM_BASE, same=False)
    yield row("norms of queries and keys", [_head_norms(model) for model in checkpoints])
    yield row("biases", [_biases(model) for model in checkpoints])
    tied = [ties(model, *checkpoints) for model in checkpoints]
    yield row("tied embeddings", tied, "harmonize", f"{_HARMONIZE}a head of its own")
    rows = [model.shapes[model.embedding][0] if model.embedding else None for model in checkpoints]
    yield row("vocabulary rows", rows, "recipe", _TOKENIZER)
    texts, same = _tokens(checkpoints)
    yield row("tokens", texts, "recipe", _TOKENIZER, same)
    dtypes = [
        "/".join(sorted({tensor.dtype for tensor in model.tensors.values()}))
        for model in checkpoints
    ]
    yield row("stored dtype", dtypes, "recipe", "dtype: in the recipe")
    quantizations = [
        model.config.quantization or "/".join(odd_dtypes(model)) or None for model in checkpoints
    ]
    yield row(
        "quantised",
        quantizations,
        advice="use the unquantised checkpoint",
        same=not any(quantizations),
    )


def _num_experts(document: Mapping[str, Any]) -> int | None:
    """Return the number of experts that a config states under any of its names."""
    for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"):
        count = document.get(key)
        if type(count) is int:
            return count
    return None


def _head_norms(checkpoint: Checkpoint) -> str:
    has_norms = any(name.endswith("self_attn.q_norm.weight") for name in checkpoint.tensors)
    return "of each head" if has_norms else "none"


def _tokens(checkpoints: Sequence[Checkpoint]) -> tuple[list[str | None], bool]:
    """Return how the tokens of each lie in the first one's vocabulary, and whether all do."""
    vocabularies = [model.vocabulary for model in checkpoints]
    token_ids = [None if vocabulary is None else vocabulary.tokens for vocabulary in vocabularies]
    first = token_ids[0]
    texts: list[str | None] = []
    for tokens in token_ids:
        if tokens is None:
            texts.append(None)
        elif not texts or first is None:
            texts.append(f"{len(tokens)} tokens")
        elif tokens == first:
            texts.append(f"{len(tokens)} tokens: all the same")
        else:
            same, moved, missing = match_tokens(tokens, first)
            texts.append(
                f"{len(tokens)} tokens: {same} at the same id, {moved} at another, {missing} not "
                "in the first"
            )
    return texts, all(tokens == first for tokens in token_ids)


def _biases(checkpoint: Checkpoint) -> str:
    biases = [name for name in checkpoint.tensors if name.endswith(".bias")]
    parts = []
    if any("attn" in name or "attention" in name for name in biases):
        parts.append("attention")
    if any("mlp" in name for name in biases):
        parts.append("MLP")
    return " and ".join(parts) or "none"
