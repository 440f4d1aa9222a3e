"""A recipe as a typed value: what the recipes of every method have in common."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    PrivateAttr,
    StrictInt,
    StrictStr,
)
from pydantic.json_schema import SkipJsonSchema

from layerswap_method.errors import InputError, nearest, nearest_of
from layerswap_method.frozen import Described
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.recipe.references import is_folder, named_models, syntax_problem
from layerswap_method.recipe.validation import validated


def _check_reference(value: str) -> str:
    if (problem := syntax_problem(value)) is not None:
        raise ValueError(problem)
    return value


Reference = Annotated[StrictStr, AfterValidator(_check_reference), Field(min_length=1)]
"""A model: ``path``, ``path@revision`` or ``path+adapter``."""

Block = BeforeValidator(lambda value: {} if value is None else value)
"""Marks a block that may be left empty."""

Count = Annotated[StrictInt, Field(ge=0)]
"""A number of layers."""

DTYPES = ("bfloat16", "float16", "float32", "float64")


def _check_dtype(value: str) -> str:
    name = value.removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"{value!r} must be one of {', '.join(DTYPES)}{nearest(name, DTYPES)}")
    return name


Dtype = Annotated[StrictStr, AfterValidator(_check_dtype)]


def _check_template(text: str) -> str:
    files = importlib.resources.files("mergekit._data.chat_templates").iterdir()
    templates = sorted(
        file.name.removesuffix(".jinja") for file in files if file.name.endswith(".jinja")
    )
    names = ["auto", *templates]
    is_template = "{" in text and len(text) >= 20  # by mergekit's rule
    if text and text not in names and not is_template:
        raise ValueError(f"{text!r} is neither a template nor one's name{nearest_of(text, names)}")
    return text


def _check_unused(value: Any) -> None:
    if value is not None:
        raise ValueError("has no use here, as every layer keeps its place; write models: instead")


_Unused = Annotated[None, BeforeValidator(_check_unused)]


def value_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield which dtypes, and which chat template, of a recipe of any method are not valid."""
    checks = {"dtype": _check_dtype, "out_dtype": _check_dtype, "chat_template": _check_template}
    for key, check in checks.items():
        if document.get(key) is not None:
            try:
                check(str(document[key]))
            except ValueError as error:
                yield f"{key}: {error}"


class Entry(Described):
    """One of the models of a recipe."""

    model: Reference
    """A folder, a hub id, or either with ``+adapter``."""


class TokenRow(Described):
    """Where the embedding of a token comes from."""

    source: Any = None
    """A model, or a block of mergekit's with `kind: zero` or `kind: model_token`."""

    force: bool = False
    """Whether it takes the place of the embeddings that models have for the token."""


class Tokenizer(Described):
    """The alignment of the vocabularies by mergekit."""

    source: Any = "union"
    """`union`, `base`, or the model whose tokenizer is taken."""

    tokens: dict[StrictStr, TokenRow] | None = None
    """Token -> where its embedding comes from."""

    pad_to_multiple_of: PositiveInt | None = None
    """Rows of the vocabulary tensors are padded to a multiple of this."""


