"""Where each tensor of a merge comes from, by the samples of it and of the parents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ablations.explain.fit import UNSURE, Sum, fit_sum, is_rounding, joined, simple_coefficients
from ablations.explain.samples import TensorSample, cast_bytes
from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.tensor_names import split_layer

OriginKind = Literal["copy", "sum", "unexplained"]

ParentLayer = tuple[str, int | None]
"""A parent, and the layer of it (None outside of the layers)."""


@dataclass(frozen=True)
class Origin:
    """Where one tensor comes from.

    A copy has the `places` whose values are the same, one or more: parents may be equal there. A
    sum has its `fitted` coefficients, and `simple` ones where these are sure. What is unexplained
    has a `reason`. `sample` is of the tensor, `parents` has those of the same name and shape.
    """

    name: str
    layer: int | None
    kind: OriginKind
    sample: TensorSample = field(repr=False)
    parents: Mapping[str, TensorSample] = field(repr=False)
    places: tuple[ParentLayer, ...] = ()
    fitted: Sum | None = None
    simple: Mapping[str, float] | None = None
    reason: str = ""

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Parent -> coefficient of a sum: the simple one, or as fitted."""
        fitted = {} if self.fitted is None else self.fitted.coefficients
        return fitted if self.simple is None else self.simple

    @property
    def is_told(self) -> bool:
        """Whether the coefficients of a sum can be told: its parents differ enough."""
        errors = {} if self.fitted is None else self.fitted.errors
        return max(errors.values(), default=0.0) <= UNSURE

    def can_be(self, coefficients: Mapping[str, float]) -> bool:
        """Return whether the tensor can be this weighted sum of parents, up to rounding.

        One parent with the coefficient 1 is a copy, which has no rounding but that to the dtype.
        """
        if not coefficients.keys() <= self.parents.keys():
            return False
        if tuple(coefficients.values()) == (1.0,):
            (parent,) = coefficients
            return (parent, self.layer) in self.places
        if self.kind == "copy" and not any(layer == self.layer for _, layer in self.places):
            return False
        values = {name: self.parents[name].values for name in coefficients}
        left = self.sample.values - sum(c * values[name] for name, c in coefficients.items())
        return is_rounding(left, [self.sample.values, *values.values()], self.sample.dtype)

    def is_nearly(self, parent: str) -> bool:
        """Return whether the tensor is that of a parent, but for rounding."""
        if parent not in self.parents:
            return False
        values = self.parents[parent].values
        return is_rounding(
            self.sample.values - values, [self.sample.values, values], self.sample.dtype
        )


def find_origins(
    merged: Checkpoint,
    merged_samples: Mapping[str, TensorSample],
    parents: Mapping[str, Mapping[str, TensorSample]],
) -> list[Origin]:
    """Return the origin of every tensor of a merge, in the order of its files.

    Args:
        merged: the merge.
        merged_samples: tensor name -> sample of it.
        parents: name of each parent -> its samples.
    """
    places = _places_of_bytes(parents, {sample.dtype for sample in merged_samples.values()})
    origins = [
        _origin(name, merged.decoder.layer(name), sample, parents, places)
        for name, sample in merged_samples.items()
    ]
    return _with_joined_sums(origins)


def _places_of_bytes(
    parents: Mapping[str, Mapping[str, TensorSample]], dtypes: Iterable[str]
) -> dict[tuple[str, str, bytes], list[tuple[str, str]]]:
    """Return (dtype, name in its layer, bytes) -> the parents' tensors that are stored so."""
    places: dict[tuple[str, str, bytes], list[tuple[str, str]]] = {}
    for parent, samples in parents.items():
        for name, sample in samples.items():
            for dtype in dtypes:
                key = (dtype, split_layer(name)[1], cast_bytes(sample, dtype))
                places.setdefault(key, []).append((parent, name))
    return places


def _origin(
    name: str,
    layer: int | None,
    sample: TensorSample,
    parents: Mapping[str, Mapping[str, TensorSample]],
    places: Mapping[tuple[str, str, bytes], Sequence[tuple[str, str]]],
) -> Origin:
    holders = {parent: samples[name] for parent, samples in parents.items() if name in samples}
    sized = {p: held for p, held in holders.items() if held.values.shape == sample.values.shape}

    def made(kind: OriginKind, **details: Any) -> Origin:
        return Origin(name, layer, kind, sample, sized, **details)

    same = places.get((sample.dtype, split_layer(name)[1], sample.stored), ())
    at_place = [(parent, layer) for parent, other in same if other == name]
    if at_place:
        return made("copy", places=tuple(at_place))
    if same and layer is not None:
        elsewhere = [(parent, split_layer(other)[0]) for parent, other in same]
        return made("copy", places=tuple(elsewhere))
    if not sized:
        reason = "(another shape in every parent)" if holders else "(no parent has it)"
        return made("unexplained", reason=reason)
    if not sample.is_finite or not all(held.is_finite for held in sized.values()):
        return made("unexplained", reason="(not all values are finite)")
    fitted = fit_sum(sample.values, {p: held.values for p, held in sized.items()}, sample.dtype)
    if fitted is None:
        return made("unexplained", reason="(too few values)")
    if not fitted.is_rounding:
        return made("unexplained", fitted=fitted)
    return made("sum", fitted=fitted)


def _with_joined_sums(origins: Sequence[Origin]) -> list[Origin]:
    """Return the origins, where sums that agree have the coefficients of all of them together."""
    sums = sorted(
        (o for o in origins if o.kind == "sum" and o.fitted is not None),
        key=lambda origin: (
            max(origin.fitted.errors.values(), default=0.0) if origin.fitted else 0.0
        ),
    )
    groups: list[list[Origin]] = []
    for origin in sums:
        for group in groups:
            first = group[0].fitted
            if first is not None and origin.fitted is not None and first.agrees(origin.fitted):
                group.append(origin)
                break
        else:
            groups.append([origin])
    by_name: dict[str, Origin] = {}
    for group in groups:
        together = joined([origin.fitted for origin in group if origin.fitted is not None])
        simple = simple_coefficients(together, group[0].sample.dtype)
        if simple is not None and not all(_can_be(origin, simple) for origin in group):
            simple = None
        for origin in group:
            by_name[origin.name] = replace(origin, fitted=together, simple=simple)
    return [by_name.get(origin.name, origin) for origin in origins]


def _can_be(origin: Origin, simple: Mapping[str, float]) -> bool:
    """Return whether a tensor can be a sum; one parent alone is its copy but for rounding."""
    if tuple(simple.values()) == (1.0,):
        return origin.is_nearly(*simple)
    return origin.can_be(simple)
