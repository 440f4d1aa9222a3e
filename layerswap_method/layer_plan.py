"""The layer plan: which expert gives each layer and tensor, in words and as a picture.

Source: Bandarkar et al., "Layer Swapping for Zero-Shot Cross-Lingual Transfer in Large Language
Models" (ICLR 2025, arXiv 2410.01335), section 4 and Algorithm 1. Line 5 of the algorithm as
printed says ``l > b-1+t_b or l < L-u-t_u``; read literally no layer would ever be averaged. It
must be *and*, which is what is implemented here.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from layerswap_method.tensor_names import layer_part

Role = Literal["task", "language"]
"""The part an input model plays."""

ROLES: tuple[Role, ...] = get_args(Role)

Source = Literal["task", "language", "average", "base"]
"""Source of a layer or tensor: one model unchanged, or the experts' weighted average."""

SOURCES: tuple[Source, ...] = get_args(Source)

MODULES = ("attention", "mlp")
"""The parts of a layer that can be chosen separately, as `tensor_names` names them."""

Placement = Literal["outer", "middle", "random", "alternating", "layers", "soup", "delta_share"]
"""Where the swapped layers sit; `outer` is the paper's. `soup` averages every layer, and
`delta_share` depends on what the experts changed."""


@dataclass(frozen=True)
class LayerPlan:
    """The source of every decoder layer, index 0 at the embedding side.

    Where attention and MLP are chosen separately, `modules` has the sources of either in every
    layer, and `sources` are those of the rest (its norms); else it is {}.
    """

    sources: tuple[Source, ...]
    modules: Mapping[str, tuple[Source, ...]] = field(default_factory=dict, hash=False)

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

        Where attention and MLP are chosen separately, there are three rows, joined by slashes: the
        rest of each layer, attention, MLP.
        """
        letters = {source[0]: source for source in SOURCES}
        rows = [tuple(letters.get(letter) for letter in row) for row in text.split("/")]
        is_form = len(rows) in (1, 3) and len({len(row) for row in rows}) == 1 and rows[0]
        if not is_form or any(source is None for row in rows for source in row):
            raise ValueError(f"plan {text!r}: write rows of {', '.join(letters)}, one per layer")
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
    - ``alternating``: layers ``floor(i*L/n)``, i < n: evenly spread, layer 0 first;
    - ``layers``: exactly `language_layers`, such as ``"0-4,30,31"`` (ends included);
    - ``soup``: none; every layer is averaged, and the counts are not read.

    In these, except `soup`, the t_b layers after (output side of) each run of swapped layers and
    the t_u layers before it are averaged, language wins over average and average over task, and
    n+t_b+t_u may not pass L.

    Raises ValueError with the numbers, where they do not fit L, and for ``delta_share``.
    """
    zone = {"bottom_transition": bottom_transition, "top_transition": top_transition}
    counts = {"bottom_layers": bottom_layers, "top_layers": top_layers, **zone}
    count = bottom_layers + top_layers
    swapped: Iterable[int] = ()
    if placement == "delta_share":
        raise ValueError("placement: delta_share is measured on whole checkpoints; choose another")
    if placement == "soup":
        zone = counts = {}
    elif placement == "layers":
        swapped = parse_layers(needed_layers(language_layers), num_layers)
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
            "effect: no layer is swapped, so nothing is next to one"
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


def needed_layers(language_layers: str | None) -> str:
    """Return the layers that ``placement: layers`` names; ValueError where it names none."""
    if language_layers is None:
        raise ValueError("placement: layers needs language_layers, such as '0-4,30,31'")
    return language_layers


def check_counts(num_layers: int, counts: Mapping[str, int]) -> None:
    """Check that so many layers, swapped and averaged, are in the model."""
    if num_layers < 1:
        raise ValueError(f"the model has {num_layers} layers; at least 1 is needed")
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} is {count}; it must be 0 or more")
    total = sum(counts.values())
    if total > num_layers:
        counts = {n: c for n, c in counts.items() if c or not n.endswith("_transition")}
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


_PART = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?")
_MOST_LAYERS = 100_000
"""Layer numbers from here on are refused before a range is written out."""


def parse_layers(
    text: str, num_layers: int | None = None, name: str = "language_layers"
) -> tuple[int, ...]:
    """Return the ascending layers of a string such as ``"0-4,30,31"`` (0-based, ends included).

    Raises ValueError for anything but numbers and ranges of existing layers, each once.
    """
    layers: set[int] = set()
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    where = f"{name} {shown!r}"
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(
                f"{where}: {part.strip()!r} is neither a layer nor a range; write such as "
                "'0-4,30,31' (ends included)"
            )
        numbers = [number for number in match.groups() if number is not None]
        if len(max(numbers, key=len).lstrip("0")) >= len(str(_MOST_LAYERS)):
            raise ValueError(f"{where}: no model has {_MOST_LAYERS} layers")
        start, end = int(numbers[0]), int(numbers[-1])
        if end < start:
            raise ValueError(f"{where}: range {part.strip()!r} runs backwards")
        if num_layers is not None and end >= num_layers:
            raise ValueError(
                f"{where}: layer {end} does not exist; the model has layers 0 to {num_layers - 1}"
            )
        named = range(start, end + 1)
        if twice := layers.intersection(named):
            raise ValueError(f"{where}: layer {min(twice)} is named twice")
        layers.update(named)
    return tuple(sorted(layers))


def format_layers(layers: Iterable[int]) -> str:
    """Return ascending layers as text, the inverse of `parse_layers`: ``(0,1,2,7) -> "0-2,7"``."""
    return ",".join(
        str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in runs_of(layers)
    )


def runs_of(layers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the longest runs [start, end) of consecutive layers, ascending."""
    numbered = enumerate(sorted(layers))
    for _, run in itertools.groupby(numbered, lambda pair: pair[1] - pair[0]):
        members = [layer for _, layer in run]
        yield members[0], members[-1] + 1


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
    words = {"language": "language expert", "average": "average of both", "task": "task expert"}
    if any("base" in row for row in rows.values()):
        words["base"] = "base"
    legend = "  ".join(
        f"{SYMBOLS[source]} {words[source]}" for source in SYMBOLS if source in words
    )
    ruler = "".join("|" if layer % 5 == 0 else " " for layer in range(plan.num_layers))
    return "\n".join(
        [
            f"  layer 0 {ruler} {plan.num_layers - 1}",
            *(f"  {label:5}   {draw_line(LayerPlan(row))} output" for label, row in rows.items()),
            f"  {legend}",
        ]
    )
