"""The JSON schema of recipes, for editors. Made from the types that read a recipe."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe

FILE = "recipe.schema.json"
"""Its name in the folder of the recipes."""

_OURS = (LayerSwapRecipe, DeltaRevertRecipe)


def recipe_schema() -> dict[str, Any]:
    """Return the schema: of recipes of ours all keys and values, of others that they name a method.

    mergekit ignores keys that it does not know; the schema refuses them.
    """
    _, shared = models_json_schema(
        [(document, "validation") for document in _OURS], ref_template="#/$defs/{model}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A mergekit recipe, with the methods of layerswap",
        "type": "object",
        "properties": {
            "merge_method": {
                "type": "string",
                "examples": [document.method() for document in _OURS],
                "description": "layer_swap, delta_revert, or a method of mergekit's own.",
            }
        },
        "required": ["merge_method"],
        "allOf": [
            {
                "if": {"properties": {"merge_method": {"const": document.method()}}},
                "then": {"$ref": f"#/$defs/{document.__name__}"},
            }
            for document in _OURS
        ],
        "$defs": shared["$defs"],
    }


def schema_text() -> str:
    """Return the schema as the file holds it."""
    return json.dumps(recipe_schema(), indent=2, ensure_ascii=False) + "\n"
