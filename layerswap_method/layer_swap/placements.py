"""Where the swapped runs of layers sit: the paper's placement and the others."""

from __future__ import annotations

import random
from typing import Literal

from layerswap_method.algorithm.layer_lists import runs_of
from layerswap_method.algorithm.plan import LayerPlan, Source, check_counts, plan_of_runs, swap_plan

Placement = Literal["outer", "middle", "random", "alternating", "layers", "soup", "delta_share"]
"""Where the swapped layers sit; `outer` is the paper's. `soup` averages every layer, and
`delta_share` depends on what the experts changed."""


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

    `outer` is Algorithm 1 (`layerswap_method.algorithm.plan.swap_plan`). With b, u, t_b, t_u =
    `bottom_layers`, `top_layers`, `bottom_transition`, `top_transition` and L = `num_layers`, the
    other placements swap the same number n = b+u of layers elsewhere:

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

    Raises:
        ValueError: with the numbers, where they do not fit L; for ``delta_share``, which goes by
            tensors (`layerswap_method.layer_swap.measure`) and not by counts.
    """
    counts = {
        "bottom_layers": bottom_layers,
        "top_layers": top_layers,
        "bottom_transition": bottom_transition,
        "top_transition": top_transition,
    }
    if placement == "delta_share":
        raise ValueError(
            "placement: delta_share depends on what the experts changed, which is measured before "
            "a merge (by mergekit-yaml, mergekit-multi and mergekit.merge.run_merge)"
        )
    if placement == "soup":
        check_counts(num_layers, {})
        everywhere: Source = "average"
        return LayerPlan((everywhere,) * num_layers)
    if placement == "layers" and language_layers is None:
        raise ValueError("placement 'layers' needs language_layers, such as '0-4,30,31'")
    if placement in ("outer", "layers"):
        explicit = language_layers if placement == "layers" else None
        return swap_plan(num_layers, **counts, language_layers=explicit)
    check_counts(num_layers, counts)
    swapped = _swapped_layers(num_layers, bottom_layers + top_layers, placement, seed)
    return plan_of_runs(num_layers, runs_of(swapped), bottom_transition, top_transition)


def _swapped_layers(num_layers: int, count: int, placement: Placement, seed: int) -> list[int]:
    if placement == "middle":
        start = (num_layers - count) // 2
        return list(range(start, start + count))
    if placement == "random":
        rng = random.Random(seed)
        drawn = [rng.random() for _ in range(num_layers)]
        return sorted(range(num_layers), key=drawn.__getitem__)[:count]
    return [i * num_layers // count for i in range(count)]
