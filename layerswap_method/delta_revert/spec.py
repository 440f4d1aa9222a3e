"""The parameters of a `delta_revert` recipe, validated. Knows values; not YAML, models or tensors.

What goes back to the base is the union of three sets: rows that hardly changed, layers, modules.
Source: arXiv 2410.01335, section 3.3.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from layerswap_method.algorithm.layer_lists import parse_layers
from layerswap_method.algorithm.tensor_names import layer_part
from layerswap_method.errors import nearest
from layerswap_method.frozen import Described

Rule = Literal["expert", "base", "rows"]
"""Where one tensor comes from: the expert, the base, or row by row."""

MODULES = ("attention", "mlp", "norm", "other", "non_layer")
"""What `revert_modules` can name: the parts of a layer (`algorithm.tensor_names`), and all that
is in no decoder layer (embeddings, final norm, lm_head, vision towers)."""

Count = Annotated[StrictInt, Field(ge=0)]


class RevertSpec(Described):
    """What stands under a recipe's top-level ``parameters:``."""

    threshold: Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)] | None = None
    """Rows (of one input feature: `layerswap_method.deltas.rows`) whose MAV is below this go back
    to the base; in the unit of the weights."""

    keep_fraction: Annotated[StrictFloat, Field(ge=0, le=1)] | None = None
    """In place of `threshold`: the share of all weights that stays the expert's, the rows with the
    largest MAV first. Rows of one MAV are kept together, so that more may stay than asked."""

    revert_layers: StrictStr | None = Field(default=None, examples=["0-4,30,31"])
    """Layers that go back whole, as a string such as "0-4,30,31" (0-based, ends included)."""

    bottom_layers: Count = 0
    """Layers at the embedding side that go back whole; section 3.3: 5."""

    top_layers: Count = 0
    """Layers at the output side that go back whole; section 3.3: 2."""

    revert_modules: StrictStr | None = Field(default=None, examples=["attention,mlp"])
    """Modules that go back in every layer: names of `MODULES`, joined by commas."""

    @model_validator(mode="after")
    def _check_combinations(self) -> RevertSpec:
        if self.threshold is not None and self.keep_fraction is not None:
            raise ValueError("threshold and keep_fraction both say which rows stay; drop one")
        if not self.model_fields_set:
            names = ", ".join(type(self).model_fields)
            raise ValueError(f"nothing says what to revert; write one of {names}")
        if self.revert_layers is not None:
            parse_layers(self.revert_layers, name="revert_layers")
        self.modules()
        return self

    @property
    def by_row(self) -> bool:
        """Whether rows are compared with the base's."""
        return self.threshold is not None or self.keep_fraction is not None

    def modules(self) -> tuple[str, ...]:
        """Return the names in `revert_modules`.

        Raises:
            ValueError: for an unknown name, an empty one, or one that is named twice.
        """
        if self.revert_modules is None:
            return ()
        names = [name.strip() for name in self.revert_modules.split(",")]
        for name in names:
            if name not in MODULES:
                raise ValueError(
                    f"revert_modules {self.revert_modules!r}: {name!r} is none of "
                    f"{', '.join(MODULES)}{nearest(name, MODULES)}"
                )
            if names.count(name) > 1:
                raise ValueError(f"revert_modules {self.revert_modules!r}: {name} is named twice")
        return tuple(names)

    def layers(self, num_layers: int) -> frozenset[int]:
        """Return the layers that go back whole in a model of `num_layers` layers.

        Raises:
            ValueError: with the numbers, where they do not fit.
        """
        if self.bottom_layers + self.top_layers > num_layers:
            raise ValueError(
                f"bottom_layers + top_layers = {self.bottom_layers} + {self.top_layers} = "
                f"{self.bottom_layers + self.top_layers} is more than the model's {num_layers} "
                "layers"
            )
        named: tuple[int, ...] = ()
        if self.revert_layers is not None:
            named = parse_layers(self.revert_layers, num_layers, "revert_layers")
        top = range(num_layers - self.top_layers, num_layers)
        return frozenset({*named, *range(self.bottom_layers), *top})

    def rule(self, name: str, layer: int | None, layers: frozenset[int]) -> Rule:
        """Return where the tensor `name` comes from.

        Args:
            name: the tensor's name.
            layer: its decoder layer; None outside the decoder's layers.
            layers: what `layers` returned.
        """
        part = "non_layer" if layer is None else layer_part(name)
        if layer in layers or part in self.modules():
            return "base"
        return "rows" if self.by_row else "expert"


NAME = "delta_revert"
"""What a recipe writes as ``merge_method``."""
