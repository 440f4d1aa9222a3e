"""The pure layer plan: which expert gives each layer. Knows numbers only; no file, no tensor.

Source: Bandarkar et al., "Layer Swapping for Zero-Shot Cross-Lingual Transfer in Large Language
Models" (ICLR 2025, arXiv 2410.01335), section 4 and Algorithm 1. Line 5 of the algorithm as
printed says ``l > b-1+t_b or l < L-u-t_u``; read literally no layer would ever be averaged. It
must be *and*, which is what is implemented here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from layerswap_method.algorithm.layer_lists import _runs, format_layers

Source = Literal["task", "language", "average"]
"""Where a layer comes from: one expert unchanged, or the weighted average of both."""


MODULES = ("attention", "mlp")
"""The parts of a layer that can be chosen apart, as `tensor_names` names them."""


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


def _drawn(sources: tuple[Source, ...]) -> str:
    return "".join(SYMBOLS[source] for source in sources)


def _describe(sources: tuple[Source, ...]) -> str:
    chosen = {name: [i for i, source in enumerate(sources) if source == name] for name in _ORDER}
    return "; ".join(f"{name} {format_layers(layers)}" for name, layers in chosen.items() if layers)


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


def _transitions(swapped: frozenset[int], above: int, below: int) -> frozenset[int]:
    return frozenset(
        layer
        for start, end in _runs(swapped)
        for layer in (*range(end, end + above), *range(start - below, start))
        if layer not in swapped
    )


Role = Literal["task", "language"]
"""The part an input model plays."""


ROLES: tuple[str, ...] = get_args(Role)


TensorSource = Literal["task", "language", "average", "base"]
"""Where one tensor comes from."""
