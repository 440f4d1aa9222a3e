"""Reasons for which checkpoints cannot be merged, and warnings about those that can.

Every command that merges uses these checks, so all of them accept the same models.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layerswap_method.checkpoint.checkpoint import (
    Checkpoint,
    is_buffer,
    is_head,
    is_integer,
    keeps_dtype,
    name_list,
)
from layerswap_method.checkpoint.origin import damaged_tensors, doubtful_experts
from layerswap_method.checkpoint.settings import settings_warning
from layerswap_method.checkpoint.stored import FLOATS
from layerswap_method.checkpoint.tied_heads import mixed_head_problems, tied_head_problems, ties
from layerswap_method.checkpoint.vocabulary import ALIGN, ONE_VOCABULARY, token_conflicts
from layerswap_method.file_names import WEIGHTS_INDEX
from layerswap_method.tensor_names import split_layer

_PARENT = "merging needs models of one pretrained parent"

_WITH_HEAD = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_SCALE = re.compile(r"_scales?(_inv|_2)?$")
_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Torch dtype -> bits of the significand."""


@dataclass(frozen=True)
class Checked:
    """What is to be said of the models of a recipe, and which of them the merge is like."""

    problems: tuple[str, ...]
    """Why they cannot be merged."""

    warnings: tuple[str, ...]
    """What a user should know of models that can be."""

    notes: tuple[str, ...]
    """What is for log and card."""

    donor: Checkpoint
    """The model whose config and tokenizer the merge has."""


def odd_dtypes(checkpoint: Checkpoint) -> list[str]:
    """Return the dtypes of weights that are not floats, as quantised weights have them."""
    tensors = checkpoint.tensors.items()
    dtypes = {
        tensor.dtype for name, tensor in tensors if not is_buffer(name) and not is_integer(tensor)
    }
    return sorted(dtypes - {*FLOATS})


def scales_of(checkpoint: Checkpoint) -> list[str]:
    """Return the tensors that scale a quantised weight beside them, whatever that is stored as."""
    tensors = checkpoint.tensors
    scales = []
    for name in tensors:
        stem, _, last = name.rpartition(".")
        weight = tensors.get(_SCALE.sub("", name)) if _SCALE.search(last) else None
        if last in ("scale", "scale_inv", "qscale_weight"):
            weight = tensors.get(f"{stem}.weight")
        if weight is not None and len(weight.shape) > 1:
            scales.append(name)
    return scales


def leftover_quantization(checkpoint: Checkpoint) -> str | None:
    """Return that a config calls weights quantised that are none; None where that is not so."""
    method = checkpoint.config.quantization
    if method is None or odd_dtypes(checkpoint) or scales_of(checkpoint):
        return None
    return (
        f"{checkpoint.name}: its config.json says that it is quantised ({method}), and all its "
        f"weights are {checkpoint.first_float}; remove quantization_config from its config.json"
    )


