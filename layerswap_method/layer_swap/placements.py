"""Where the swapped runs of layers sit: the paper's placement and the others."""

from __future__ import annotations

import random
from typing import Literal, get_args

from layerswap_method.algorithm.layer_lists import parse_layers
from layerswap_method.algorithm.plan import LayerPlan, Source, _transition_problem, _transitions

Placement = Literal["outer", "middle", "random", "alternating", "layers", "soup", "delta_share"]
"""Where the swapped layers sit; `outer` is the paper's. `soup` averages every layer, and
`delta_share` goes by what the experts changed."""


PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


def build_plan(
    num_layers: int,
    *,
    bottom_layers: int = 5,
    top_layers: int = 2,
    bottom_transition: int = 0,
    top_transition: int = 0,
    placement: Placement = "outer",
    language_layers: str | None = None,
    seed: int = 0,
) -> LayerPlan:
    """Return the plan for a model of `num_layers` layers.

    With b, u, t_b, t_u = `bottom_layers`, `top_layers`, `bottom_transition`, `top_transition`
    and L = `num_layers`, `outer` is Algorithm 1 (with *and* in line 5)::

        language   if l < b or l > L-1-u
        task       if b+t_b <= l < L-u-t_u
        average    otherwise

    The other placements swap the same number n = b+u of layers elsewhere:

    - ``middle``: one run of n layers beginning at ``(L-n)//2``;
    - ``random``: the n layers with the smallest of L numbers drawn from ``random.Random(seed)``;
    - ``alternating``: layers ``floor(i*L/n)``, i < n: evenly spread; every second layer, layer 0
      first, where n = L/2;
    - ``layers``: exactly `language_layers`, such as ``"0-4,30,31"`` (ends included);
    - ``soup``: none; every layer is averaged, and the counts are not read.

    There, but for `soup`, the transition generalises: the t_b layers on the task side above (output
    side of) each run of swapped layers and the t_u layers below (input side of) each run are
    averaged. Where they meet another run or the end of the model, language wins over average and
    average over task; n+t_b+t_u may not pass L, and without a swapped layer there is no transition.
    `outer` keeps both its runs even when one is empty: with u=0 and t_u=1 the last layer is
    averaged (the paper's Figure 3, right).

    Raises:
        ValueError: with the numbers, where they do not fit L; for ``delta_share``, which goes by
            tensors (`layerswap_method.layer_swap.measure`) and not by counts.
    """
    plan_problem = _count_problem(
        num_layers,
        bottom_layers=bottom_layers,
        top_layers=top_layers,
        bottom_transition=bottom_transition,
        top_transition=top_transition,
        placement=placement,
    )
    if plan_problem is not None:
        raise ValueError(plan_problem)
    if placement == "outer":
        return LayerPlan(
            tuple(
                _outer_source(
                    layer, num_layers, bottom_layers, top_layers, bottom_transition, top_transition
                )
                for layer in range(num_layers)
            )
        )
    if placement == "soup":
        everywhere: Source = "average"
        return LayerPlan((everywhere,) * num_layers)
    if placement == "delta_share":
        raise ValueError(
            "placement: delta_share goes by what the experts changed, which is measured before a "
            "merge (by mergekit-yaml, mergekit-multi and mergekit.merge.run_merge)"
        )
    swapped = _swapped_layers(
        num_layers, bottom_layers + top_layers, placement, language_layers, seed
    )
    plan_problem = _transition_problem(num_layers, len(swapped), bottom_transition, top_transition)
    if plan_problem is not None:
        raise ValueError(plan_problem)
    averaged = _transitions(swapped, bottom_transition, top_transition)
    return LayerPlan(
        tuple(
            "language" if layer in swapped else "average" if layer in averaged else "task"
            for layer in range(num_layers)
        )
    )


def _outer_source(layer: int, num_layers: int, b: int, u: int, t_b: int, t_u: int) -> Source:
    if layer < b or layer > num_layers - 1 - u:
        return "language"
    if b + t_b <= layer < num_layers - u - t_u:
        return "task"
    return "average"


def _count_problem(
    num_layers: int,
    *,
    bottom_layers: int,
    top_layers: int,
    bottom_transition: int,
    top_transition: int,
    placement: Placement,
) -> str | None:
    if num_layers < 1:
        return f"the model has {num_layers} layers; at least 1 is needed"
    counts = {
        "bottom_layers": bottom_layers,
        "top_layers": top_layers,
        "bottom_transition": bottom_transition,
        "top_transition": top_transition,
    }
    for name, count in counts.items():
        if count < 0:
            return f"{name} is {count}; it must be 0 or more"
    if placement not in PLACEMENTS:
        return f"placement {placement!r} is none of {', '.join(PLACEMENTS)}"
    if placement in ("layers", "soup", "delta_share"):
        return None
    if bottom_layers + top_layers > num_layers:
        return (
            f"bottom_layers + top_layers = {bottom_layers} + {top_layers} = "
            f"{bottom_layers + top_layers} is more than the model's {num_layers} layers"
        )
    total = sum(counts.values())
    if placement == "outer" and total > num_layers:
        return (
            f"bottom_layers + bottom_transition + top_transition + top_layers = {bottom_layers} + "
            f"{bottom_transition} + {top_transition} + {top_layers} = {total} is more than the "
            f"model's {num_layers} layers: the transitions would overlap"
        )
    return None


def _swapped_layers(
    num_layers: int, count: int, placement: Placement, language_layers: str | None, seed: int
) -> frozenset[int]:
    if placement == "layers":
        if language_layers is None:
            raise ValueError("placement 'layers' needs language_layers, such as '0-4,30,31'")
        return frozenset(parse_layers(language_layers, num_layers))
    if placement == "middle":
        start = (num_layers - count) // 2
        return frozenset(range(start, start + count))
    if placement == "random":
        rng = random.Random(seed)
        drawn = [rng.random() for _ in range(num_layers)]
        return frozenset(sorted(range(num_layers), key=drawn.__getitem__)[:count])
    return frozenset(i * num_layers // count for i in range(count))
