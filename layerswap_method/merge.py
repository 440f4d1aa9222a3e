"""A recipe merged from the files of its models to a folder, from file to file.

`layerswap merge`, Python and mergekit's `run_merge` end here. mergekit is not imported, and
transformers only where configs are not written alike.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from layerswap_method.errors import InputError, size_text
from layerswap_method.file_names import MERGED_RECIPE
from layerswap_method.hub.downloads import Downloads, download_choice
from layerswap_method.methods.read import RecipeFile, read_recipe
from layerswap_method.methods.table import METHODS, merge_models, why_mergekit
from layerswap_method.output import (
    check_output,
    claim_output,
    output_folder,
    sync_folder,
)
from layerswap_method.progress import Bar, Log, no_bar
from layerswap_method.recipe.pinned import commits, pinned_text, with_commits
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import Merge
from layerswap_method.threads import usable_cores
from layerswap_method.write.card import card_text
from layerswap_method.write.donor_files import (
    copy_files,
    donor_files,
    needs_remote_code,
    write_config,
)
from layerswap_method.write.files import verify_files, write_files, write_json, write_synced_text
from layerswap_method.write.layout import SHARD_BYTES, lay_out_files

LOG = logging.getLogger("layerswap")


@dataclass(frozen=True)
class WriteOptions:
    """Options of writing a merge. On the CPU none of them changes a tensor.

    `shard_bytes` is the largest size of a file. `threads` tensors are written at once, by default
    as many as there are processors, at most 4. With `verify`, what is written is read again and
    compared with its sources, and copied values that are not finite are a warning. `device` is
    torch's. The card is README.md and mergekit_config.yml.
    """

    shard_bytes: int = SHARD_BYTES
    threads: int | None = None
    verify: bool = False
    device: str = "cpu"
    with_tokenizer: bool = True
    with_card: bool = True


class FindModel(Protocol):
    """Finds models."""

    def __call__(self, reference: str, *, hub: Downloads) -> Model:
        """Return the model of a reference; `hub` fetches what is read of one on the hub."""


def merge_from_files(
    file: RecipeFile,
    out_path: str,
    find: FindModel,
    log: Log,
    options: WriteOptions = WriteOptions(),
    *,
    bar: Bar = no_bar,
    download: str | None = None,
    cache_dir: str | None = None,
) -> str | None:
    """Merge a recipe, and log how; or return why only mergekit can, where nothing was written.

    The output folder appears when it is whole. `bar` shows progress in bytes. `download` is a
    `hub.downloads.Download`, None the one of the environment; `cache_dir` is as in `Downloads`.
    Raises `InputError` for what is wrong or does not fit, for an output folder before anything is
    downloaded; `LayerSwapError` where something cannot be written.
    """
    recipe, out = read_recipe(file.document), output_folder(out_path)
    check_device(options.device)
    check_output(out)  # before anything is downloaded; the claim checks what is there by then
    if (reason := recipe.why_mergekit()) is not None:
        return reason
    hub = Downloads(download_choice(download), cache_dir, why_whole=recipe.why_whole())
    models = {reference: find(reference, hub=hub) for reference in recipe.references}
    if (reason := why_mergekit(recipe, models)) is not None:  # of adapters, too
        return reason
    with claim_output(out, [path for model in models.values() for path in model.folders]) as folder:
        with hub.fetching(bar):  # what is read below is fetched then
            merge = merge_models(recipe, models)  # each model is opened once, and let go here
        donor_files(merge.donor_folder)  # before the weights are downloaded
        hub.fetch(merge.ranges, bar)
        for warning in merge.warnings:
            LOG.warning("%s", warning)
        revisions = commits(models)
        merge = replace(
            merge,
            record=with_commits(merge.record, revisions),
            lines=(*merge.lines, *hub.checked_lines(merge.ranges)),
        )
        texts = _card_files(file, merge, revisions, out.name) if options.with_card else {}
        for line in merge.lines:
            log(line)
        if (plan_file := METHODS[recipe.merge_method].plan_file) is not None:
            write_json(folder / plan_file, merge.record)
        nbytes = write_merge(merge, folder, options, texts, bar)
    sync_folder(out.parent)
    checked = ", read again and compared" if options.verify else ""
    log(f"{out}: {len(merge.tensors)} tensors in {size_text(nbytes)}{checked}")
    return None


def _card_files(
    file: RecipeFile, merge: Merge, revisions: Mapping[str, str], title: str
) -> dict[str, str]:
    """Return the model card and the recipe, with the commits of its models: name -> content."""
    text = pinned_text(file.text, revisions) if revisions else file.text
    needs_code = needs_remote_code(merge.donor_config, merge.donor_folder)
    card = card_text(file.document, text, title, merge.lines, needs_code=needs_code)
    return {"README.md": card, MERGED_RECIPE: text}


def write_merge(
    merge: Merge,
    folder: Path,
    options: WriteOptions,
    texts: Mapping[str, str] = MappingProxyType({}),
    bar: Bar = no_bar,
) -> int:
    """Write a merge into a folder; return the bytes of its weight files.

    `texts` are further files: name -> content. Raises `InputError` for a file of the donor that
    leads out of its folder, before anything is written.
    """
    copied = donor_files(merge.donor_folder, with_tokenizer=options.with_tokenizer)
    layout = lay_out_files(merge, folder, options.shard_bytes, _warn)
    threads = min(4, usable_cores()) if options.threads is None else options.threads
    with bar("writing", layout.nbytes) as advance:
        write_files(layout, threads=threads, device=options.device, advance=advance)
    if options.verify:
        with bar("verifying", layout.nbytes) as advance:
            verify_files(
                layout, threads=threads, device=options.device, advance=advance, warn=_warn
            )
    write_config(merge.donor_config, folder, merge.dtype, merge.config_changes)
    copy_files(copied, merge.donor_folder, folder)
    for name, text in texts.items():
        write_synced_text(folder / name, text)
    sync_folder(folder)
    return layout.nbytes


def _warn(text: str) -> None:
    LOG.warning("%s", text)


def check_device(device: str) -> None:
    """Check that tensors can be computed on a device: the processor, or a GPU of CUDA."""
    if device == "cpu":
        return
    import torch

    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise InputError(
            f"device {device}: torch knows no such device; write cpu, cuda, or cuda:0 for the "
            "first GPU"
        ) from error
    if place.type != "cuda":
        raise InputError(
            f"device {device}: averages are computed on the processor or on a GPU of CUDA; write "
            "cpu, cuda, or cuda:0 for the first GPU"
        )
    if not torch.cuda.is_available():
        raise InputError(
            f"device {device}: there is no GPU that torch {torch.__version__} can use; leave it "
            "out to use the processor"
        )
    count = torch.cuda.device_count()
    if place.index is not None and place.index >= count:
        raise InputError(f"device {device}: there is no such GPU; the last is cuda:{count - 1}")
