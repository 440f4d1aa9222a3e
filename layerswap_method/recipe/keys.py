"""Keys of a recipe that mergekit would silently ignore. Knows YAML values; no method."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from layerswap_method.errors import nearest


def key_problems(
    source: Mapping[str, Any],
    known: Mapping[str, Sequence[str]],
    parameters: Collection[str],
) -> Iterator[str]:
    """Yield the keys that mergekit would silently ignore.

    Args:
        source: the YAML document; values of a wrong type are passed over.
        known: `mergekit_api.recipe_fields()`.
        parameters: names of the method's parameters, which may stand in the wrong place.
    """
    for place, found, kind in _blocks(source):
        for key in found:
            if key not in known[kind]:
                hint = nearest(str(key), known[kind])
                if key in parameters:
                    hint = "; it belongs under parameters:"
                yield f"{place} has the unknown key {key!r}, which mergekit ignores{hint}"


def _blocks(source: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield (place, block, its kind in `recipe_fields`) of everything that has fixed keys."""
    yield "the recipe", source, "recipe"
    yield from _input_blocks(source, "")
    modules = source.get("modules")
    for name, module in modules.items() if isinstance(modules, Mapping) else ():
        if isinstance(module, Mapping):
            yield f"modules.{name}", module, "modules"
            yield from _input_blocks(module, f"modules.{name}.")
    tokenizer = source.get("tokenizer")
    if isinstance(tokenizer, Mapping):
        yield "tokenizer", tokenizer, "tokenizer"
        yield from _token_blocks(tokenizer.get("tokens"))


def _token_blocks(tokens: Any) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    for name, token in tokens.items() if isinstance(tokens, Mapping) else ():
        if not isinstance(token, Mapping):
            continue
        yield f"tokenizer.tokens.{name}", token, "tokens"
        origin = token.get("source")
        if isinstance(origin, Mapping) and origin.get("kind") in ("model_token", "zero"):
            yield f"tokenizer.tokens.{name}.source", origin, origin["kind"]


def _input_blocks(
    holder: Mapping[str, Any], place: str
) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    for i, model in _items(holder, "models"):
        yield f"{place}models[{i}]", model, "models"
    for i, out in _items(holder, "slices"):
        yield f"{place}slices[{i}]", out, "slices"
        for j, entry in _items(out, "sources"):
            yield f"{place}slices[{i}].sources[{j}]", entry, "sources"


def _items(holder: Mapping[str, Any], key: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    found = holder.get(key)
    for i, item in enumerate(found if isinstance(found, list | tuple) else ()):
        if isinstance(item, Mapping):
            yield i, item
