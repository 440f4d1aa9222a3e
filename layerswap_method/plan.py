"""The layer plan: which expert gives each layer and tensor, in words and as a picture.

Source: Bandarkar et al., "Layer Swapping for Zero-Shot Cross-Lingual Transfer in Large Language
Models" (ICLR 2025, arXiv 2410.01335), section 4 and Algorithm 1. Line 5 of the algorithm as
printed says ``l > b-1+t_b or l < L-u-t_u``; read literally no layer would ever be averaged. It
must be *and*, which is what is implemented here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from layerswap_method.layer_lists import format_layers, parse_layers, runs_of
from layerswap_method.tensor_names import layer_part

Role = Literal["task", "language"]
"""The part an input model plays."""

ROLES: tuple[Role, ...] = get_args(Role)

Source = Literal["task", "language", "average", "base"]
"""Where a layer or tensor comes from: one model unchanged, or the experts' weighted average."""

SOURCES: tuple[Source, ...] = get_args(Source)

MODULES = ("attention", "mlp")
"""The parts of a layer that can be chosen apart, as `tensor_names` names them."""

Placement = Literal["outer", "middle", "random", "alternating", "layers", "soup", "delta_share"]
"""Where the swapped layers sit; `outer` is the paper's. `soup` averages every layer, and
`delta_share` depends on what the experts changed."""


