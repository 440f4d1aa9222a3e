"""A recipe as a typed document: what every method of ours lets its author write.

Gives the JSON schema of a recipe too. Knows mergekit's `MergeConfiguration` by the names of its
fields (nothing is imported) and no method's parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    WrapValidator,
    field_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from layerswap_method.errors import InputError, nearest
from layerswap_method.frozen import Described
from layerswap_method.recipe.parameters import (
    RECIPE,
    Place,
    block_of,
    problems,
    type_at,
    unknown_keys,
)
from layerswap_method.recipe.references import syntax_problem


def _check_reference(value: Any) -> Any:
    """Return a reference as it is: text, or mergekit's `ModelReference`."""
    if value is None or isinstance(value, bool | int | float | Mapping | list | tuple):
        raise PydanticCustomError("reference", "Reference: Input should be a folder or hub id")
    if isinstance(value, str) and (problem := syntax_problem(value)) is not None:
        raise ValueError(problem)
    return value


Reference = Annotated[
    Any, BeforeValidator(_check_reference), WithJsonSchema({"type": "string", "minLength": 1})
]
"""A model: ``path``, ``path@revision`` or ``path+adapter``."""


def _read_block(value: Any, read: Callable[[Any], Any]) -> Any:
    return value if isinstance(value, BaseModel) else read({} if value is None else value)


Block = WrapValidator(_read_block)
"""Of a block that may be left empty; what is read already stays as it is."""


class Entry(Described):
    """One of the models of a recipe."""

    model: Reference
    """A folder, a hub id, or either with ``+adapter``."""


class ModelToken(Described):
    """A token whose embedding is that of a model's token."""

    kind: Literal["model_token"]
    model: Reference
    token_id: StrictInt | None = None
    token: StrictStr | None = None


class ZeroToken(Described):
    """A token whose embedding is zero."""

    kind: Literal["zero"]


class Token(Described):
    """Where one token's embedding comes from."""

    source: ModelToken | ZeroToken | Reference | None = None
    """A model, one token of a model, or zeros."""

    force: StrictBool = False
    """Whether models that have the token get this embedding too."""


class Tokenizer(Described):
    """How mergekit aligns the vocabularies."""

    source: Reference = "union"
    """`union`, `base`, or the model whose tokenizer is taken."""

    tokens: dict[StrictStr, Token] | None = None
    """Token -> where its embedding comes from."""

    pad_to_multiple_of: StrictInt | None = None
    """Rows of the vocabulary tensors are padded to a multiple of this."""


_DTYPES = ("bfloat16", "float16", "float32", "float64")


def dtype_problems(**dtypes: str | None) -> Iterator[str]:
    """Yield which of a recipe's dtypes (key -> what it says) is none."""
    for key, name in dtypes.items():
        if name is not None and str(name).removeprefix("torch.") not in _DTYPES:
            hint = nearest(str(name), _DTYPES)
            yield f"{key} is {name!r}; it must be one of {', '.join(_DTYPES)}{hint}"


class RecipeDocument(Described):
    """The keys that recipes of all methods of ours share; each adds its models and parameters."""

    model_config = ConfigDict(
        json_schema_extra={"required": ["merge_method", "base_model", "models"]}
    )

    base_model: Reference | None = None
    """The donor of config and tokenizer; for most settings the pretrained parent."""

    dtype: StrictStr | None = None
    """The dtype of the merge: bfloat16, float16, float32 or float64."""

    out_dtype: StrictStr | None = None
    """The dtype of the written checkpoint, where it is another."""

    tokenizer_source: Reference | None = None
    """`union`, `base`, or the model whose tokenizer is taken; the short form of `tokenizer`."""

    tokenizer: Tokenizer | None = None
    """How the vocabularies are aligned."""

    chat_template: StrictStr | None = None
    """`auto`, a template that mergekit ships, or the template's own text."""

    slices: SkipJsonSchema[Any] = None
    """Refused."""

    modules: SkipJsonSchema[Any] = None
    """Refused."""

    @field_validator("slices", "modules")
    @classmethod
    def _refuse(cls, value: Any, info: ValidationInfo) -> Any:
        if value:
            raise ValueError(
                f"{cls.method()} keeps every layer in its place; write models: in place of "
                f"{info.field_name}:"
            )
        return value

    @classmethod
    def method(cls) -> str:
        """Return what the recipes of this type write as ``merge_method``."""
        (name,) = get_args(cls.model_fields["merge_method"].annotation)
        return str(name)

    @classmethod
    def read(cls, config: Any, source: Mapping[str, Any] | None = None) -> Self:
        """Return a recipe as a typed document, or raise one error that lists every problem.

        Args:
            config: the recipe, as YAML gives it or as mergekit's `MergeConfiguration`.
            source: the recipe before mergekit parsed it, to find keys that mergekit ignored.

        Raises:
            InputError: with all problems, each with its place and the nearest valid name.
        """
        given = config if isinstance(config, Mapping) else _as_document(config)
        ignored = [at for at, _ in unknown_keys(cls, given)]
        faulty = {at[:-1] for at in ignored if at[-2:-1] == ("parameters",)}
        found = [*problems(cls, source or given, None, RECIPE), *problems(cls, given, None, RECIPE)]
        clean = _changed(given, dict.fromkeys(ignored, _GONE))
        document, error = cls._read(clean)
        if error is not None:
            found += problems(cls, clean, error, RECIPE)
            places = [item["loc"] for item in error.errors()]
            if all("parameters" in place for place in places):
                # What stands there is taken for its defaults, so that the rest is judged, too.
                blocks = {place[: place.index("parameters") + 1] for place in places}
                kinds = {at: block_of(type_at(cls, at)) for at in blocks}
                empty = {at: kind.model_construct() for at, kind in kinds.items() if kind}
                document, _ = cls._read(_changed({"parameters": None, **clean}, empty))
                faulty |= blocks
        if document is not None:
            found += document.contradictions(faulty)
        if found or document is None:
            raise InputError.from_problems(f"{cls.method()} recipe", list(dict.fromkeys(found)))
        return document

    @classmethod
    def _read(cls, document: Any) -> tuple[Self | None, ValidationError | None]:
        try:
            return cls.model_validate(document), None
        except ValidationError as error:
            return None, error

    @abstractmethod
    def contradictions(self, faulty: set[Place]) -> Iterator[str]:
        """Yield what is wrong beyond the form of single values.

        Args:
            faulty: places of ``parameters:`` in which something is wrong; nothing is said of them.
        """


_GONE = object()
"""In place of what is left out."""


def _changed(value: Any, changes: Mapping[Place, Any], place: Place = ()) -> Any:
    """Return a document with what stands at some places left out or replaced."""
    if place in changes:
        return changes[place]
    if isinstance(value, Mapping):
        return {
            key: _changed(item, changes, (*place, key))
            for key, item in value.items()
            if changes.get((*place, key)) is not _GONE
        }
    if isinstance(value, list | tuple):
        return [_changed(item, changes, (*place, i)) for i, item in enumerate(value)]
    return value


def _as_document(config: Any) -> dict[str, Any]:
    """Return what mergekit's configuration says, with its references as they are."""
    document = {key: value for key, value in config if value is not None}
    if config.tokenizer is not None:
        document["tokenizer"] = config.tokenizer.model_dump(exclude_unset=True)
    if config.models:
        document["models"] = [
            {"model": entry.model, "parameters": entry.parameters} for entry in config.models
        ]
    return document
