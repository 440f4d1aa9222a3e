"""What each recipe must give, written from the paper and the recipes' headers; no code of ours.

Algorithm 1 of arXiv 2410.01335 with *and* in line 5: layers l < b and l > L-1-u come from the
language expert, b+t_b <= l < L-u-t_u from the task expert, the rest is averaged.
"""

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
ALL_36 = frozenset(range(36))

MIDDLE = frozenset(range(13, 23))
SWAPS = {
    **{
        f"recipes/{name}.yml": Swap(OUTER)
        for name in (
            *("swahili", "telugu", "bengali", "japanese", "table6_souping", "table6_souping_all"),
            *("lora_experts", "community/openmath2_swahili", "community/openmath2_bengali"),
            *("community/openmath2_japanese", "community/metamath_italian"),
            *("community/metamath_romanian", "community/metamath_german"),
            *("different_bases/llama2_mistral_german", "different_bases/llama31_llama32_swahili"),
        )
    },
    **{
        f"recipes/{language}_transition.yml": Swap(OUTER, frozenset({5, 29}))
        for language in ("swahili", "telugu", "bengali", "japanese")
    },
    "recipes/maximum_swap.yml": Swap(OUTER, frozenset({5, 6, 28, 29})),
    "recipes/minimum_swap.yml": Swap(frozenset({0, 1, 2}), frozenset({3, 31})),
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
    **{
        f"recipes/{name}.yml": Swap(ALL_36 - MIDDLE, layers=36, non_layer="language")
        for name in ("community/lighton_sw", "community/lighton_es", "variants/middle_from_task")
    },
    "recipes/community/lighton_zh.yml": Swap(
        ALL_36 - frozenset(range(13, 21)), layers=36, non_layer="language"
    ),
    "recipes/variants/bottom_6_top_2.yml": Swap(OUTER | {5}),
    "recipes/variants/half.yml": Swap(frozenset(range(16))),
    "recipes/table6_souping_weighted.yml": Swap(OUTER, magnitude=True),
    "recipes/magnitude_transition.yml": Swap(OUTER, frozenset({5, 29}), magnitude=True),
    "recipes/baselines/weighted_soup.yml": Swap(frozenset(), frozenset(range(32)), magnitude=True),
    **{
        f"recipes/pocket/{name}.yml": Swap(language, layers=8, **more)
        for name, language, more in (
            ("layer_swap", POCKET_OUTER, {}),
            ("layer_swap_transition", POCKET_OUTER, {"average": frozenset({1, 6})}),
            ("middle", frozenset({3, 4}), {}),
            ("random", frozenset({3, 7}), {}),
            ("alternating", frozenset({0, 2, 4, 6}), {}),
            ("attention", POCKET_OUTER, {"modules": ("self_attn",)}),
            ("reversal", POCKET_OUTER, {"non_layer": "task"}),
            ("souping", POCKET_OUTER, {}),
            (
                "magnitude_transition",
                POCKET_OUTER,
                {"average": frozenset({1, 6}), "magnitude": True},
            ),
            ("weighted_soup", frozenset(), {"average": frozenset(range(8)), "magnitude": True}),
        )
    },
}

# What one expert is given as a whole, by who changed it more.
SHARES = {
    "recipes/placements/delta_share.yml": "layer",
    "recipes/modules/delta_share.yml": "module",
    "recipes/pocket/delta_share.yml": "layer",
    "recipes/variants/dominance.yml": "layer",
}

# By how much the larger share must pass the other, else the base has the unit and the rest.
DOMINANCE = {"recipes/variants/dominance.yml": 0.15}

SOUPS = ("recipes/baselines/soup.yml", "recipes/pocket/soup.yml")
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
