"""A layer plan in words and as a picture, for logs, cards and listings."""

from __future__ import annotations

from layerswap_method.layer_lists import format_layers
from layerswap_method.plan import LayerPlan, Source

SYMBOLS: dict[Source, str] = {"task": "·", "average": "▒", "language": "█", "base": "○"}
"""A source as one character of a drawing."""

_ORDER: tuple[Source, ...] = ("language", "average", "task", "base")


def describe_plan(plan: LayerPlan) -> str:
    """Return one line: which layers from whom, for logs."""
    rows = plan.modules or {"": plan.sources}
    parts = [f"{name} {_describe(LayerPlan(sources))}".strip() for name, sources in rows.items()]
    return f"{plan.num_layers} layers: " + " | ".join(parts)


def draw_line(plan: LayerPlan) -> str:
    """Return one character a layer, layer 0 first; of modules, the source of the rest."""
    return "".join(SYMBOLS[source] for source in plan.sources)


def draw_plan(plan: LayerPlan) -> str:
    """Return a picture: a ruler, one cell a layer (attention above MLP), the legend."""
    ruler = "".join("|" if layer % 5 == 0 else " " for layer in range(plan.num_layers))
    rows = {"input": plan.sources}
    if plan.modules:
        rows = {"attn ": plan.modules["attention"], "mlp  ": plan.modules["mlp"]}
    has_base = any("base" in row for row in rows.values())
    return "\n".join(
        [
            f"  layer 0 {ruler} {plan.num_layers - 1}",
            *(f"  {label}   {draw_line(LayerPlan(row))} output" for label, row in rows.items()),
            f"  {SYMBOLS['language']} language expert  {SYMBOLS['average']} average of both  "
            f"{SYMBOLS['task']} task expert" + (f"  {SYMBOLS['base']} base" if has_base else ""),
        ]
    )


def _describe(plan: LayerPlan) -> str:
    chosen = {name: plan.layers_from(name) for name in _ORDER}
    return "; ".join(f"{name} {format_layers(layers)}" for name, layers in chosen.items() if layers)