def own_problems(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what keeps this one checkpoint from being merged at all."""
    name, config = checkpoint.name, checkpoint.config
    advice = "averages of quantised weights mean nothing: use the unquantised checkpoint"
    if (leftover := leftover_quantization(checkpoint)) is not None:
        yield leftover
    elif config.quantization is not None:
        yield f"{name} is quantised ({config.quantization}); {advice}"
    elif odd := odd_dtypes(checkpoint):
        yield f"{name} stores weights as {', '.join(odd)} (quantised); {advice}"
    elif scales := scales_of(checkpoint):
        yield (
            f"{name} is quantised: it stores scales beside its weights ({name_list(scales)}), "
            f"also where those were cast; {advice}"
        )
    yield from row_problems(checkpoint)
    yield from tied_head_problems(checkpoint)
    tied = config.tie_word_embeddings
    if unlisted := [each for each in checkpoint.unlisted if not (tied and is_head(each))]:
        yield (
            f"{name}: its files hold {len(unlisted)} tensors that {WEIGHTS_INDEX} does not name "
            f"({name_list(unlisted)}), so a merge would lack them; add them to its weight_map, or "
            "download the model again"
        )


def row_problems(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield that a config counts more tokens than its weights have rows."""
    table, size = checkpoint.embedding, checkpoint.config.vocab_size
    if table is None or size is None or checkpoint.decoder.is_apart(table):
        return
    rows = checkpoint.tensors[table].rows
    if rows < size:
        yield (
            f"{checkpoint.name}: its config.json has vocab_size {size} and its {table} has {rows} "
            f"rows, so nothing loads it; write vocab_size {rows} there, or use the weights that "
            f"have {size}"
        )


def merge_problems(
    checkpoints: Sequence[Checkpoint],
    *,
    givers: Sequence[Checkpoint] | None = None,
    aligned: bool = False,
    is_revert: bool = False,
) -> Iterator[str]:
    """Yield why the models of a merge, each once, cannot be merged, but for `token_conflicts`.

    `givers` are those of them that give the merge its vocabulary rows (None: all): only these must
    have equally many rows. `aligned`: the recipe has ``tokenizer:``, so vocabularies may differ.
    `is_revert`: the models are those of a `delta_revert` recipe, which cannot have it.
    """
    for checkpoint in checkpoints:
        yield from own_problems(checkpoint)
    may_differ = aligned or givers is not None
    for other in checkpoints[1:]:
        yield from pair_problems(checkpoints[0], other, aligned=may_differ, is_revert=is_revert)
    if not aligned:
        yield from vocabulary_problems(givers or ())


def merge_warnings(
    checkpoints: Sequence[Checkpoint],
    *,
    dtype: str | None,
    base: Checkpoint | None = None,
    sources: Sequence[Checkpoint] | None = None,
) -> Iterator[str]:
    """Yield what a user should know of checkpoints that can be merged, but for `token_conflicts`.

    `dtype` is the torch dtype that the recipe gives the merge, None that of the files, `base` the
    one that the others should be trained from. `sources` are those of which the merge has weights
    (None: all).
    """
    sources = checkpoints if sources is None else sources
    if base is not None:
        yield from doubtful_experts(checkpoints, base)
    yield from damaged_tensors(checkpoints)
    yield from _mixed_dtypes(sources) if dtype is None else _lossy_casts(sources, dtype)
    if warning := settings_warning(checkpoints):
        yield warning
    yield from _extra_tensors(checkpoints)
    yield from _missing_heads(checkpoints)


def vocabulary_problems(givers: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield which of the models that give vocabulary rows do not have as many as the first."""
    for other in givers[1:]:
        yield from _row_problems(givers[0], other, ALIGN)


def same_vocabulary(first: Checkpoint, other: Checkpoint) -> bool:
    """Return whether two models have vocabulary tensors of the same shapes, for the same tokens.

    Tokens are the same where no row is known to stand for different ones.
    """
    if any(_counts_tokens(name, first, other) for name in first.shapes):
        return False
    problems, warnings = token_conflicts([first, other])
    is_compared = first.has_tokenizer and other.has_tokenizer
    return not problems and not (is_compared and warnings)


def pair_problems(
    first: Checkpoint, other: Checkpoint, *, aligned: bool = False, is_revert: bool = False
) -> Iterator[str]:
    """Yield why `other` cannot be merged with `first`, with the switches of `merge_problems`."""
    pair = f"{first.name} and {other.name}"
    architectures = (first.config.architecture, other.config.architecture)
    if architectures[0] != architectures[1]:
        long, short = sorted((first, other), key=lambda model: -len(model.config.architecture))
        short_class = short.config.architecture
        is_wrapped = long.config.architecture.endswith(short_class)
        if is_wrapped and _are_alike(first, other):
            yield (
                f"{pair} are alike in weights and model_type, and the class that "
                f'{long.name} names is {long.config.architecture}: write "architectures": '
                f'["{short_class}"] in its config.json'
            )
            return
        yield (f"{pair} have different architectures ({', '.join(architectures)}); {_PARENT}")
        return
    if first.num_layers != other.num_layers:
        yield (
            f"{pair} have different depths ({first.num_layers} and {other.num_layers} layers); "
            f"{_PARENT}"
        )
        return
    if problems := [*mixed_head_problems(first, other)]:
        yield from problems
        return
    if not aligned:
        yield from _row_problems(first, other, ONE_VOCABULARY if is_revert else ALIGN)
    shapes = [
        name
        for name, shape in first.shapes.items()
        if other.shapes.get(name, shape) != shape and not _counts_tokens(name, first, other)
    ]
    if shapes:
        yield f"{pair} have different shapes: {_shape_list(shapes, first, other)}"
    for holder, lacking in ((first, other), (other, first)):
        missing = [
            name
            for name in holder.tensors
            if name not in lacking.tensors
            and not is_buffer(name)
            and not holder.decoder.is_apart(name)  # see `extra_tensors`
            and not is_head(name)
        ]
        if (
            holder.head and not lacking.head and not ties(first, other)
        ):  # a tied one is stored once or twice
            yield (
                f"{lacking.name} stores no output embedding and does not tie it either, and "
                f"{holder.name} stores {holder.head}: one of them is no text model, or was saved "
                "without its head; give checkpoints that have it"
            )
        if missing and _is_renamed(holder, lacking):
            fused = min((holder, lacking), key=lambda model: len(model.tensors)).name
            yield (
                f"{holder.name} and {lacking.name} store the same weights under other names "
                f"({name_list(missing, 1)}); save {fused} under those of its architecture: m = "
                f"AutoModelForCausalLM.from_pretrained({fused!r}); n = AutoModelForCausalLM."
                "from_config(m.config, dtype=m.dtype); n.load_state_dict(m.state_dict()); "
                "n.save_pretrained(DIR)"
            )
            return
        if missing:
            yield (
                f"{lacking.name} lacks {len(missing)} tensors that {holder.name} has: "
                f"{name_list(missing)}"
            )


def _row_problems(first: Checkpoint, other: Checkpoint, remedy: str) -> Iterator[str]:
    if rows := [name for name in first.shapes if _counts_tokens(name, first, other)]:
        yield (
            f"{first.name} and {other.name} have different vocabularies: "
            f"{_shape_list(rows, first, other)}; {remedy}"
        )


def _counts_tokens(name: str, first: Checkpoint, other: Checkpoint) -> bool:
    """Return whether a tensor differs in its first axis only, and that axis counts tokens."""
    first_shape, other_shape = first.shapes.get(name), other.shapes.get(name)
    if first_shape is None or other_shape is None or first_shape == other_shape:
        return False
    if first_shape[1:] != other_shape[1:]:
        return False
    rows = {*first_shape[:1], *other_shape[:1]}
    vocabularies = {first.config.vocab_size, other.config.vocab_size}
    return split_layer(name)[0] is None and bool(rows & vocabularies)


def _shape_list(names: Sequence[str], first: Checkpoint, other: Checkpoint) -> str:
    return name_list(
        [f"{name} {list(first.shapes[name])} against {list(other.shapes[name])}" for name in names]
    )


def extra_tensors(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return the tensors apart from the text model that some of the checkpoints do not store.

    transformers drops layers that predict further tokens when a fine-tune is saved.
    """
    names = dict.fromkeys(name for model in checkpoints for name in model.tensors)
    decoder = checkpoints[0].decoder
    return [
        name
        for name in names
        if decoder.is_apart(name)
        and not is_buffer(name)
        and not all(name in model.tensors for model in checkpoints)
    ]


def _extra_tensors(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    if extra := extra_tensors(checkpoints):
        holders = [model.name for model in checkpoints if not set(extra).isdisjoint(model.tensors)]
        yield (
            f"only {' and '.join(holders)} stores {len(extra)} tensors outside of the text model "
            f"({name_list(extra)}): the merge has those of its base_model as they are, if its log "
            "names no other, and leaves out what that does not store"
        )


def _missing_heads(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    is_text = checkpoints[0].config.architecture.endswith(_WITH_HEAD)
    untied = all(model.config.tie_word_embeddings is False for model in checkpoints)
    if is_text and untied and not any(map(_may_have_head, checkpoints)):
        yield (
            "no model stores an output embedding (lm_head.weight), and their configs say "
            "tie_word_embeddings: false: the merge has none. An embedding model needs none; any "
            "other would answer at random"
        )


def _may_have_head(model: Checkpoint) -> bool:
    """Return whether a tensor outside of all layers could be an output embedding, by its shape."""
    embedding = model.embedding
    if embedding is None or model.head is not None:
        return True
    shape = model.shapes[embedding]
    outside = (name for name in model.shapes if split_layer(name)[0] is None)
    return any(name != embedding and model.shapes[name] == shape for name in outside)


def _are_alike(first: Checkpoint, other: Checkpoint) -> bool:
    """Return whether two checkpoints are of one kind of model, with the same tensors."""
    is_one_type = first.config.model_type == other.config.model_type
    return is_one_type and first.shapes == other.shapes


def _is_renamed(first: Checkpoint, other: Checkpoint) -> bool:
    """Return whether two checkpoints have as many weights in every layer, under other names."""
    sizes = []
    for model in (first, other):
        count = Counter[int | None]()
        for name, shape in model.shapes.items():
            if not is_buffer(name) and not model.decoder.is_apart(name) and not is_head(name):
                count[model.decoder.layer(name)] += math.prod(shape)
        sizes.append(count)
    return sizes[0] == sizes[1]


def _dtypes(checkpoint: Checkpoint) -> Counter[str]:
    """Return torch dtype -> number of the stored weights that a recipe's `dtype` is for."""
    return Counter(
        tensor.torch_name
        for name, tensor in checkpoint.tensors.items()
        if tensor.dtype in FLOATS and not is_buffer(name) and not keeps_dtype(name)
    )


def _mixed_dtypes(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    dtypes = {model.name: sorted(_dtypes(model)) for model in checkpoints}
    if len({tuple(stored) for stored in dtypes.values()}) > 1:
        listed = "; ".join(f"{name} {'/'.join(stored)}" for name, stored in dtypes.items())
        yield (
            f"the checkpoints have different dtypes ({listed}): each copied tensor keeps its own; "
            "write dtype: in the recipe for one dtype throughout"
        )


def _lossy_casts(checkpoints: Sequence[Checkpoint], dtype: str) -> Iterator[str]:
    """Yield which checkpoints lose digits, or the range of their numbers, in a torch dtype."""
    counts = {model.name: _dtypes(model) for model in checkpoints}
    every = {stored for count in counts.values() for stored in count}
    holds_all = max(every, key=_DIGITS.__getitem__, default=dtype)
    if holds_all == "float16" and "bfloat16" in every:
        holds_all = "float32"
    for name, count in counts.items():
        wider = [stored for stored in count if _DIGITS[stored] > _DIGITS[dtype]]
        if wider:
            lossy = max(wider, key=_DIGITS.__getitem__)
            loss = ": what light training changed may be rounded away"
        elif dtype == "float16" and "bfloat16" in count:
            lossy, loss = "bfloat16", ", whose largest number is 65504"
        else:
            continue
        if len(count) == 1:
            extent = f"is stored in {lossy}"
            advice = f"write dtype: {holds_all}, and no other out_dtype"
        else:
            extent = f"stores {count[lossy]} of its {count.total()} tensors in {lossy}"
            advice = "leave out dtype and out_dtype: each tensor then keeps its own"
        yield f"{name} {extent} and the merge is written in {dtype}{loss}; {advice}"