@dataclass(frozen=True)
class LayerPlan:
    """The source of every decoder layer, index 0 at the embedding side."""

    sources: tuple[Source, ...]
    """Source of the whole layer; where `modules` is given, of the rest of it (its norms)."""

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

    def to_text(self) -> str:
        """Return the plan as one string, such as ``"llltttll"``; see `from_text`."""
        rows = [self.sources, *(self.modules[name] for name in MODULES if self.modules)]
        return "/".join("".join(source[0] for source in row) for row in rows)

    @classmethod
    def from_text(cls, text: str) -> LayerPlan:
        """Return the plan of a string, one letter a layer: t(ask), l(anguage), a(verage), b(ase).

        Where attention and MLP are chosen apart there are three rows, joined by slashes: the rest
        of each layer, attention, MLP.
        """
        letters = {source[0]: source for source in SOURCES}
        rows = [tuple(letters.get(letter) for letter in row) for row in text.split("/")]
        if len(rows) not in (1, 3) or len({len(row) for row in rows}) > 1 or not rows[0]:
            raise ValueError(f"plan {text!r}: write one letter a layer, in one row or three")
        if any(source is None for row in rows for source in row):
            raise ValueError(f"plan {text!r}: its letters must be {', '.join(letters)}")
        first, *modules = rows
        return cls(first, dict(zip(MODULES, modules, strict=False)))  # type: ignore[arg-type]


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

    `outer` is Algorithm 1. With b, u, t_b, t_u = `bottom_layers`, `top_layers`,
    `bottom_transition`, `top_transition` and L = `num_layers`::

        language   if l < b or l > L-1-u
        task       if b+t_b <= l < L-u-t_u
        average    otherwise

    Both runs are there even when one is empty: with u=0 and t_u=1 the last layer is averaged (the
    paper's Figure 3, right). The other placements swap the same number n = b+u of layers elsewhere:

    - ``middle``: one run of n layers beginning at ``(L-n)//2``;
    - ``random``: the n layers with the smallest of L numbers drawn from ``random.Random(seed)``;
    - ``alternating``: layers ``floor(i*L/n)``, i < n: evenly spread; every second layer, layer 0
      first, where n = L/2;
    - ``layers``: exactly `language_layers`, such as ``"0-4,30,31"`` (ends included);
    - ``soup``: none; every layer is averaged, and the counts are not read.

    There, but for `soup`, the transition generalises: the t_b layers after (output side of) each
    run of swapped layers and the t_u layers before (input side of) each run are averaged. Where
    they meet another run or the end of the model, language wins over average and average over
    task; n+t_b+t_u may not pass L, and without a swapped layer there is no transition.

    Raises:
        ValueError: with the numbers, where they do not fit L, and for ``delta_share``.
    """
    zone = {"bottom_transition": bottom_transition, "top_transition": top_transition}
    counts = {"bottom_layers": bottom_layers, "top_layers": top_layers, **zone}
    count = bottom_layers + top_layers
    swapped: Iterable[int] = ()
    if placement == "delta_share":
        raise ValueError(
            "placement: delta_share depends on what the experts changed, which is measured before "
            "a merge of whole checkpoints"
        )
    if placement == "soup":
        zone = counts = {}
    elif placement == "layers":
        if language_layers is None:
            raise ValueError("placement: layers needs language_layers, such as '0-4,30,31'")
        swapped = parse_layers(language_layers, num_layers)
        counts = {"swapped layers": len(swapped), **zone}
    check_counts(num_layers, counts)
    sources: list[Source] = ["average" if placement == "soup" else "task"] * num_layers
    if placement == "middle":
        start = (num_layers - count) // 2
        swapped = range(start, start + count)
    elif placement == "random":
        rng = random.Random(seed)
        drawn = [rng.random() for _ in range(num_layers)]
        swapped = sorted(range(num_layers), key=drawn.__getitem__)[:count]
    elif placement == "alternating":
        swapped = [i * num_layers // count for i in range(count)]
    runs = list(runs_of(swapped))
    if placement == "outer":
        runs = [(0, bottom_layers), (num_layers - top_layers, num_layers)]
    elif not runs and any(zone.values()):
        raise ValueError(
            f"bottom_transition {bottom_transition} and top_transition {top_transition} have no "
            "effect: no layer is swapped, so there is no run with neighbours that could be averaged"
        )
    for start, end in runs:
        after, before = range(end, end + bottom_transition), range(start - top_transition, start)
        for layer in (*after, *before):
            if 0 <= layer < num_layers:
                sources[layer] = "average"
    for start, end in runs:
        for layer in range(start, end):
            sources[layer] = "language"
    return LayerPlan(tuple(sources))


def check_counts(num_layers: int, counts: Mapping[str, int]) -> None:
    """Check that so many layers, swapped and averaged, are in the model."""
    if num_layers < 1:
        raise ValueError(f"the model has {num_layers} layers; at least 1 is needed")
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} is {count}; it must be 0 or more")
    total = sum(counts.values())
    if total > num_layers:
        zones = {name for name in counts if name.endswith("_transition")}
        if not any(counts[name] for name in zones):
            counts = {name: count for name, count in counts.items() if name not in zones}
        raise ValueError(
            f"{' + '.join(counts)} = {' + '.join(map(str, counts.values()))} = {total} "
            f"is more than the model's {num_layers} layers"
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
    """Return the source of the tensor `name` in the 0-based decoder layer `layer` (None: outside).

    `non_layer` is the source of everything outside (section 4.2 item 6). `layer_norms` is `block`,
    with their layer, or `average` (Algorithm 1 read literally). `swap_modules` is `all` or the part
    of a layer that moves; the rest is the task expert's.
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


SYMBOLS: dict[Source, str] = {"language": "█", "average": "▒", "task": "·", "base": "○"}
"""A source as one character of a drawing."""


def describe_plan(plan: LayerPlan) -> str:
    """Return one line: which layers from whom, for logs."""
    parts = []
    for name, sources in (plan.modules or {"": plan.sources}).items():
        row = LayerPlan(sources)
        chosen = {source: row.layers_from(source) for source in SYMBOLS}
        words = [f"{source} {format_layers(layers)}" for source, layers in chosen.items() if layers]
        parts.append(f"{name} {'; '.join(words)}".strip())
    return f"{plan.num_layers} layers: {' | '.join(parts)}"


def draw_line(plan: LayerPlan) -> str:
    """Return one character a layer, layer 0 first; of modules, the source of the rest."""
    return "".join(SYMBOLS[source] for source in plan.sources)


def draw_plan(plan: LayerPlan) -> str:
    """Return a picture: a ruler, one cell a layer (attention above MLP), the legend."""
    rows = {"input": plan.sources}
    if plan.modules:
        rows = {"attn": plan.modules["attention"], "mlp": plan.modules["mlp"]}
    words: dict[Source, str] = {
        "language": "language expert",
        "average": "average of both",
        "task": "task expert",
    }
    if any("base" in row for row in rows.values()):
        words["base"] = "base"
    legend = "  ".join(f"{SYMBOLS[source]} {text}" for source, text in words.items())
    ruler = "".join("|" if layer % 5 == 0 else " " for layer in range(plan.num_layers))
    return "\n".join(
        [
            f"  layer 0 {ruler} {plan.num_layers - 1}",
            *(f"  {label:5}   {draw_line(LayerPlan(row))} output" for label, row in rows.items()),
            f"  {legend}",
        ]
    )
