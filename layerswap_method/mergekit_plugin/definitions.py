"""Whether mergekit's definition of an architecture fits a checkpoint and a recipe.

Knows names of weights and modules and layer ranges; reads no tensor. mergekit finds these faults
only while it merges, or never: a tensor that its definition does not name is left out silently.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from layerswap_method.algorithm.tensor_names import outside_decoder, split_layer
from layerswap_method.checkpoints.headers import Checkpoint, is_buffer, name_list
from layerswap_method.errors import InputError, nearest
from layerswap_method.mergekit_plugin.api import (
    architecture_for_recipe,
    architecture_of,
    conversion_names,
)

LOG = logging.getLogger("layerswap")


def find_architecture(merge_config: Any, options: Any, config: Any, name: str) -> Any:
    """Return mergekit's `ModelArchitecture` for the recipe: its own definition, or an inferred one.

    Args:
        merge_config: mergekit's `MergeConfiguration`.
        options: mergekit's `MergeOptions`.
        config: the transformers config of the model called `name`.
        name: for messages.

    Raises:
        InputError: where mergekit has no definition and cannot infer one, or where its definition
            does not fit the config.
    """
    architecture = (getattr(config, "architectures", None) or ["unknown"])[0]
    try:
        found = architecture_of(config)
        if found is None:
            found = architecture_for_recipe(merge_config, options)
    except Exception as error:
        raise InputError(
            f"layer_swap recipe: mergekit has no definition of {architecture} and cannot infer one "
            f"from {name}: {type(error).__name__}: {error} (an adapter reference: merge it first)"
        ) from error
    try:
        found.all_weights(config)
    except RuntimeError as error:
        fault = str(error).rsplit("}", 1)[-1].strip()
        raise InputError(
            f"layer_swap recipe: mergekit's definition of {architecture} does not fit the config "
            f"of {name}, which {fault}; mergekit cannot read this model with any method and this "
            "version of transformers"
        ) from error
    return found


def decoder_module(arch_info: Any) -> str:
    """Return the name of the module whose layers are swapped: the (text) decoder.

    Raises:
        InputError: where no module or more than one could be it (encoder-decoder models).
    """
    names = list(arch_info.modules)
    if len(names) == 1:
        return str(names[0])
    if "text_decoder" in names:
        return "text_decoder"
    candidates = [name for name in names if not outside_decoder(name)]
    language = [name for name in candidates if "language" in name or "text" in name]
    for found in (language, candidates):
        if len(found) == 1:
            return str(found[0])
    raise InputError(
        f"what is merged by layer is one text decoder; this architecture has the modules "
        f"{', '.join(names)}, and none of them is clearly that one"
    )


def definition_problems(arch: Any, config: Any, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what mergekit's definition asks for in vain, or would leave out of the output."""
    weights = arch.all_weights(config)
    direct = {name for weight in weights for name in _names(weight)}
    unnamed = [name for name in checkpoint.shapes if name not in direct]
    converted = dict(zip(unnamed, conversion_names(config.model_type, unnamed), strict=True))
    made = set().union(*converted.values())
    missing = [
        weight.name
        for weight in weights
        if not weight.optional
        and weight.name not in made
        and not any(name in checkpoint.shapes for name in _names(weight))
    ]
    if missing:
        if all(is_buffer(name) for name in missing):
            reason = "transformers 5 no longer saves these buffers"
        else:
            reason = "it holds other names; the original checkpoint on the hub may hold these"
        yield (
            f"mergekit's definition of {checkpoint.architecture} asks for {len(missing)} tensors "
            f"that {checkpoint.name} does not hold: {name_list(missing)}; mergekit cannot read "
            f"this checkpoint with any method ({reason})"
        )
        return
    # A config that does not say it means the default of its class, which transformers knows.
    if not any(getattr(c, "tie_word_embeddings", None) for c in (config, config.get_text_config())):
        yield from _untied_problems(weights, made, checkpoint)
    # mergekit skips an optional weight that is not stored under its own name.
    wanted = {weight.name for weight in weights if not weight.optional}
    lost = [name for name in unnamed if not converted[name] & wanted and not is_buffer(name)]
    layers = [
        name
        for name in lost
        if (layer := split_layer(name)[0]) is not None and layer < (checkpoint.num_layers or 0)
    ]
    if layers:
        yield (
            f"mergekit would leave {len(lost)} tensors of {checkpoint.name} out of the output, "
            f"with any method: {name_list(layers)}; it does not know the names in this checkpoint "
            f"({checkpoint.architecture})"
        )
    elif lost:
        LOG.warning(
            "mergekit's definition of %s leaves %d tensors of %s out of the output: %s",
            checkpoint.architecture,
            len(lost),
            checkpoint.name,
            name_list(lost),
        )


