"""What each recipe must give, written from the paper and the recipes' headers; no code of ours.

Algorithm 1 of arXiv 2410.01335 with *and* in line 5: layers l < b and l > L-1-u come from the
language expert, b+t_b <= l < L-u-t_u from the task expert, the rest is averaged.
"""

from typing import NamedTuple


class Swap(NamedTuple):
    """The layers of one `layer_swap` recipe; every layer not named comes from the task expert."""

    language: frozenset[int]
    average: frozenset[int] = frozenset()
    layers: int = 32
    """Depth of the models that the recipe names."""
    non_layer: str = "average"
    norms_averaged: bool = False
    modules: tuple[str, ...] = ("self_attn", "mlp", "norm")
    """Components of a layer that move."""

    def source(self, tensor: str) -> str:
        """Return `task`, `language` or `average` for a Llama tensor's name."""
        parts = tensor.split(".")
        if parts[:2] != ["model", "layers"]:
            return self.non_layer
        layer, part = int(parts[2]), "norm" if "layernorm" in parts[3] else parts[3]
        if part == "norm" and self.norms_averaged:
            return "average"
        if part in self.modules and layer in self.language:
            return "language"
        return "average" if part in self.modules and layer in self.average else "task"


class Revert(NamedTuple):
    """What one `delta_revert` recipe sends back to the base."""

    layers: frozenset[int] = frozenset()
    threshold: float | None = None
    """MAV of an input feature from which it stays; None where none is compared, or by `keep`."""
    keep: float | None = None
    """Share of the weights that stays."""


OUTER = frozenset({0, 1, 2, 3, 4, 30, 31})
POCKET = frozenset({0, 7})
TWO = frozenset({5, 29})
ALL = frozenset(range(36))


def _named(table):
    return {f"recipes/{name}.yml": each for names, each in table for name in names.split()}


SWAPS = _named(
    [
        ("swahili telugu bengali japanese table6_souping table6_souping_all", Swap(OUTER)),
        ("lora_experts community/openmath2_swahili community/openmath2_bengali", Swap(OUTER)),
        ("community/openmath2_japanese community/metamath_italian", Swap(OUTER)),
        ("community/metamath_romanian community/metamath_german", Swap(OUTER)),
        ("community/instruct_swahili", Swap(OUTER)),
        ("table6_souping_weighted different_bases/llama2_mistral_german", Swap(OUTER)),
        ("different_bases/llama31_llama32_swahili", Swap(OUTER)),
        ("swahili_transition telugu_transition", Swap(OUTER, TWO)),
        ("bengali_transition japanese_transition magnitude_transition", Swap(OUTER, TWO)),
        ("maximum_swap", Swap(OUTER, frozenset({5, 6, 28, 29}))),
        ("minimum_swap", Swap(frozenset({0, 1, 2}), frozenset({3, 31}))),
        ("reversal", Swap(OUTER, non_layer="task")),
        ("literal_norms", Swap(OUTER, norms_averaged=True)),
        ("modules/attention", Swap(OUTER, modules=("self_attn",))),
        ("modules/mlp", Swap(OUTER, modules=("mlp",))),
        ("placements/middle", Swap(frozenset(range(12, 19)))),
        ("placements/random", Swap(frozenset({3, 5, 7, 12, 15, 20, 25}))),
        ("placements/alternating", Swap(frozenset({0, 4, 9, 13, 18, 22, 27}))),
        ("placements/explicit", Swap(frozenset({0, 1, 2, 3, 8, 29, 30, 31}))),
        (
            "community/qwen3_german community/qwen3_afrique",
            Swap(frozenset({0, 1, 2, 3, 4, 5, 34, 35}), layers=36),
        ),
        (
            "community/lighton_sw community/lighton_es variants/middle_from_task",
            Swap(ALL - set(range(13, 23)), layers=36, non_layer="language"),
        ),
        ("community/lighton_zh", Swap(ALL - set(range(13, 21)), layers=36, non_layer="language")),
        ("variants/bottom_6_top_2", Swap(OUTER | {5})),
        ("variants/half", Swap(frozenset(range(16)))),
        ("baselines/weighted_soup", Swap(frozenset(), frozenset(range(32)))),
        ("pocket/layer_swap pocket/souping", Swap(POCKET, layers=8)),
        ("pocket/layer_swap_transition", Swap(POCKET, frozenset({1, 6}), 8)),
        ("pocket/magnitude_transition", Swap(POCKET, frozenset({1, 6}), 8)),
        ("pocket/middle", Swap(frozenset({3, 4}), layers=8)),
        ("pocket/random", Swap(frozenset({3, 7}), layers=8)),
        ("pocket/alternating", Swap(frozenset({0, 2, 4, 6}), layers=8)),
        ("pocket/attention", Swap(POCKET, layers=8, modules=("self_attn",))),
        ("pocket/reversal", Swap(POCKET, layers=8, non_layer="task")),
        ("pocket/weighted_soup", Swap(frozenset(), frozenset(range(8)), 8)),
    ]
)

SHARES = _named(
    [
        ("placements/delta_share pocket/delta_share", "layer"),
        ("modules/delta_share", "module"),
    ]
)
"""What one expert is given as a whole, by who changed it more."""

OTHERS = _named([("baselines/soup pocket/soup", "linear"), ("baselines/ties pocket/ties", "ties")])
"""Recipes of mergekit's own methods."""
REVERTS = _named(
    [
        ("revert/breakthrough", Revert(OUTER)),
        ("revert/threshold", Revert(threshold=1e-5)),
        ("revert/keep_fraction pocket/revert_rows", Revert(keep=0.7)),
        ("pocket/revert_layers", Revert(POCKET)),
        ("pocket/revert_threshold", Revert(threshold=0.005)),
    ]
)
