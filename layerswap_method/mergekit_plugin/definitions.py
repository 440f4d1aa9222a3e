"""Whether mergekit's definition of an architecture fits a checkpoint.

Knows names of weights and modules; reads no tensor. mergekit finds these faults
only while it merges, or never: a tensor that its definition does not name is left out silently.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from layerswap_method.algorithm.tensor_names import outside_decoder, split_layer
from layerswap_method.checkpoints.headers import Checkpoint, is_buffer, name_list
from layerswap_method.errors import InputError

LOG = logging.getLogger("layerswap")


def architecture_of(config: Any) -> Any:
    """Return mergekit's architecture for a transformers config; None where it has no definition."""
    from mergekit.architecture import arch_info_for_config

    return arch_info_for_config(config)


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
    method = merge_config.merge_method
    try:
        found = architecture_of(config)
        if found is None:
            from mergekit.architecture import get_architecture_info

            found = get_architecture_info(merge_config, options)
    except Exception as error:
        raise InputError(
            f"{method} recipe: mergekit has no definition of {architecture} and cannot infer one "
            f"from {name}: {type(error).__name__}: {error} (an adapter reference: merge it first)"
        ) from error
    try:
        found.all_weights(config)
    except RuntimeError as error:
        fault = str(error).rsplit("}", 1)[-1].strip()
        raise InputError(
            f"{method} recipe: mergekit's definition of {architecture} does not fit the config "
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
    converted = dict(zip(unnamed, _conversion_names(config.model_type, unnamed), strict=True))
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
            f"mergekit's definition of {checkpoint.config.architecture} asks for {len(missing)} "
            f"tensors that {checkpoint.name} does not hold: {name_list(missing)}; mergekit cannot "
            f"read this checkpoint with any method ({reason})"
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
            f"({checkpoint.config.architecture})"
        )
    elif lost:
        LOG.warning(
            "mergekit's definition of %s leaves %d tensors of %s out of the output: %s",
            checkpoint.config.architecture,
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
                f"{checkpoint.name} has no {weight.name}, and its config does not tie it to "
                f"{' or '.join(weight.tied_names)} (tie_word_embeddings: false); get the whole "
                "checkpoint, or set tie_word_embeddings: true if it was trained so"
            )


def _names(weight: Any) -> tuple[str, ...]:
    return (weight.name, *(weight.aliases or ()), *(weight.tied_names or ()))


def _conversion_names(model_type: str, stored: Iterable[str]) -> list[set[str]]:
    """Return, for each stored name, every name that mergekit's conversion can give its tensor.

    mergekit converts by the rules with which transformers loads (`conversion_mapping`), so that
    `block_sparse_moe.experts.0.w1.weight` becomes a part of `mlp.experts.gate_up_proj`.
    """
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    rules = get_checkpoint_conversion_mapping(model_type) or []
    found = []
    for name in stored:
        names = {name}
        for rule in rules:
            for known in sorted(names):
                renamed, pattern = rule.rename_source_key(known)
                if pattern is not None:
                    names |= {
                        renamed.replace(rule.target_patterns[0], target, 1)
                        for target in rule.target_patterns
                    }
        found.append(names)
    return found