def _untied_problems(weights: Any, made: set[str], checkpoint: Checkpoint) -> Iterator[str]:
    """Yield embeddings that a checkpoint which ties nothing lacks; mergekit would copy others."""
    for weight in weights:
        if weight.vocabulary_axis is None or not weight.tied_names or weight.name in made:
            continue
        if not any(name in checkpoint.shapes for name in (weight.name, *(weight.aliases or ()))):
            yield (
                f"{checkpoint.name} holds no {weight.name}, and its config does not tie it to "
                f"{' or '.join(weight.tied_names)} (tie_word_embeddings: false); get the whole "
                "checkpoint, or set tie_word_embeddings: true if it was trained so"
            )


def _names(weight: Any) -> tuple[str, ...]:
    return (weight.name, *(weight.aliases or ()), *(weight.tied_names or ()))


def module_problems(merge_config: Any, modules: Collection[str]) -> Iterator[str]:
    """Yield why a recipe's `modules:` or `slices:` do not fit the architecture's modules."""
    listed = ", ".join(modules)
    if merge_config.slices and len(modules) > 1:
        yield (
            f"slices: works for models of one module; this one has {listed}: write models:, or "
            "modules: with slices: for each"
        )
    if merge_config.modules is None:
        return
    for name in merge_config.modules:
        if name not in modules:
            yield f"modules has {name!r}; this architecture has {listed}{nearest(name, modules)}"
    absent = [name for name in modules if name not in merge_config.modules]
    if absent:
        yield (
            f"modules lacks {', '.join(absent)}: mergekit would leave all its tensors out of the "
            "output; list every module (or write models: for all of them)"
        )


def slice_problems(
    merge_config: Any, arch: Any, configs: Mapping[str, Any], *, default_module: str
) -> Iterator[str]:
    """Yield layer ranges that run backwards, differ in length or pass a model's last layer.

    Args:
        merge_config: mergekit's `MergeConfiguration`.
        arch: mergekit's `ModelArchitecture`.
        configs: reference as the recipe writes it -> transformers config.
        default_module: the module that top-level `slices:` is about.
    """
    places = [("slices", default_module, merge_config.slices or ())]
    places += [
        (f"modules.{name}.slices", name, module.slices or ())
        for name, module in (merge_config.modules or {}).items()
        if name in arch.modules
    ]
    for place, module_name, slices in places:
        info = arch.modules[module_name].architecture
        for i, out in enumerate(slices):
            lengths = set()
            for entry in out.sources:
                start, end = entry.layer_range
                depth = info.num_layers(configs[str(entry.model)])
                lengths.add(end - start)
                if not 0 <= start <= end <= depth:
                    yield (
                        f"{place}[{i}] ({entry.model}): layer_range [{start}, {end}] is no range "
                        f"of the model's {depth} layers; write [first, last + 1], within "
                        f"[0, {depth}]"
                    )
            if len(lengths) > 1:
                yield (
                    f"{place}[{i}]: its layer_ranges have different lengths "
                    f"({', '.join(str(length) for length in sorted(lengths))} layers)"
                )
