"""A `delta_revert` recipe, read with every problem at once. Knows no checkpoints or tensors.

What all recipes share is in `layerswap_method.recipe.document`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from layerswap_method.delta_revert.spec import RevertSpec
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.document import Block, Entry, RecipeDocument
from layerswap_method.recipe.parameters import Place
from layerswap_method.recipe.references import same_model_key


class NoParameters(Frozen):
    """What stands under one model's ``parameters:``: nothing."""

    advice: ClassVar[Mapping[str, str]] = {
        "role": "delta_revert has no roles: the base is named by base_model; drop this line"
    }
    """Name that does not belong here -> why."""


class RevertEntry(Entry):
    """One of the models of a recipe."""

    parameters: Annotated[NoParameters, Block] = NoParameters()
    """None."""


class RevertDocument(RecipeDocument):
    """A `delta_revert` recipe as its author writes it."""

    merge_method: Literal["delta_revert"]
    models: tuple[RevertEntry, ...] = Field(default=(), json_schema_extra={"minItems": 1})
    """The expert; the base may be listed too."""

    parameters: Annotated[RevertSpec, Block] = Field(default=None, validate_default=True)
    """What goes back to the base."""

    @property
    def expert(self) -> Any:
        """Return the reference of the fine-tuned model; base_model is what it was made from."""
        return self._experts()[0]

    def _experts(self) -> list[Any]:
        """Return the models that are not the base."""
        base = None if self.base_model is None else same_model_key(self.base_model)
        return [entry.model for entry in self.models if same_model_key(entry.model) != base]

    def contradictions(self, faulty: set[Place]) -> Iterator[str]:
        """Yield what is wrong beyond the form of single values."""
        base, experts = self.base_model, self._experts()
        for key in ("tokenizer", "tokenizer_source"):
            if getattr(self, key) is not None:
                yield (
                    f"{key} cannot be used here: rows are compared one by one, so expert and base "
                    "must share a vocabulary; drop the line"
                )
        for i, entry in enumerate(self.models):
            if entry.model not in (*experts, base):
                yield (
                    f"models[{i}] ({entry.model}) is the base_model; write it in the same way "
                    f"({base}), or leave it out"
                )
        if base is None:
            yield (
                "base_model is missing: write base_model: with the checkpoint that the expert was "
                "fine-tuned from"
            )
        elif len(experts) != 1:
            listed = ", ".join(str(model) for model in experts) or "none"
            yield (
                f"models: lists {len(experts)} models beside the base_model ({listed}); "
                "delta_revert takes one expert"
            )
