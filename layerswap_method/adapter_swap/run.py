"""`layerswap swap-adapters`: a recipe of adapters read, and the new adapter written to a folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layerswap_method.adapter_swap.card import adapter_card_text
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import read_adapter_config
from layerswap_method.checkpoint.stored import StoredTensor, same_content
from layerswap_method.errors import InputError, size_text
from layerswap_method.file_names import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from layerswap_method.hub.downloads import Downloads, download_choice
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.layer_swap_merge import swap_lines, swap_record
from layerswap_method.methods.read import RecipeFile, read_recipe
from layerswap_method.methods.table import merge_models
from layerswap_method.output import PLAN_FILE, check_output, claim_output, output_folder
from layerswap_method.progress import Log
from layerswap_method.recipe.pinned import commits, with_commits
from layerswap_method.recipe.references import Model, is_there
from layerswap_method.write.files import write_json, write_synced_text

if TYPE_CHECKING:
    from layerswap_method.adapter_swap.adapters import NewAdapter

LOG = logging.getLogger("layerswap")

_KINDS = ("LORA", "PREFIX_TUNING")
"""Kinds of adapters that can be swapped, as peft calls them."""


def swap_adapters(
    file: RecipeFile, find: Callable[..., Model], out_path: str, log: Log, rank: int | None = None
) -> None:
    """Write the adapter of a `layer_swap` recipe, and log how.

    `find` takes a reference and `hub`; of a base on the hub only the headers are fetched. `rank` is
    the highest rank of a LoRA adapter's changes; None leaves all exact. Raises
    `InputError` for a recipe, models or a folder that are wrong, `LayerSwapError` where something
    cannot be written.
    """
    recipe, out = _read(file), output_folder(out_path)
    if (out / "config.json").is_file():
        raise InputError(f"{out}: the folder holds a whole model; give another folder")
    with claim_output(out) as folder:  # before anything is downloaded
        hub = Downloads(download_choice())
        models = {reference: find(reference, hub=hub) for reference in recipe.references}
        # Where the models are is known only now.
        check_output(out, [path for model in models.values() for path in model.folders])
        adapter, plan, record, lines = _swap(recipe, models, hub, rank)
        for line in (*lines, *adapter.lines):
            log(line)
        if recipe.written_dtype is not None:
            dtype = recipe.written_dtype
            log(f"dtype {dtype} is for merged weights; the adapter has its experts'")
        from safetensors.torch import save

        reference = str(recipe.base_model).partition("+")[0]
        reference = os.path.expanduser(reference)  # noqa: PTH111 - peft does not
        hub_id, _, revision = reference.partition("@")
        base_name, revision = (reference, "") if is_there(reference) else (hub_id, revision)
        origin = {"base_model_name_or_path": base_name, "revision": revision or None}
        (folder / ADAPTER_WEIGHTS).write_bytes(save(dict(adapter.tensors), {"format": "pt"}))
        write_json(folder / ADAPTER_CONFIG, {**origin, **adapter.config})
        write_json(folder / PLAN_FILE, record)
        card = adapter_card_text(out.name, base_name, revision, record, plan)
        write_synced_text(folder / "README.md", card)
    nbytes = sum(tensor.nbytes for tensor in adapter.tensors.values())
    log(f"{out_path}: {size_text(nbytes)}")


def _swap(
    recipe: LayerSwapRecipe, models: Mapping[str, Model], hub: Downloads, rank: int | None
) -> tuple[NewAdapter, LayerPlan, Mapping[str, Any], Sequence[str]]:
    """Return the new adapter, its layer plan, the content of its plan file, and lines for log."""
    base = models[str(recipe.base_model)]
    configs = {
        model.name: read_adapter_config(model.adapter)
        for model in models.values()
        if model.adapter is not None
    }
    kind = _kind(configs)
    bases = {model.folder for model in models.values()}
    hub.fetch_whole(model.adapter for model in models.values() if model.adapter is not None)
    hub.fetch_whole(bases if len(bases) > 1 else ())  # copies of the base, which are compared
    _check_one_base(base, models)
    from layerswap_method.adapter_swap.adapters import swap_lora, swap_prefixes

    if kind == "LORA":
        with hub.fetching():
            merge = merge_models(recipe, models)
        assert merge.plan is not None
        adapter, plan = swap_lora(merge, next(iter(configs.values())), rank), merge.plan
        record, warnings, lines = dict(merge.record), merge.warnings, merge.lines
    else:
        if rank is not None:
            raise InputError("--rank: a prefix has no rank; drop it")
        depth = read_checkpoint(base.name, base.folder).depth()
        adapter, plan = swap_prefixes(recipe, models, depth)
        record = swap_record(recipe, plan)
        warnings, lines = tuple(recipe.plan_warnings(plan)), tuple(swap_lines(record))
    for warning in warnings:
        LOG.warning("%s", warning)
    record = {**with_commits(record, commits(models)), "adapter": adapter.record}
    return adapter, plan, record, lines


def _read(file: RecipeFile) -> LayerSwapRecipe:
    recipe = read_recipe(file.document)
    if not isinstance(recipe, LayerSwapRecipe):
        raise InputError(f"{file.name}: swap-adapters knows layer_swap only")
    if (reason := recipe.why_mergekit()) is not None:
        raise InputError(f"{file.name}: {reason}, which has no effect on adapters; drop it")
    return recipe


def _kind(configs: Mapping[str, Mapping[str, Any]]) -> str:
    if not configs:
        raise InputError(
            "swap-adapters: no model of the recipe is BASE+ADAPTER; layerswap merge merges models"
        )
    kinds = {name: str(config.get("peft_type")) for name, config in configs.items()}
    problems = [
        f"{name}: peft_type is {kind}; known are {' and '.join(_KINDS)}"
        for name, kind in kinds.items()
        if kind not in _KINDS
    ]
    if not problems and len(set(kinds.values())) > 1:
        adapters = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        problems.append(f"the adapters must be of one kind: {adapters}")
    InputError.raise_any("swap-adapters", problems)
    return next(iter(kinds.values()))


def _check_one_base(base: Model, models: Mapping[str, Model]) -> None:
    """Check that all models are adapters on the base's checkpoint; copies of it are compared."""
    base_tensors = read_checkpoint(base.name, base.folder).tensors
    folders = {model.folder.resolve(): reference for reference, model in models.items()}
    for folder, reference in folders.items():
        if folder == base.folder.resolve():
            continue
        differing = _first_difference(base_tensors, read_checkpoint(reference, folder).tensors)
        if differing is not None:
            raise InputError(
                f"swap-adapters: {reference} is not the base_model {base.name} with an adapter: "
                f"{differing} differs; adapters can only be swapped on one base (layerswap merge "
                "merges whole models)"
            )


def _first_difference(
    base: Mapping[str, StoredTensor], copy: Mapping[str, StoredTensor]
) -> str | None:
    """Return the name of a tensor that is not the same in both; None where all are."""
    if base.keys() != copy.keys():
        return min(base.keys() ^ copy.keys())
    for name, tensor in base.items():
        if not same_content(tensor, copy[name]):
            return name
    return None
