"""A recipe merged from the files of its models to a folder, from file to file.

`layerswap merge` and `mergekit-yaml` end here; neither mergekit nor transformers is imported.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from layerswap_method.checkpoint.lora import is_lora, read_adapter_config, unsupported_kind
from layerswap_method.errors import InputError, NeedsMergekit
from layerswap_method.hub.downloads import Downloads, download_choice
from layerswap_method.methods.merges import merge_models
from layerswap_method.methods.read import RecipeFile, read_recipe
from layerswap_method.output import (
    PLAN_FILES,
    check_output,
    output_folder,
    sync_folder,
    temporary_output,
)
from layerswap_method.progress import Bar, no_bar
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.pinned import commits, pinned_text, with_commits
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import MIXES, Merge
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

    `shard_bytes` is the largest size of a file. With `verify`, what is written is read again and
    compared with its sources, and copied values that are not finite are a warning. `device` is
    torch's. With `resume`, finished files of an interrupted merge are used, and left if this one
    stops. The card is README.md and mergekit_config.yml.
    """

    shard_bytes: int = SHARD_BYTES
    threads: int = 1
    verify: bool = False
    device: str = "cpu"
    resume: bool = False
    with_tokenizer: bool = True
    with_card: bool = True


def open_downloads(
    recipe: Recipe, download: str | None = None, cache_dir: str | None = None
) -> Downloads:
    """Return what fetches of the models of a recipe what it reads.

    `download` is a `hub.downloads.Download`, None the one of the environment.
    """
    return Downloads(download_choice(download), cache_dir, why_whole=recipe.why_whole())


def find_models(recipe: Recipe, find: Callable[[str], Model]) -> dict[str, Model]:
    """Return reference -> where each model of a recipe is.

    Raises `NeedsMergekit` where files are not enough for the recipe or for one of its adapters.
    """
    if (reason := recipe.why_mergekit()) is not None:
        raise NeedsMergekit(reason)
    models = {reference: find(reference) for reference in recipe.references}
    for reference, model in models.items():
        if model.adapter is not None and is_lora(model.adapter):
            kind = unsupported_kind(read_adapter_config(model.adapter))
            if kind is not None:
                raise NeedsMergekit(
                    f"the adapter of {reference} is more than low-rank changes: {kind}"
                )
    return models


def merge_file(
    file: RecipeFile,
    out_path: str,
    find: Callable[..., Model],
    options: WriteOptions = WriteOptions(),
    bar: Bar = no_bar,
    download: str | None = None,
) -> Iterator[str]:
    """Find the models of a recipe; return the lines of `write_merge`, which then merges it.

    `find` takes a reference and `hub`; `download` is as in `open_downloads`. Raises `NeedsMergekit`
    where only mergekit can merge it, `InputError` where it is wrong.
    """
    recipe = read_recipe(file.document)
    hub = open_downloads(recipe, download)
    models = find_models(recipe, functools.partial(find, hub=hub))
    return write_merge(
        recipe,
        models,
        out_path,
        document=file.document,
        text=file.text,
        options=options,
        bar=bar,
        hub=hub,
    )


def prepare_merge(
    recipe: Recipe,
    models: Mapping[str, Model],
    hub: Downloads | None = None,
    bar: Bar = no_bar,
) -> Merge:
    """Return the merge of a recipe when every byte that it reads is on this machine.

    `hub` fetches what is missing of partial models, also what is read to plan the merge (whether a
    tied output embedding is the input embedding).
    """
    if hub is None:
        return merge_models(recipe, models)
    with hub.fetching(bar):
        merge = merge_models(recipe, models)
    hub.fetch(merge.ranges, bar)
    return merge


def write_merge(
    recipe: Recipe,
    models: Mapping[str, Model],
    out_path: str,
    *,
    document: Mapping[str, Any],
    text: str,
    options: WriteOptions = WriteOptions(),
    bar: Bar = no_bar,
    hub: Downloads | None = None,
) -> Iterator[str]:
    """Merge, and yield lines for the log; the output folder appears when it is whole.

    `document` is the recipe as YAML gives it, `text` as its author wrote it, for the card. `bar`
    shows progress in bytes. `hub` fetches what is missing of the models. Raises `InputError` for
    what does not fit, `LayerSwapError` where something cannot be written.
    """
    out = output_folder(out_path)
    check_output(out, [path for model in models.values() for path in model.folders])
    check_device(options.device)
    merge = prepare_merge(recipe, models, hub, bar)
    for warning in merge.warnings:
        LOG.warning("%s", warning)
    needs_code = needs_remote_code(merge.donor)
    list(donor_files(merge.donor, with_tokenizer=options.with_tokenizer))  # raises before a write
    revisions = commits(models)
    lines = [*merge.lines]
    if hub is not None:
        lines += hub.checked_lines(merge.ranges)
    record = with_commits(merge.record, revisions)
    text = pinned_text(text, revisions) if revisions else text
    yield from lines
    # The key names the temporary folder: the same merge to the same place goes through one.
    mixes = MIXES.dump_json(dict(merge.tensors)).decode()
    content = f"{out}\0{options.shard_bytes}\0{options.device}\0{mixes}"
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    with temporary_output(out, key, resume=options.resume) as folder:
        layout = lay_out_files(
            merge, folder, options.shard_bytes, lambda text: LOG.warning("%s", text)
        )
        with bar("writing", layout.nbytes) as advance:
            write_files(
                layout,
                threads=options.threads,
                device=options.device,
                resume=options.resume,
                advance=advance,
            )
        if options.verify:
            with bar("verifying", layout.nbytes) as advance:
                verify_files(
                    layout,
                    threads=options.threads,
                    device=options.device,
                    advance=advance,
                    warn=lambda text: LOG.warning("%s", text),
                )
        write_config(merge.donor, folder, merge.dtype, merge.config)
        copy_files(merge.donor, folder, with_tokenizer=options.with_tokenizer)
        if record:
            write_json(folder / PLAN_FILES[str(record["merge_method"])], record)
        if options.with_card:
            card = card_text(document, text, out.name, lines, needs_code=needs_code)
            write_synced_text(folder / "README.md", card)
            write_synced_text(folder / "mergekit_config.yml", text)
        sync_folder(folder)
    sync_folder(out.parent)
    checked = ", read again and compared" if options.verify else ""
    yield f"{out}: {len(merge.tensors)} tensors in {layout.nbytes / 1e9:.3g} GB{checked}"


def check_device(device: str) -> None:
    """Check that tensors can be computed on a device."""
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
    if not torch.cuda.is_available():
        raise InputError(
            f"device {device}: there is no GPU that torch {torch.__version__} can use; leave it "
            "out to use the processor"
        )
    count = torch.cuda.device_count()
    if place.index is not None and place.index >= count:
        raise InputError(f"device {device}: there is no such GPU; the last is cuda:{count - 1}")
