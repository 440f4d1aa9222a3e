"""A `delta_revert` recipe: which parts of an expert go back to its base.

What goes back is the union of three sets: features that hardly changed, layers, modules. Source:
arXiv 2410.01335, section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr, model_validator

from layerswap_method.errors import nearest
from layerswap_method.frozen import Described, Frozen
from layerswap_method.plan import check_counts, parse_layers
from layerswap_method.recipe.document import Block, Entry, Merge, Progress, Recipe
from layerswap_method.recipe.references import Model, same_model_key
from layerswap_method.tensor_names import layer_part

NAME = "delta_revert"
"""What a recipe writes as ``merge_method``."""

Rule = Literal["expert", "base", "features"]
"""Where one tensor comes from: the expert, the base, or feature by feature."""

MODULES = ("attention", "mlp", "norm", "other", "non_layer")
"""What `revert_modules` can name: the parts of a layer (`tensor_names`), and all that
is in no decoder layer (embeddings, final norm, lm_head, vision towers)."""

Count = Annotated[StrictInt, Field(ge=0)]


class RevertSpec(Described):
    """What stands under a recipe's top-level ``parameters:``."""

    threshold: Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)] | None = None
    """Input features (`layerswap_method.deltas.features`; the paper's rows) whose MAV is below this
    go back to the base; in the unit of the weights."""

    keep_fraction: Annotated[StrictFloat, Field(ge=0, le=1)] | None = None
    """In place of `threshold`: the share of all weights that stays the expert's, the features with
    the largest MAV first. Features of one MAV are kept together, so that more may stay."""

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
            raise ValueError("threshold and keep_fraction both say which features stay; drop one")
        if not self.model_fields_set:
            names = ", ".join(type(self).model_fields)
            raise ValueError(f"nothing says what to revert; write one of {names}")
        if self.revert_layers is not None:
            parse_layers(self.revert_layers, name="revert_layers")
        self.modules()
        return self

    @property
    def by_feature(self) -> bool:
        """Whether features are compared with the base's."""
        return self.threshold is not None or self.keep_fraction is not None

    def modules(self) -> tuple[str, ...]:
        """Return the names in `revert_modules`, each checked."""
        if self.revert_modules is None:
            return ()
        names = tuple(name.strip() for name in self.revert_modules.split(","))
        for name in names:
            where = f"revert_modules {self.revert_modules!r}: "
            if name not in MODULES:
                hint = nearest(name, MODULES)
                raise ValueError(f"{where}{name!r} is none of {', '.join(MODULES)}{hint}")
            if names.count(name) > 1:
                raise ValueError(f"{where}{name} is named twice")
        return names

    def layers(self, num_layers: int) -> frozenset[int]:
        """Return the layers that go back whole in a model of `num_layers` layers."""
        check_counts(num_layers, self.model_dump(include={"bottom_layers", "top_layers"}))
        layers = {*range(self.bottom_layers), *range(num_layers - self.top_layers, num_layers)}
        if self.revert_layers is not None:
            layers.update(parse_layers(self.revert_layers, num_layers, "revert_layers"))
        return frozenset(layers)

    def rule(self, name: str, layer: int | None, layers: frozenset[int]) -> Rule:
        """Return where the tensor `name` comes from."""
        part = "non_layer" if layer is None else layer_part(name)
        if layer in layers or part in self.modules():
            return "base"
        return "features" if self.by_feature else "expert"


class RevertEntry(Entry):
    """One of the models of a recipe."""

    parameters: Annotated[Frozen, Block] = Frozen()
    """None: the base is named by base_model."""


class DeltaRevertRecipe(Recipe):
    """A `delta_revert` recipe as its author writes it."""

    merge_method: Literal["delta_revert"]
    models: tuple[RevertEntry, ...] = Field(default=(), json_schema_extra={"minItems": 1})
    """The expert; the base may be listed too."""

    parameters: Annotated[RevertSpec, Block] = Field(default=None, validate_default=True)
    """What goes back to the base."""

    @property
    def expert(self) -> str:
        """Return the reference of the fine-tuned model; base_model is what it was made from."""
        return self._experts[0]

    @property
    def _experts(self) -> list[str]:
        base = None if self.base_model is None else same_model_key(self.base_model)
        return [entry.model for entry in self.models if same_model_key(entry.model) != base]

    @property
    def references(self) -> tuple[str, ...]:
        """Return the expert and the base."""
        return self.expert, str(self.base_model)

    @property
    def needs_deltas(self) -> bool:
        """Whether features are compared: all weights are read."""
        return self.parameters.by_feature

    def contradictions(self) -> Iterator[str]:
        """Yield what is wrong beyond the form of single values."""
        base, experts = self.base_model, self._experts
        for key in ("tokenizer", "tokenizer_source"):
            if getattr(self, key) is not None:
                why = "features are compared one by one, so expert and base must share a vocabulary"
                yield f"{key} cannot be used here: {why}; drop the line"
        for i, entry in enumerate(self.models):
            if entry.model not in (*experts, base):
                same = f"write it in the same way ({base}), or leave it out"
                yield f"models[{i}] ({entry.model}) is the base_model; {same}"
        if base is None:
            what = "the checkpoint that the expert was fine-tuned from"
            yield f"base_model is missing: write base_model: with {what}"
        elif len(experts) != 1:
            listed = (
                f"{len(experts)} models besides the base_model ({', '.join(experts) or 'none'})"
            )
            yield f"models: lists {listed}; delta_revert takes one expert"

    def merge(
        self, models: Mapping[str, Model], progress: Progress = lambda what, names: names
    ) -> Merge:
        """Return the merge; see `Recipe.merge`. The base is the donor of config and tokenizer."""
        from layerswap_method.methods.delta_revert_merge import merge

        return merge(self, models)
