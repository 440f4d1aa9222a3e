"""What several checkpoints have in common, what differs, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.compatible import odd_dtypes, ties
from layerswap_method.checkpoint.config import (
    DECODERS,
    FIELDS,
    NOTHING,
    Remedy,
    read_document,
    stated_fields,
    text_part,
)
from layerswap_method.checkpoint.tokens import match_tokens, read_vocabulary
from layerswap_method.frozen import Frozen

_HARMONIZE = "layerswap harmonize"
_NEVER: tuple[Remedy, str] = ("impossible", NOTHING)
_TOKENIZER = "tokenizer: {source: union} in the recipe"


class Row(Frozen):
    """One field of several checkpoints."""

    field: str
    """Name of the field, for people."""

    values: tuple[Any, ...]
    """Value in each checkpoint, in order; None where nothing states it."""

    same: bool
    """Whether all are alike."""

    remedy: Remedy
    """What can reconcile them."""

    advice: str
    """What to do, in words; empty where they are the same."""


def differences(checkpoints: Sequence[Checkpoint]) -> tuple[Row, ...]:
    """Return every field of the checkpoints, compared.

    Raises:
        InputError: for a config or a tokenizer that cannot be read.
    """
    return tuple(_rows(checkpoints))


def obstacles(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that nothing reconciles.

    Where the architectures differ and one is not known, that one stands for all the sizes that
    could be reconciled if it were.
    """
    found = [row for row in rows if row.remedy == "impossible"]
    named = [row.advice for row in found if row.field == "architecture"]
    return [
        row
        for row in found
        if row.field == "architecture" or row.advice == NOTHING or row.advice not in named
    ]


def _rows(checkpoints: Sequence[Checkpoint]) -> Iterator[Row]:
    documents = [text_part(read_document(each.name, each.path)) for each in checkpoints]
    classes = [each.config.architecture for each in checkpoints]
    known = all(name in DECODERS for name in classes)
    one_family = all(DECODERS.get(name) in ("llama", "mistral") for name in classes)
    *others, last = DECODERS
    only = f"only {', '.join(others)} and {last} can be harmonised"

    def row(field: str, values: Sequence[Any], remedy: Remedy, advice: str) -> Row:
        if all(value == values[0] for value in values):
            return Row(
                field=field, values=tuple(values), same=True, remedy="none needed", advice=""
            )
        if remedy in ("harmonize", "force") and not known:
            remedy, advice = "impossible", only
        return Row(field=field, values=tuple(values), same=False, remedy=remedy, advice=advice)

    if one_family or not known:
        yield row("architecture", classes, "harmonize", f"{_HARMONIZE}: Mistral becomes Llama")
    else:
        yield row("architecture", classes, *_NEVER)
    yield row("kind", [_kind(d, c) for d, c in zip(documents, classes, strict=True)], *_NEVER)
    yield row("experts (MoE)", [_experts(document) for document in documents], *_NEVER)
    # A class's defaults hold for the classes that are known.
    shapes = [
        stated_fields(document, defaults=name in DECODERS)
        for document, name in zip(documents, classes, strict=True)
    ]
    for name, field in FIELDS.items():
        yield row(field.label, [shape[name] for shape in shapes], field.remedy, field.advice)
    yield row("norm", [_norm(document) for document in documents], *_NEVER)
    yield row("norms of queries and keys", [_head_norms(each) for each in checkpoints], *_NEVER)
    yield row("biases", [_biases(each) for each in checkpoints], *_NEVER)
    tied = [ties(each, *checkpoints) for each in checkpoints]
    yield row("tied embeddings", tied, "harmonize", f"{_HARMONIZE}: a head of its own")
    rows = [each.shapes[each.embedding][0] if each.embedding else None for each in checkpoints]
    yield row("vocabulary rows", rows, "recipe", _TOKENIZER)
    yield _tokens(checkpoints)
    dtypes = ["/".join(sorted({t.dtype for t in each.tensors.values()})) for each in checkpoints]
    yield row("stored dtype", dtypes, "recipe", "dtype: in the recipe")
    quantised = tuple(
        each.config.quantization or "/".join(odd_dtypes(each)) or None for each in checkpoints
    )
    if not any(quantised):
        yield row("quantised", quantised, *_NEVER)
    else:  # alike or not
        yield Row(
            field="quantised",
            values=quantised,
            same=False,
            remedy="impossible",
            advice="use the unquantised checkpoint",
        )


def _tokens(checkpoints: Sequence[Checkpoint]) -> Row:
    """Return how the tokens of each lie in the first one's vocabulary."""
    found = [read_vocabulary(each.name, each.path) for each in checkpoints]
    vocabularies = [None if each is None else each.tokens for each in found]
    first = vocabularies[0]
    texts: list[str | None] = [None if first is None else f"{len(first)} tokens"]
    same = True
    for tokens in vocabularies[1:]:
        if tokens is None or first is None:
            same = same and tokens == first
            texts.append(None if tokens is None else f"{len(tokens)} tokens")
            continue
        match = match_tokens(tokens, first)
        equal = match.same_id == len(tokens) == len(first)
        same = same and equal
        more = "all the same"
        if not equal:
            more = (
                f"{match.same_id} at the same id, {match.other_id} at another, {match.missing} not "
                "in the first"
            )
        texts.append(f"{len(tokens)} tokens: {more}")
    return Row(
        field="tokens",
        values=tuple(texts),
        same=same,
        remedy="none needed" if same else "recipe",
        advice="" if same else _TOKENIZER,
    )


def _kind(document: Mapping[str, Any], architecture: str) -> str:
    if document.get("is_encoder_decoder"):
        return "encoder-decoder"
    ends = ("CausalLM", "LMHeadModel", "ForConditionalGeneration")
    return "decoder" if architecture.endswith(ends) else "encoder"


def _experts(document: Mapping[str, Any]) -> int | None:
    keys = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return next((document[key] for key in keys if type(document.get(key)) is int), None)


def _norm(document: Mapping[str, Any]) -> str | None:
    if "rms_norm_eps" in document:
        return "RMSNorm"
    keys = ("layer_norm_eps", "layer_norm_epsilon")
    return "LayerNorm" if any(key in document for key in keys) else None


def _head_norms(checkpoint: Checkpoint) -> str:
    is_normed = any(name.endswith("self_attn.q_norm.weight") for name in checkpoint.tensors)
    return "of each head" if is_normed else "none"


def _biases(checkpoint: Checkpoint) -> str:
    parts: dict[str, Callable[[str], bool]] = {
        "attention": lambda name: "attn" in name or "attention" in name,
        "MLP": lambda name: "mlp" in name,
    }
    biased = [name for name in checkpoint.tensors if name.endswith(".bias")]
    found = [part for part, is_in in parts.items() if any(is_in(name) for name in biased)]
    return " and ".join(found) or "none"
