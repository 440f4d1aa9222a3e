"""One model put into the coordinates of another one of the same shape, with its function kept.

Both models get their norms folded. The second one's residual stream is rotated so that the
embeddings of shared tokens come close. Then the heads and neurons of each of its layers are put in
the order of those of the first one that they are most like. The orders need one layer of each model
in memory; the new tensors are made when they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from layerswap_method.errors import InputError
from layerswap_method.harmonize.axes import axes_of
from layerswap_method.harmonize.coordinates import LayerOrder, fold_norms, reorder, rotate
from layerswap_method.harmonize.matching import (
    best_order,
    correlations,
    fit_rotation,
    match_heads,
    neuron_similarity,
)
from layerswap_method.harmonize.model import EMBEDDING, Model, wide
from layerswap_method.harmonize.probe import LayerRunner
from layerswap_method.harmonize.similarity import HIDDEN, Similarities, mean_row_cosine
from layerswap_method.tensor_names import split_layer

Neurons = Literal["activations", "weights", "none"]
"""By what the neurons of two layers are paired; `none` leaves neurons and heads as they are."""

STEPS = ("harmonized", "folded", "rotated", "heads", "neurons")

Weights = Mapping[str, torch.Tensor]
"""Name -> tensor, of one layer."""


@dataclass(frozen=True)
class Pairs:
    """Tokens that both models know: ids in the first model, and of the same in the second."""

    shared: tuple[torch.Tensor, torch.Tensor]
    """[tokens] each: the rotation is fitted on their embeddings."""

    probe: tuple[torch.Tensor, torch.Tensor]
    """[documents, tokens] each: what both models read, for hidden states and activations."""


@dataclass(frozen=True)
class Aligned:
    """Two models in one basis."""

    ours: Model
    """The first one, with its norms folded."""

    theirs: Model
    """The second one, in the coordinates of the first."""

    similarities: Similarities
    """How similar they were after each step."""

    record: Mapping[str, Any]
    """What was done, and the similarities, for a JSON file."""


def align(
    ours: Model,
    theirs: Model,
    pairs: Pairs,
    neurons: Neurons,
    advance: Callable[[int], object] = lambda count: None,
) -> Aligned:
    """Return two models of one shape in the coordinates of the first. Each computes what it did.

    Args:
        ours: the first model.
        theirs: the second model, of the same sizes.
        pairs: tokens that both know.
        neurons: by what neurons are paired.
        advance: told of every layer that is done.

    Raises:
        InputError: for weights that are not finite.
    """
    plain, folded = (ours.untied(), theirs.untied()), (fold_norms(ours), fold_norms(theirs))
    found = Similarities(STEPS)
    embeddings = [_finite(model, EMBEDDING) for model in folded]
    known = [each[ids] for each, ids in zip(embeddings, pairs.shared, strict=True)]
    rotation = fit_rotation(known[1], known[0])
    hidden = [each[ids] for each, ids in zip(embeddings, pairs.probe, strict=True)]
    del embeddings, known
    runners = [LayerRunner(m.shape, h.dtype) for m, h in zip(folded, hidden, strict=True)]
    orders = {}
    for layer in range(ours.shape.layers):
        found.add("harmonized", HIDDEN, mean_row_cosine(*hidden))
        turned = hidden[1] @ rotation.to(hidden[1].dtype)
        found.add("rotated", HIDDEN, mean_row_cosine(hidden[0], turned))
        found.add_weights("harmonized", *(_read(model, layer) for model in plain))
        first, second = (_read(model, layer) for model in folded)
        found.add_weights("folded", first, second)
        ran = [
            runner.run(weights, before)
            for runner, weights, before in zip(runners, (first, second), hidden, strict=True)
        ]
        hidden = [after for after, _ in ran]
        second = _made(rotate(_part(folded[1], second), rotation))
        found.add_weights("rotated", first, second)
        if neurons != "none":
            activations = [given for _, given in ran] if neurons == "activations" else None
            orders[layer] = _order(first, second, theirs, activations)
            for step, order in _stages(orders[layer]):
                moved = reorder(_part(theirs, second), {layer: order})
                found.add_weights(step, first, _made(moved))
        advance(1)
    rotated = rotate(folded[1], rotation)
    for step, models in (
        ("harmonized", plain),
        ("folded", folded),
        ("rotated", (folded[0], rotated)),
    ):
        _compare_tokens(found, step, models, pairs)
    aligned = reorder(rotated, orders)
    record = {
        "align": "procrustes",
        "neurons": neurons,
        "shared_tokens": pairs.shared[0].numel(),
        "probe_tokens": pairs.probe[0].numel(),
        "mean_cosines": found.means(),
    }
    return Aligned(folded[0], aligned, found, record)


def _order(
    first: Weights, second: Weights, theirs: Model, activations: Sequence[torch.Tensor] | None
) -> LayerOrder:
    """Return the order of the units of one layer, `second`, that is most like `first`."""
    shape = theirs.shape
    ours, others = (_matrices(weights, "q", "k", "v", "o") for weights in (first, second))
    heads, kv_heads = match_heads(ours, others, shape.heads, shape.kv_heads)
    if activations is not None:
        similarity = correlations(*activations)
    else:
        mlp = (_matrices(weights, "gate", "up", "down") for weights in (first, second))
        similarity = neuron_similarity(*mlp)
    return LayerOrder(best_order(similarity), heads, kv_heads)


def _stages(order: LayerOrder) -> tuple[tuple[str, LayerOrder], tuple[str, LayerOrder]]:
    """Return the order of the heads alone, and the whole order, each with the name of its step."""
    return ("heads", replace(order, neurons=None)), ("neurons", order)


def _read(model: Model, layer: int) -> Weights:
    """Return the tensors of one layer, wide."""
    return {name: _finite(model, name) for name in model.tensors if split_layer(name)[0] == layer}


def _compare_tokens(
    found: Similarities, step: str, models: tuple[Model, Model], pairs: Pairs
) -> None:
    """Add the cosines of what has a row for each token: of the rows of shared tokens.

    Vocabularies may differ in size and order. These are the largest tensors of a model: one of each
    is in memory at a time.
    """
    for name in models[0].tensors:
        if axes_of(name)[0] == "vocab":
            one, other = (
                {name: _finite(model, name)[ids]}
                for model, ids in zip(models, pairs.shared, strict=True)
            )
            found.add_weights(step, one, other)


def _finite(model: Model, name: str) -> torch.Tensor:
    """Return a tensor, wide; nothing can be fitted to one with values that are not finite."""
    values = wide(model.tensors[name].read())
    if not values.isfinite().all():
        raise InputError(
            f"{model.name}: {name} has values that are not finite (NaN or infinite), so the model "
            "cannot be aligned; download or copy it again, or harmonise without --align"
        )
    return values


def _part(model: Model, weights: Weights) -> Model:
    """Return what a model has of `weights`, as they are given: read again, nothing is computed."""
    tensors = {
        name: replace(model.tensors[name], make=partial(torch.Tensor.detach, held))
        for name, held in weights.items()
    }
    return replace(model, tensors=tensors)


def _made(model: Model) -> Weights:
    return {name: tensor.read() for name, tensor in model.tensors.items()}


def _matrices(weights: Weights, *kinds: str) -> tuple[torch.Tensor, ...]:
    """Return the matrices whose names have `kinds` before ``_proj``, in that order."""
    return tuple(
        next(w for name, w in weights.items() if name.endswith(f".{kind}_proj.weight"))
        for kind in kinds
    )
