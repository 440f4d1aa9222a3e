"""The pure layer plan: which expert gives each layer and tensor. Knows numbers and names only.

Source: Bandarkar et al., "Layer Swapping for Zero-Shot Cross-Lingual Transfer in Large Language
Models" (ICLR 2025, arXiv 2410.01335), section 4 and Algorithm 1. Line 5 of the algorithm as
printed says ``l > b-1+t_b or l < L-u-t_u``; read literally no layer would ever be averaged. It
must be *and*, which is what is implemented here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from layerswap_method.algorithm.layer_lists import parse_layers, runs_of
from layerswap_method.algorithm.tensor_names import layer_part

Role = Literal["task", "language"]
"""The part an input model plays."""

ROLES: tuple[Role, ...] = get_args(Role)

Source = Literal["task", "language", "average", "base"]
"""Where a layer or tensor comes from: one model unchanged, or the experts' weighted average."""

MODULES = ("attention", "mlp")
"""The parts of a layer that can be chosen apart, as `tensor_names` names them."""


@dataclass(frozen=True)
class LayerPlan:
    """The source of every decoder layer, index 0 at the embedding side."""

    sources: tuple[Source, ...]
    """Of the whole layer; where `modules` is given, of the rest of it (its norms)."""

    modules: Mapping[str, tuple[Source, ...]] = field(default_factory=dict, hash=False)
    """`attention` and `mlp` -> source in every layer, where the two are chosen apart; else {}."""

    @property
    def num_layers(self) -> int:
        """L, the number of decoder layers."""
        return len(self.sources)

    def layers_from(self, source: Source) -> tuple[int, ...]:
        """Return the 0-based layers that come from `source`, ascending."""
        return tuple(layer for layer, name in enumerate(self.sources) if name == source)

    def source_of(self, layer: int, part: str) -> Source:
        """Return the source of one part (see `tensor_names.layer_part`) of one layer."""
        return self.modules.get(part, self.sources)[layer]


def swap_plan(
    num_layers: int,
    *,
    bottom_layers: int = 5,
    top_layers: int = 2,
    bottom_transition: int = 0,
    top_transition: int = 0,
    language_layers: str | None = None,
) -> LayerPlan:
    """Return Algorithm 1's plan, or the plan that swaps explicit layers.

    With b, u, t_b, t_u = `bottom_layers`, `top_layers`, `bottom_transition`, `top_transition`
    and L = `num_layers`::

        language   if l < b or l > L-1-u
        task       if b+t_b <= l < L-u-t_u
        average    otherwise

    Both runs are there even when one is empty: with u=0 and t_u=1 the last layer is averaged (the
    paper's Figure 3, right).

    Args:
        num_layers: L, 1 or more.
        bottom_layers: b, 0 to L.
        top_layers: u, 0 to L.
        bottom_transition: t_b; all four together may not pass L.
        top_transition: t_u.
        language_layers: in place of b and u the swapped layers, such as ``"0-4,30,31"``.

    Raises:
        ValueError: with the numbers, where they do not fit L.
    """
    transitions = {"bottom_transition": bottom_transition, "top_transition": top_transition}
    if language_layers is not None:
        swapped = parse_layers(language_layers, num_layers)
        check_counts(num_layers, {"swapped layers": len(swapped), **transitions})
        return plan_of_runs(num_layers, runs_of(swapped), bottom_transition, top_transition)
    counts = {"bottom_layers": bottom_layers, "top_layers": top_layers, **transitions}
    check_counts(num_layers, counts)
    runs = [(0, bottom_layers), (num_layers - top_layers, num_layers)]
    return plan_of_runs(num_layers, runs, bottom_transition, top_transition)


def check_counts(num_layers: int, counts: Mapping[str, int]) -> None:
    """Check that so many layers, swapped and averaged, are in the model.

    Args:
        num_layers: L.
        counts: parameter -> layers; transitions are named in the message only where there are any.

    Raises:
        ValueError: for a count below 0, or counts that pass L together.
    """
    if num_layers < 1:
        raise ValueError(f"the model has {num_layers} layers; at least 1 is needed")
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} is {count}; it must be 0 or more")
    total = sum(counts.values())
    if total > num_layers:
        averaged = any(n for name, n in counts.items() if name.endswith("_transition"))
        shown = [name for name in counts if averaged or not name.endswith("_transition")]
        raise ValueError(
            f"{' + '.join(shown)} = {' + '.join(str(counts[name]) for name in shown)} = {total} "
            f"is more than the model's {num_layers} layers"
        )


def plan_of_runs(
    num_layers: int, runs: Iterable[tuple[int, int]], above: int, below: int
) -> LayerPlan:
    """Return the plan that swaps runs of layers and averages the layers beside each run.

    Where a transition meets another run or the end of the model, language wins over average and
    average over task.

    Args:
        num_layers: L.
        runs: half-open (start, end) of each run of swapped layers; a run may be empty.
        above: layers averaged on the output side of each run.
        below: layers averaged on the input side of each run.

    Raises:
        ValueError: for transitions without a run.
    """
    runs = list(runs)
    if not runs and (above or below):
        raise ValueError(
            f"bottom_transition {above} and top_transition {below} have no effect: no layer is "
            "swapped, so there is no run beside which layers could be averaged"
        )
    swapped = {layer for start, end in runs for layer in range(start, end)}
    beside = {
        layer
        for start, end in runs
        for layer in (*range(end, end + above), *range(start - below, start))
    }
    return LayerPlan(
        tuple(
            "language" if layer in swapped else "average" if layer in beside else "task"
            for layer in range(num_layers)
        )
    )


def tensor_source(
    name: str,
    layer: int | None,
    plan: LayerPlan,
    *,
    non_layer: Source = "average",
    layer_norms: str = "block",
    swap_modules: str = "all",
) -> Source:
    """Return the source of the tensor `name` in decoder layer `layer` (None: outside).

    Args:
        name: full, or below its layer.
        layer: 0-based.
        plan: of the layers.
        non_layer: source of everything outside the decoder's layers (section 4.2 item 6).
        layer_norms: `block`, with their layer, or `average` (Algorithm 1 read literally).
        swap_modules: `all`, or the part of a layer that moves; the rest is the task expert's.

    Raises:
        ValueError: if `layer` is not in the plan.
    """
    if layer is None:
        return non_layer
    if not 0 <= layer < plan.num_layers:
        raise ValueError(f"tensor {name!r}: layer {layer} is not in 0..{plan.num_layers - 1}")
    part = layer_part(name)
    if part == "norm" and layer_norms == "average":
        return "average"
    if swap_modules not in ("all", part):
        return "task"
    return plan.source_of(layer, part)
