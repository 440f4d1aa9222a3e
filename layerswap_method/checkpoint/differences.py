"""What several checkpoints have in common, what differs, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.compatible import odd_dtypes, ties
from layerswap_method.checkpoint.config import (
    COMMANDS,
    DECODERS,
    FIELDS,
    FROM_BASE,
    NOTHING,
    Remedy,
    stated_fields,
)
from layerswap_method.checkpoint.settings import differing_settings, text_configs
from layerswap_method.checkpoint.vocabulary import match_tokens, read_vocabulary
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
    known = all(name in DECODERS for name in classes)
    *others, last = DECODERS
    only = f"only {', '.join(others)} and {last} can be harmonised"

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
        elif remedy in COMMANDS and not known:
            remedy, advice = "impossible", only
        return ComparedField(
            field=field, values=tuple(values), same=same, remedy=remedy, advice=advice
        )

    if not known or all(DECODERS[name] in ("llama", "mistral") for name in classes):
        yield row("architecture", classes, "harmonize", f"{_HARMONIZE}Mistral becomes Llama")
    else:
        yield row("architecture", classes)
    keys = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    counts = [[d[key] for key in keys if type(d.get(key)) is int] for d in documents]
    yield row("experts (MoE)", [next(iter(count), None) for count in counts])
    # A class's defaults hold for the classes that are known.
    shapes = [
        stated_fields(document, defaults=name in DECODERS)
        for document, name in zip(documents, classes, strict=True)
    ]
    for name, field in FIELDS.items():
        advice = COMMANDS.get(field.remedy, "") + field.how
        yield row(field.label, [shape[name] for shape in shapes], field.remedy, advice)
    shown = {key for field in FIELDS.values() for key in field.keys}
    ropes = [(shape["rope_base"], shape["rope_scaling"]) for shape in shapes]
    alike = all(name == classes[0] for name in classes)  # others have other keys
    for key, values in (differing_settings(documents) if alike else {}).items():
        is_rope = key.startswith("rope_parameters.") and any(rope != ropes[0] for rope in ropes)
        if key not in shown and not is_rope:
            yield row(key, values, "recipe", FROM_BASE, same=False)
    normed = [any(n.endswith("self_attn.q_norm.weight") for n in m.tensors) for m in checkpoints]
    yield row("norms of queries and keys", ["of each head" if has else "none" for has in normed])
    yield row("biases", [_biases(model) for model in checkpoints])
    tied = [ties(model, *checkpoints) for model in checkpoints]
    yield row("tied embeddings", tied, "harmonize", f"{_HARMONIZE}a head of its own")
    rows = [model.shapes[model.embedding][0] if model.embedding else None for model in checkpoints]
    yield row("vocabulary rows", rows, "recipe", _TOKENIZER)
    texts, same = _tokens(checkpoints)
    yield row("tokens", texts, "recipe", _TOKENIZER, same)
    dtypes = ["/".join(sorted({t.dtype for t in model.tensors.values()})) for model in checkpoints]
    yield row("stored dtype", dtypes, "recipe", "dtype: in the recipe")
    packed = [m.config.quantization or "/".join(odd_dtypes(m)) or None for m in checkpoints]
    yield row("quantised", packed, advice="use the unquantised checkpoint", same=not any(packed))


def _tokens(checkpoints: Sequence[Checkpoint]) -> tuple[list[str | None], bool]:
    """Return how the tokens of each lie in the first one's vocabulary, and whether all do."""
    read = [read_vocabulary(model.name, model.path) for model in checkpoints]
    vocabularies = [None if vocabulary is None else vocabulary.tokens for vocabulary in read]
    first = vocabularies[0]
    texts: list[str | None] = []
    for tokens in vocabularies:
        how = ""
        if texts and first is not None and tokens is not None:
            same, other, missing = match_tokens(tokens, first)
            how = f": {same} at the same id, {other} at another, {missing} not in the first"
            how = ": all the same" if tokens == first else how
        texts.append(None if tokens is None else f"{len(tokens)} tokens{how}")
    return texts, all(tokens == first for tokens in vocabularies)


def _biases(checkpoint: Checkpoint) -> str:
    biased = " ".join(name for name in checkpoint.tensors if name.endswith(".bias"))
    parts = {"attention": "attn" in biased or "attention" in biased, "MLP": "mlp" in biased}
    return " and ".join(part for part, is_biased in parts.items() if is_biased) or "none"