class Recipe(Described):
    """The keys that recipes of all methods share; each method adds its models and parameters."""

    model_config = ConfigDict(
        json_schema_extra={"required": ["merge_method", "base_model", "models"]}
    )

    base_model: Reference | None = None
    """The donor of config and tokenizer; for most settings the pretrained parent."""

    dtype: Dtype | None = None
    """The dtype of the merge: bfloat16, float16, float32 or float64."""

    out_dtype: Dtype | None = None
    """The dtype of the written checkpoint, where it is another."""

    tokenizer_source: Reference | None = None
    """`union`, `base`, or the model whose tokenizer is taken; the short form of `tokenizer`."""

    tokenizer: Tokenizer | None = None
    """The alignment of the vocabularies by mergekit."""

    chat_template: Annotated[StrictStr, AfterValidator(_check_template)] | None = None
    """`auto`, a template that mergekit ships, or the template's own text."""

    slices: SkipJsonSchema[_Unused] = None  # as mergekit-multi writes them
    modules: SkipJsonSchema[_Unused] = None

    merge_method: str

    _document: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def document(self) -> Mapping[str, Any]:
        """The recipe as it is written: that of `run.json`, of mergekit's file and of keys."""
        return self._document

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the document that YAML gives as a typed recipe.

        Raises `InputError` with every problem, its place and the nearest valid name.
        """
        where = f"{document.get('merge_method')} recipe"
        recipe = validated(cls, document, where)
        recipe._document = document
        InputError.raise_any(where, dict.fromkeys(recipe.contradictions()))
        return recipe

    def contradictions(self) -> Iterator[str]:
        """Yield what is wrong beyond the form of single values."""
        if self.tokenizer is not None and self.tokenizer_source is not None:
            yield "tokenizer and tokenizer_source are two forms of one setting; drop one"
        source = str(self.tokenizer.source if self.tokenizer else self.tokenizer_source or "union")
        names = ("union", "base", *self.references)
        is_name = source not in names and "/" not in source and not is_folder(source)
        if is_name and (hint := nearest(source, names)):
            yield f"the tokenizer's source {source!r} is no model{hint}"

    @property
    def references(self) -> tuple[str, ...]:
        """Return every model that the recipe names, each once, as it is written."""
        references = [*(entry.model for entry in getattr(self, "models", ())), self.base_model]
        return tuple(dict.fromkeys(reference for reference in references if reference))

    @property
    def written_dtype(self) -> str | None:
        """Return the dtype that the recipe gives the written checkpoint; None keeps the files'.

        What that is for a tensor says `TensorMix.result_dtype`, for the config `build_merge`.
        """
        return self.out_dtype or self.dtype

    @property
    def needs_deltas(self) -> bool:
        """Whether the experts' changes from the base must be measured: all weights are read."""
        return False

    def why_whole(self) -> str | None:
        """Return why models are read whole; None where a merge says what it reads of them."""
        return "the recipe measures all weights" if self.needs_deltas else None

    def why_mergekit(self) -> str | None:
        """Return why only mergekit can merge this recipe, whatever its models are, else None.

        `methods.table.why_mergekit` asks its models, too.
        """
        keys = ("tokenizer", "tokenizer_source", "chat_template")
        return next((f"it has {key}:" for key in keys if getattr(self, key) is not None), None)

    def without_idle_parameters(self) -> Self:
        """Return a recipe of the same tensors without parameters that decide none of them."""
        return self

    @classmethod
    def layer_counts(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return what counts or lists layers among parameters that nobody has checked yet.

        A count is a whole number, a list a string such as "0-4,30,31". Counts that are not written
        are the method's defaults, where it has some.
        """
        return {}

    def layer_plan(self, num_layers: int) -> LayerPlan | None:
        """Return the source of every layer; None where the merge measures it, or has no such plan.

        Raises `ValueError` for layers that a model of `num_layers` layers lacks.
        """
        return None

    def plan_warnings(self, plan: LayerPlan) -> Iterator[str]:
        """Yield what is unusual about the layers of the merge."""
        yield from ()

    @property
    def roles(self) -> Mapping[str, str]:
        """Model -> its role, ``task``, ``language`` or ``base``, where the method has roles."""
        return {}

    @property
    def moved_part(self) -> str | None:
        """The part of each layer, ``attention`` or ``mlp``, that alone is swapped, if one is."""
        return None

    @property
    def rows_from(self) -> tuple[str, ...] | None:
        """The models whose vocabulary rows the merge has; None where it has those of all."""
        return None

    @property
    def weights_from(self) -> tuple[str, ...]:
        """The models of which the merge has weights."""
        return self.references

    @property
    def is_one_vocabulary(self) -> bool:
        """Whether the models must share a vocabulary, which nothing can align."""
        return False

    @property
    def names_parent(self) -> bool:
        """Whether `base_model` is what the other models were trained from."""
        return False

    @property
    def unmerged(self) -> str | None:
        """The reference of the model that the recipe leaves as it is; None for a merge."""
        return None

    @property
    def makes_tokenizer(self) -> bool:
        """Whether the tokenizer of the merge is known only after it."""
        return self.aligns_tokens or self.chat_template is not None

    @property
    def aligns_tokens(self) -> bool:
        """Whether mergekit moves the rows of the vocabulary tensors."""
        return self.tokenizer is not None or self.tokenizer_source is not None


class OtherRecipe(Recipe):
    """A recipe that only mergekit reads: of another method, or with more than files can follow.

    Nothing of it is checked here; mergekit's own types do that.
    """

    model_config = ConfigDict(extra="allow")

    _reason: str = PrivateAttr("")

    @classmethod
    def unread(cls, document: Mapping[str, Any], reason: str) -> OtherRecipe:
        """Return a document as a recipe; `reason` is why only mergekit can merge it."""
        recipe = cls.model_construct(**{str(key): value for key, value in document.items()})
        recipe._document, recipe._reason = document, reason
        return recipe

    def why_mergekit(self) -> str | None:
        """Return why only mergekit can merge this recipe."""
        return self._reason

    @property
    def references(self) -> tuple[str, ...]:
        """Return every model that the recipe names, each once, as it is written."""
        return tuple(dict.fromkeys(named_models(self._document)))

    @property
    def written_dtype(self) -> str | None:
        """Return the dtype that the recipe gives the written checkpoint; None for no valid one."""
        dtype = str(self.out_dtype or self.dtype).removeprefix("torch.")
        return dtype if dtype in DTYPES else None
