"""The pure layer plan: which expert gives each layer. Knows numbers only; no file, no tensor.

Source: Bandarkar et al., "Layer Swapping for Zero-Shot Cross-Lingual Transfer in Large Language
Models" (ICLR 2025, arXiv 2410.01335), section 4 and Algorithm 1. Line 5 of the algorithm as
printed says ``l > b-1+t_b or l < L-u-t_u``; read literally no layer would ever be averaged. It
must be *and*, which is what is implemented here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Source = Literal["task", "language", "average"]
"""Where a layer comes from: one expert unchanged, or the weighted average of both."""

Placement = Literal["outer", "middle", "random", "alternating", "layers", "soup", "delta_share"]
"""Where the swapped layers sit; `outer` is the paper's. `soup` averages every layer, and
`delta_share` goes by what the experts changed."""

PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

MODULES = ("attention", "mlp")
"""The parts of a layer that can be chosen apart, as `layerswap_method.tensors` names them."""

_MOST_LAYERS = 100_000
"""Layer numbers from here on are refused before a range is written out."""

SYMBOLS: dict[Source, str] = {"task": "·", "average": "▒", "language": "█"}
"""A source as one character of a drawing."""

_ORDER: tuple[Source, ...] = ("language", "average", "task")
_LETTERS: dict[Source, str] = {"task": "t", "average": "a", "language": "l"}


@dataclass(frozen=True)
class LayerPlan:
    """The source of every decoder layer, index 0 at the embedding side."""

    sources: tuple[Source, ...]
    """Of the whole layer; where `modules` is given, of the rest of it (its norms)."""

    modules: tuple[tuple[Source, Source], ...] | None = None
    """Sources of (attention, MLP) of every layer, where the two are chosen apart."""

    @property
    def num_layers(self) -> int:
        """L, the number of decoder layers."""
        return len(self.sources)

    def layers_from(self, source: Source) -> tuple[int, ...]:
        """Return the 0-based layers that come from `source`, ascending."""
        return tuple(layer for layer, name in enumerate(self.sources) if name == source)

    def source_of(self, layer: int, part: str) -> Source:
        """Return the source of one part (see `tensors.layer_part`) of one layer."""
        if self.modules is not None and part in MODULES:
            return self.modules[layer][MODULES.index(part)]
        return self.sources[layer]

    def by_module(self) -> dict[str, tuple[Source, ...]]:
        """Return `attention` and `mlp` -> source of every layer; {} where layers are whole."""
        if self.modules is None:
            return {}
        return {name: tuple(pair[i] for pair in self.modules) for i, name in enumerate(MODULES)}

    def describe(self) -> str:
        """Return one line: which layers from whom, for logs."""
        rows = self.by_module() or {"": self.sources}
        parts = [f"{name} {_describe(sources)}".strip() for name, sources in rows.items()]
        return f"{self.num_layers} layers: " + " | ".join(parts)

    def draw_line(self) -> str:
        """Return one character a layer, layer 0 first; of modules, the source of the rest."""
        return _drawn(self.sources)

    def draw(self) -> str:
        """Return a picture: a ruler, one cell a layer (attention above MLP), the legend."""
        ruler = "".join("|" if layer % 5 == 0 else " " for layer in range(self.num_layers))
        modules = self.by_module()
        rows = {"attn ": modules["attention"], "mlp  ": modules["mlp"]} if modules else {}
        cells = [
            f"  {label}   {_drawn(sources)} output"
            for label, sources in (rows or {"input": self.sources}).items()
        ]
        return "\n".join(
            [
                f"  layer 0 {ruler} {self.num_layers - 1}",
                *cells,
                f"  {SYMBOLS['language']} language expert  {SYMBOLS['average']} average of both  "
                f"{SYMBOLS['task']} task expert",
            ]
        )

    def to_text(self) -> str:
        """Return the plan as letters, one a layer: ``"llatt"``; rest/attention/mlp with modules."""
        rows = (self.sources, *self.by_module().values())
        return "/".join("".join(_LETTERS[source] for source in row) for row in rows)

    @classmethod
    def from_text(cls, text: str) -> LayerPlan:
        """Return the plan that `to_text` wrote.

        Raises:
            ValueError: for any other text.
        """
        by_letter = {letter: source for source, letter in _LETTERS.items()}
        rows = text.split("/")
        if len(rows) not in (1, 3) or not set(text) <= {*by_letter, "/"}:
            raise ValueError(f"{text!r} is no layer plan")
        sources, *modules = (tuple(by_letter[letter] for letter in row) for row in rows)
        if not modules:
            return cls(sources)
        attention, mlp = modules
        return cls(sources, tuple(zip(attention, mlp, strict=True)))


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
            tensors (`layerswap_method.measure`) and not by counts.
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


def parse_layers(
    text: str, num_layers: int | None = None, name: str = "language_layers"
) -> tuple[int, ...]:
    """Return the ascending layers of a string such as ``"0-4,30,31"`` (0-based, ends included).

    Raises:
        ValueError: for an empty string, anything but numbers and ranges, a range that runs
            backwards, a layer named twice, one beyond `num_layers`, or one that no model has.
    """
    layers: set[int] = set()
    shown = repr(text if len(text) <= 80 else f"{text[:77]}...")
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.strip().partition("-"))
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ValueError(
                f"{name} {shown}: {part.strip()!r} is neither a layer nor a range; "
                "write layers and ranges (ends included) such as '0-4,30,31'"
            )
        for number in (first, last):
            if len(number.lstrip("0")) >= len(str(_MOST_LAYERS)):
                raise ValueError(
                    f"{name} {shown}: layer {number[:40]} does not exist; no model "
                    f"has {_MOST_LAYERS} layers"
                )
        start, end = int(first), int(last) if dash else int(first)
        if end < start:
            raise ValueError(f"{name} {shown}: range {part.strip()!r} runs backwards")
        if num_layers is not None and end >= num_layers:
            raise ValueError(
                f"{name} {shown}: layer {end} does not exist; "
                f"the model has layers 0 to {num_layers - 1}"
            )
        named = range(start, end + 1)
        if twice := layers.intersection(named):
            raise ValueError(f"{name} {shown}: layer {min(twice)} is named twice")
        layers.update(named)
    return tuple(sorted(layers))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def format_layers(layers: Iterable[int]) -> str:
    """Return ascending layers as text, the inverse of `parse_layers`: ``(0,1,2,7) -> "0-2,7"``."""
    return ",".join(
        str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in _runs(layers)
    )


def _drawn(sources: tuple[Source, ...]) -> str:
    return "".join(SYMBOLS[source] for source in sources)


def _describe(sources: tuple[Source, ...]) -> str:
    chosen = {name: [i for i, source in enumerate(sources) if source == name] for name in _ORDER}
    return "; ".join(f"{name} {format_layers(layers)}" for name, layers in chosen.items() if layers)


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


def _transition_problem(num_layers: int, swapped: int, above: int, below: int) -> str | None:
    """Return why transitions beside swapped runs (not `outer`) cannot be; None where they can."""
    if swapped == 0 and (above or below):
        return (
            f"bottom_transition {above} and top_transition {below} have no effect: no layer is "
            "swapped, so there is no run beside which layers could be averaged"
        )
    total = swapped + above + below
    if (above or below) and total > num_layers:
        return (
            f"swapped layers + bottom_transition + top_transition = {swapped} + {above} + {below} "
            f"= {total} is more than the model's {num_layers} layers"
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


def _transitions(swapped: frozenset[int], above: int, below: int) -> frozenset[int]:
    return frozenset(
        layer
        for start, end in _runs(swapped)
        for layer in (*range(end, end + above), *range(start - below, start))
        if layer not in swapped
    )


def _runs(layers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the maximal runs [start, end) of consecutive layers, ascending."""
    start: int | None = None
    previous = -2
    for layer in sorted(layers):
        if start is None:
            start = layer
        elif layer != previous + 1:
            yield start, previous + 1
            start = layer
        previous = layer
    if start is not None:
        yield start, previous + 1
