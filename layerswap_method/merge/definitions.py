"""Whether mergekit writes a checkpoint's tensors under the names that they have in its files.

Reads mergekit's definitions of architectures, which are data; imports nothing of mergekit.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layerswap_method.checkpoints.headers import Checkpoint, is_buffer, name_list

_LAYER = "${layer_index}"


def why_mergekit(checkpoint: Checkpoint) -> str | None:
    """Return why only mergekit can merge this checkpoint; None where files say enough.

    mergekit writes what its definition of the architecture names. Where a checkpoint holds other
    names (mixtures of experts, which it fuses), or further files belong to it (vision), it must do
    the work itself.
    """
    name = checkpoint.config.architecture
    definition = _definitions().get(name, {}).get(checkpoint.config.model_type)
    if definition is None:
        return f"mergekit has no fixed list of tensors for {name}"
    weights = list(_weights(definition, checkpoint.num_layers or 0))
    known = {weight["name"] for weight in weights}
    other = [each for each in checkpoint.tensors if each not in known and not is_buffer(each)]
    if other:
        return f"mergekit knows other tensors of {name} than {name_list(other)}"
    absent = [
        weight["name"]
        for weight in weights
        if weight["name"] not in checkpoint.tensors
        and not weight.get("optional")
        and not weight.get("tied_names")
    ]
    if absent:
        return f"mergekit expects further tensors of {name}: {name_list(absent)}"
    if any(weight.get("force_dtype") for weight in weights):
        return f"mergekit stores tensors of {name} in dtypes of its own"
    return None


@functools.cache
def _definitions() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return class name -> model type -> definition, of models that are one decoder."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    spec = importlib.util.find_spec("mergekit")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted((Path(place) / "_data" / "architectures").glob("*.json")):
            definition = json.loads(file.read_text(encoding="utf-8"))
            if "layer_templates" in definition and not definition.get("tagalong_files"):
                for name in definition["architectures"]:
                    found.setdefault(name, {})[definition["model_type"]] = definition
    return found


def _weights(definition: Mapping[str, Any], num_layers: int) -> Iterator[Mapping[str, Any]]:
    yield from definition.get("pre_weights", ())
    for layer in range(num_layers):
        for weight in definition["layer_templates"]["weights"]:
            yield {**weight, "name": weight["name"].replace(_LAYER, str(layer))}
    yield from definition.get("post_weights", ())
