"""A merge explained: models in, where its tensors come from out, as a value and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ablations.explain.origins import Origin, find_origins
from ablations.explain.recipe_of import recipe_of
from ablations.explain.samples import sample_tensors, spans
from ablations.machine.progress import Step, show_step
from ablations.machine.whole_files import write_errors, write_text
from ablations.models.find import open_model
from ablations.recipe_commands.find import new_file
from layerswap_method.checkpoint.checkpoint import Checkpoint, is_buffer, is_head, name_list
from layerswap_method.checkpoint.stored import StoredTensor
from layerswap_method.errors import InputError, counted, size_text
from layerswap_method.hub.downloads import Downloads
from layerswap_method.hub.partial import ensure_there
from layerswap_method.layer_plan import format_layers
from layerswap_method.tensor_names import layer_part

_PARTS = {"attention": "attention", "mlp": "MLP", "norm": "norms", "other": "the rest"}
OUTSIDE = "outside the layers"


@dataclass(frozen=True)
class Explanation:
    """Where the tensors of a merge come from, by a sample of each.

    `parents` are references as they were given. `recipe` gives the same tensors; None where no
    recipe was recognised. `nbytes` were looked at of `files_nbytes` in the files of all models.
    """

    merged: str
    parents: tuple[str, ...]
    num_layers: int | None
    origins: tuple[Origin, ...] = field(repr=False)
    recipe: Mapping[str, Any] | None
    nbytes: int
    files_nbytes: int

    @property
    def unexplained(self) -> tuple[Origin, ...]:
        """The tensors that no parent or sum of parents gives."""
        return tuple(origin for origin in self.origins if origin.kind == "unexplained")

    @property
    def recipe_text(self) -> str | None:
        """The recipe as YAML; None where no recipe was recognised."""
        if self.recipe is None:
            return None
        return yaml.safe_dump(dict(self.recipe), sort_keys=False, allow_unicode=True)

    def places(self) -> list[dict[str, Any]]:
        """Return a row of every tensor: its name, layer and kind, and where it comes from."""
        return [
            {
                "tensor": origin.name,
                "layer": origin.layer,
                "kind": origin.kind,
                "copy_of": [{"model": model, "layer": layer} for model, layer in origin.places],
                "coefficients": dict(origin.coefficients) if origin.kind == "sum" else {},
                "residual": None if origin.fitted is None else origin.fitted.residual,
            }
            for origin in self.origins
        ]

    def rows(self) -> list[tuple[str, str]]:
        """Return (place, what it is) of the layers and of what is outside, layers first."""
        inside = [
            [origin for origin in self.origins if origin.layer == layer]
            for layer in range(self.num_layers or 0)
        ]
        alike: dict[str, list[int]] = {}
        for layer, origins in enumerate(inside):
            alike.setdefault(_in_words(origins, by_part=True), []).append(layer)
        rows = [
            (_layers_text(layers), _in_words(inside[layers[0]], by_part=True, layers=layers))
            for text, layers in alike.items()
            if text
        ]
        outside = [origin for origin in self.origins if origin.layer is None]
        if outside:
            rows.append((OUTSIDE, _in_words(outside, by_part=False)))
        return rows

    def __repr__(self) -> str:
        return str(self)  # so a notebook shows it

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.merged}: {len(self.origins)} tensors; samples of {size_text(self.nbytes)} were "
            f"read of {size_text(self.files_nbytes)} in all models"
        )
        rows = self.rows()
        width = max((len(place) for place, _ in rows), default=0)
        for place, text in rows:
            yield f"  {place:{width}}  {text}"
        left = [o.fitted.residual for o in self.unexplained if o.fitted is not None]
        if left:
            shares = dict.fromkeys(f"{100 * share:.0f}" for share in (min(left), max(left)))
            yield (
                f"Not explained: {counted(len(left), 'tensor')}. The best sum of the parents "
                f"leaves {' to '.join(shares)} % of the distance from the nearest. Either a parent "
                "is missing, such as the base, or the method is no sum (ties, dare, slerp)."
            )
        if self.recipe is None:
            why = "not everything is explained" if self.unexplained else "no known method fits"
            yield f"No recipe: {why}."
        else:
            yield f"A recipe gives these tensors:\n\n{self.recipe_text}"


def explain(merged: str, parents: Sequence[str], recipe_file: Path | None = None) -> Explanation:
    """Say which layers of a merge come from which parent, with which weights.

    Of every tensor a sample of at most 1,024 values is read. A tensor whose sample is that of a
    parent is its copy. Else a weighted sum of the parents is fitted; it explains the tensor if it
    leaves no more than rounding does.

    Of a model on the hub that is not in the cache, only headers and samples are downloaded.

    Args:
        merged: a folder or a hub id.
        parents: those of the models it may be made of, two or more, with the base where it may
            be part of the sum (task arithmetic).
        recipe_file: a new file that the recipe is written to, if there is one.

    Raises:
        InputError: for a model that does not exist or cannot be read, or for an adapter; for a file
            that exists.
    """
    target = None if recipe_file is None else new_file("recipe.yml", recipe_file)
    if not parents:
        raise InputError("explain needs the models that the merge may be made of: --parents A B")
    if len({*parents}) < len(parents):
        twice = next(name for name in parents if list(parents).count(name) > 1)
        raise InputError(f"--parents: {twice} is named twice")
    hub = Downloads("ranges")
    show_step(Step("reading headers"))
    opened = [open_model(name, hub) for name in (merged, *parents)]
    for model in opened:
        if model.adapter is not None:
            raise InputError(f"{model.name}: is an adapter on its base; merge it first")
    whole, *others = checkpoints = [model.checkpoint for model in opened]
    show_step(Step("reading samples"))
    weights = _weights(whole, ())
    tensors = {parent.name: _weights(parent, weights) for parent in others}
    with hub.fetching():
        for checkpoint in checkpoints:
            ensure_there(spans(checkpoint.tensors.values()), f"a sample of {checkpoint.name}")
        samples = {name: sample_tensors(stored) for name, stored in tensors.items()}
        merged_samples = sample_tensors(weights)
    origins = find_origins(whole, merged_samples, samples)
    dtypes = [sample.dtype for sample in merged_samples.values()]
    recipe = recipe_of(
        origins, whole, [parent.name for parent in others], max(dtypes, key=dtypes.count)
    )
    explanation = Explanation(
        merged=merged,
        parents=tuple(parents),
        num_layers=whole.num_layers,
        origins=tuple(origins),
        recipe=recipe,
        nbytes=sum(
            end - start
            for checkpoint in checkpoints
            for ranges in spans(checkpoint.tensors.values()).values()
            for start, end in ranges
        ),
        files_nbytes=sum(
            t.nbytes for checkpoint in checkpoints for t in checkpoint.tensors.values()
        ),
    )
    if target is not None and explanation.recipe_text is not None:
        with write_errors(target):
            write_text(target, explanation.recipe_text)
    return explanation


def _weights(model: Checkpoint, names: Iterable[str]) -> dict[str, StoredTensor]:
    """Return the weights of a model; one of `names` that is its tied head is its embedding."""
    weights = {name: tensor for name, tensor in model.tensors.items() if not is_buffer(name)}
    if model.config.tie_word_embeddings and model.embedding is not None:
        tied = [name for name in names if is_head(name) and name not in weights]
        weights |= dict.fromkeys(tied, model.tensors[model.embedding])
    return weights


def _in_words(origins: Sequence[Origin], by_part: bool, layers: Sequence[int] = ()) -> str:
    """Return what tensors of one layer are, joined where they are alike.

    `layers` are all for which that is said; without them the text is equal for layers alike.
    """
    if (common := _common_text(origins, layers)) is not None:
        return common
    groups: dict[str, list[Origin]] = {}
    for origin in origins:
        title = _PARTS[layer_part(origin.name)] if by_part else origin.name
        groups.setdefault(title, []).append(origin)
    texts: dict[str, list[str]] = {}
    for title, group in groups.items():
        text = _common_text(group, layers)
        if text is None:
            text = "; ".join(
                dict.fromkeys(_common_text([origin], layers) or "" for origin in group)
            )
        texts.setdefault(text, []).append(title)
    return "; ".join(f"{name_list(titles)}: {text}" for text, titles in texts.items())


def _common_text(origins: Sequence[Origin], layers: Sequence[int]) -> str | None:
    """Return what all of these tensors can be together; None where they are several things."""
    if not origins:
        return ""
    if any(origin.kind == "unexplained" for origin in origins):
        reasons = {origin.reason for origin in origins if origin.kind == "unexplained"}
        is_all = all(origin.kind == "unexplained" for origin in origins) and len(reasons) == 1
        return f"not explained {reasons.pop()}".rstrip() if is_all else None
    shared = set(origins[0].places).intersection(*(origin.places for origin in origins))
    if shared:
        places = [place for place in origins[0].places if place in shared]
        return _places_text(places, origins[0].layer, layers)
    sums = [origin for origin in origins if origin.kind == "sum"]
    for candidate in (origin for origin in sums if origin.is_told):
        if all(origin.can_be(candidate.coefficients) for origin in origins):
            return _sum_text(candidate)
    near = [
        name for name in origins[0].parents if all(origin.is_nearly(name) for origin in origins)
    ]
    if near:
        sign = " = " if _are_equal(origins, near) else " or "
        return f"copy of {sign.join(near[:3])}, but for rounding"
    for candidate in sums:
        if all(origin.can_be(candidate.coefficients) for origin in origins):
            return _sum_text(candidate)
    return None


def _are_equal(origins: Sequence[Origin], parents: Sequence[str]) -> bool:
    """Return whether parents have equal values in all of these tensors."""
    return all(
        np.array_equal(origin.parents[parents[0]].values, origin.parents[other].values)
        for origin in origins
        for other in parents[1:]
    )


def _sum_text(origin: Origin) -> str:
    errors = {} if origin.fitted is None else origin.fitted.errors
    if not origin.is_told:
        return f"a sum of {', '.join(errors)}, too alike here to tell the weights"
    terms = []
    for name, value in origin.coefficients.items():
        number = f"{value:.4g}"
        if origin.simple is None:
            number = f"{value:.3f} ± {errors[name]:.1g}"
        terms.append(f"{number} {name}")
    return " + ".join(terms).replace("+ -", "- ")


def _places_text(
    places: Sequence[tuple[str, int | None]], layer: int | None, layers: Sequence[int]
) -> str:
    texts = []
    for parent, other in places:
        if other is None or layer is None or other == layer:
            texts.append(parent)
        elif layers:
            theirs = [number + other - layer for number in layers]
            texts.append(f"{_layers_text(theirs)} of {parent}")
        else:
            texts.append(f"{other - layer:+d} layers of {parent}")
    return f"copy of {' = '.join(texts[:3])}"


def _layers_text(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {format_layers(layers)}"
