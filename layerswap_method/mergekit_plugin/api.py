"""Small things asked of mergekit (0.1.5). Knows mergekit, not layer swapping.

Every import sits in the function that needs it: the registration hook runs while mergekit is
only half imported, so nothing here may be loaded before it is called for.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def chat_templates() -> tuple[str, ...]:
    """Return the names of the chat templates that mergekit ships."""
    import importlib.resources

    from mergekit._data import chat_templates as folder

    files = importlib.resources.files(folder).iterdir()
    return tuple(sorted(f.name[:-6] for f in files if f.name.endswith(".jinja")))


def method_names() -> tuple[str, ...]:
    """Return the names of the merge methods that mergekit knows; ours only where registered."""
    from mergekit.merge_methods.registry import registered_methods

    return tuple(method.spec.name for method in registered_methods())


def parse_recipe(document: Mapping[str, Any]) -> Any:
    """Return mergekit's `MergeConfiguration` of a recipe; raises what mergekit raises."""
    from mergekit.config import MergeConfiguration

    return MergeConfiguration.model_validate(dict(document))


def recipe_fields() -> dict[str, tuple[str, ...]]:
    """Return the keys mergekit knows: of a recipe, of its blocks, and of entries of its lists."""
    from mergekit.config import (
        InputModelDefinition,
        InputSliceDefinition,
        MergeConfiguration,
        OutputModuleDefinition,
        OutputSliceDefinition,
    )
    from mergekit.tokenizer.config import (
        ModelTokenEmbedding,
        TokenEmbeddingConfig,
        TokenizerConfig,
        ZeroEmbedding,
    )

    return {
        "recipe": tuple(MergeConfiguration.model_fields),
        "models": tuple(InputModelDefinition.model_fields),
        "slices": tuple(OutputSliceDefinition.model_fields),
        "sources": tuple(InputSliceDefinition.model_fields),
        "modules": tuple(OutputModuleDefinition.model_fields),
        "tokenizer": tuple(TokenizerConfig.model_fields),
        "tokens": tuple(TokenEmbeddingConfig.model_fields),
        "model_token": tuple(ModelTokenEmbedding.model_fields),
        "zero": tuple(ZeroEmbedding.model_fields),
    }


def architecture_of(config: Any) -> Any:
    """Return mergekit's architecture for a transformers config; None where it has no definition."""
    from mergekit.architecture import arch_info_for_config

    return arch_info_for_config(config)


def architecture_for_recipe(merge_config: Any, options: Any) -> Any:
    """Return the architecture mergekit will use, inferred from the checkpoints where it must be."""
    from mergekit.architecture import get_architecture_info

    return get_architecture_info(merge_config, options)


def conversion_names(model_type: str, stored: Iterable[str]) -> list[set[str]]:
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


def loaded_as_stored(gather: Any) -> Any:
    """Return mergekit's loading task without its cast; it may stand inside one that aligns."""
    if hasattr(gather, "gather_tensors"):
        inner = loaded_as_stored(gather.gather_tensors)
        return gather.model_copy(update={"gather_tensors": inner})
    return gather.model_copy(update={"dtype": None})


def forget_loaders() -> None:
    """Drop the checkpoints that mergekit keeps open for the life of a process.

    It keys them by the reference alone, so a folder written anew between two merges of one
    process, or an adapter merged into another cache, would be read as it was.
    """
    from mergekit.io.tasks import LoaderCache

    LoaderCache.loaders.clear()


def merged_reference(reference: Any, options: Any) -> Any:
    """Return `reference` with its adapter, if any, merged into the LoRA cache.

    A merge of the adapter that fails leaves no folder in the cache: mergekit would take it for a
    finished copy next time.
    """
    copy = None
    if reference.lora is not None:
        names = (reference.model._unique_id(), reference.lora._unique_id())
        copy = Path(options.lora_merge_cache) / "_".join(names)
    made_here = copy is not None and not copy.exists()
    try:
        return reference.merged(
            cache_dir=options.lora_merge_cache,
            trust_remote_code=options.trust_remote_code,
            lora_merge_dtype=options.lora_merge_dtype,
        )
    except BaseException:
        if copy is not None and made_here:
            shutil.rmtree(copy, ignore_errors=True)
        raise
