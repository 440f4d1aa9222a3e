"""What each recipe must give, written from the paper and the recipes' headers; no code of ours.

Algorithm 1 of arXiv 2410.01335 with *and* in line 5: layers l < b and l > L-1-u come from the
language expert, b+t_b <= l < L-u-t_u from the task expert, the rest is averaged.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Swap:
    """The layers of one `layer_swap` recipe; every layer not named comes from the task expert."""

    language: frozenset[int]
    average: frozenset[int] = frozenset()
    layers: int = 32
    non_layer: str = "average"
    norms_averaged: bool = False
    modules: tuple[str, ...] | None = None
    """Components below a layer that move; None for all."""
    magnitude: bool = False
    """Whether every expert counts by the inverse of its mean change from the base."""

    def source(self, tensor: str) -> str:
        """Return `task`, `language` or `average` for a Llama tensor's name."""
        parts = tensor.split(".")
        if parts[:2] != ["model", "layers"]:
            return self.non_layer
        layer, component = int(parts[2]), parts[3]
        assert layer < self.layers
        if component in ("input_layernorm", "post_attention_layernorm"):
            if self.norms_averaged:
                return "average"
        elif component not in ("self_attn", "mlp"):
            raise AssertionError(f"{tensor} is in no Llama")
        if self.modules is not None and component not in self.modules:
            return "task"
        if layer in self.language:
            return "language"
        return "average" if layer in self.average else "task"


OUTER = frozenset({0, 1, 2, 3, 4, 30, 31})
QWEN_OUTER = frozenset({0, 1, 2, 3, 4, 5, 34, 35})
POCKET_OUTER = frozenset({0, 7})

SWAPS = {
    "recipes/swahili.yml": Swap(OUTER),
    "recipes/telugu.yml": Swap(OUTER),
    "recipes/bengali.yml": Swap(OUTER),
    "recipes/japanese.yml": Swap(OUTER),
    "recipes/swahili_transition.yml": Swap(OUTER, frozenset({5, 29})),
    "recipes/telugu_transition.yml": Swap(OUTER, frozenset({5, 29})),
    "recipes/bengali_transition.yml": Swap(OUTER, frozenset({5, 29})),
    "recipes/japanese_transition.yml": Swap(OUTER, frozenset({5, 29})),
    "recipes/maximum_swap.yml": Swap(OUTER, frozenset({5, 6, 28, 29})),
    "recipes/minimum_swap.yml": Swap(frozenset({0, 1, 2}), frozenset({3, 31})),
    "recipes/table6_souping.yml": Swap(OUTER),
    "recipes/table6_souping_all.yml": Swap(OUTER),
    "recipes/lora_experts.yml": Swap(OUTER),
    "recipes/reversal.yml": Swap(OUTER, non_layer="task"),
    "recipes/literal_norms.yml": Swap(OUTER, norms_averaged=True),
    "recipes/modules/attention.yml": Swap(OUTER, modules=("self_attn",)),
    "recipes/modules/mlp.yml": Swap(OUTER, modules=("mlp",)),
    "recipes/placements/middle.yml": Swap(frozenset(range(12, 19))),
    "recipes/placements/random.yml": Swap(frozenset({3, 5, 7, 12, 15, 20, 25})),
    "recipes/placements/alternating.yml": Swap(frozenset({0, 4, 9, 13, 18, 22, 27})),
    "recipes/placements/explicit.yml": Swap(frozenset({0, 1, 2, 3, 8, 29, 30, 31})),
    "recipes/community/qwen3_german.yml": Swap(QWEN_OUTER, layers=36),
    "recipes/community/qwen3_afrique.yml": Swap(QWEN_OUTER, layers=36),
    "recipes/community/openmath2_swahili.yml": Swap(OUTER),
    "recipes/community/openmath2_bengali.yml": Swap(OUTER),
    "recipes/community/openmath2_japanese.yml": Swap(OUTER),
    "recipes/community/metamath_italian.yml": Swap(OUTER),
    "recipes/community/metamath_romanian.yml": Swap(OUTER),
    "recipes/community/metamath_german.yml": Swap(OUTER),
    "recipes/different_bases/llama2_mistral_german.yml": Swap(OUTER),
    "recipes/different_bases/llama31_llama32_swahili.yml": Swap(OUTER),
    "recipes/pocket/layer_swap.yml": Swap(POCKET_OUTER, layers=8),
    "recipes/pocket/layer_swap_transition.yml": Swap(POCKET_OUTER, frozenset({1, 6}), layers=8),
    "recipes/pocket/middle.yml": Swap(frozenset({3, 4}), layers=8),
    "recipes/pocket/random.yml": Swap(frozenset({3, 7}), layers=8),
    "recipes/pocket/alternating.yml": Swap(frozenset({0, 2, 4, 6}), layers=8),
    "recipes/pocket/attention.yml": Swap(POCKET_OUTER, layers=8, modules=("self_attn",)),
    "recipes/pocket/reversal.yml": Swap(POCKET_OUTER, layers=8, non_layer="task"),
    "recipes/pocket/souping.yml": Swap(POCKET_OUTER, layers=8),
    "recipes/table6_souping_weighted.yml": Swap(OUTER, magnitude=True),
    "recipes/magnitude_transition.yml": Swap(OUTER, frozenset({5, 29}), magnitude=True),
    "recipes/pocket/magnitude_transition.yml": Swap(
        POCKET_OUTER, frozenset({1, 6}), layers=8, magnitude=True
    ),
    "recipes/baselines/weighted_soup.yml": Swap(frozenset(), frozenset(range(32)), magnitude=True),
    "recipes/pocket/weighted_soup.yml": Swap(
        frozenset(), frozenset(range(8)), layers=8, magnitude=True
    ),
}

# What one expert is given as a whole, by who changed it more.
SHARES = {
    "recipes/placements/delta_share.yml": "layer",
    "recipes/modules/delta_share.yml": "module",
    "recipes/pocket/delta_share.yml": "layer",
}

# Weights of the two experts, task first.
SOUPS = {
    "recipes/baselines/soup.yml": (1, 1),
    "recipes/pocket/soup.yml": (1, 1),
}

TIES = ("recipes/baselines/ties.yml", "recipes/pocket/ties.yml")


@dataclass(frozen=True)
class Revert:
    """What one `delta_revert` recipe sends back to the base."""

    layers: frozenset[int] = frozenset()
    threshold: float | None = None
    """MAV of a row from which it stays; None where rows are not compared, or by `keep`."""
    keep: float | None = None
    """Share of the weights that stays."""


REVERTS = {
    "recipes/revert/breakthrough.yml": Revert(OUTER),
    "recipes/revert/threshold.yml": Revert(threshold=1e-5),
    "recipes/revert/keep_fraction.yml": Revert(keep=0.7),
    "recipes/pocket/revert_layers.yml": Revert(POCKET_OUTER),
    "recipes/pocket/revert_threshold.yml": Revert(threshold=0.005),
    "recipes/pocket/revert_rows.yml": Revert(keep=0.7),
}
