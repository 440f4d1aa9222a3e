"""`layerswap harmonize`: models of different architectures, each written in a common one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ablations.harmonize.conversion import Conversion, read_conversion, shape_of
from ablations.harmonize.differences import ComparedField, compare_fields, obstacles
from ablations.harmonize.steps import common_shape, config_of, harmonized, with_rope
from layerswap_method import __version__
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.compatible import own_problems
from layerswap_method.checkpoint.stored import (
    STORED_NAMES,
    StoredTensor,
    memory_of,
    read_tensor,
    torch_dtype,
)
from layerswap_method.errors import InputError
from layerswap_method.output import check_output, claim_output, output_folder
from layerswap_method.progress import Bar, Log, no_bar
from layerswap_method.recipe.references import Model
from layerswap_method.write.donor_files import copy_files, donor_files
from layerswap_method.write.files import write_files, write_json
from layerswap_method.write.layout import (
    SHARD_BYTES,
    TensorToWrite,
    lay_out_tensors,
    written_as_stored,
)

HARMONIZE_FILE = "harmonize.json"
"""The record of what was done to a model, next to its weights."""


def harmonize(
    models: Sequence[Model],
    out_path: str,
    log: Log,
    *,
    dtype: str | None = None,
    force: bool = False,
    shard_bytes: int = SHARD_BYTES,
    bar: Bar = no_bar,
) -> None:
    """Write every model in the common architecture, in a folder below `out_path`, and log how.

    Each model's folder has its name, after that of the folder above (`a-model`) where two names are
    equal, and appears when it is whole. Everything is checked before the first is written.
    `dtype` is torch's for all weights (None leaves each tensor its own). With `force` every model
    gets the first one's RoPE, which changes the others' function. Raises `InputError` for models or
    a folder that do not fit; `LayerSwapError` where something cannot be written.
    """
    out = output_folder(out_path)
    checkpoints = _read(models)
    copied = [donor_files(checkpoint.path) for checkpoint in checkpoints]
    folders = [out / name for name in _folder_names(models)]
    for folder in folders:
        if folders.count(folder) > 1:
            raise InputError(
                f"{folder.name}: two models would be written to the same folder; give each once, "
                "or rename one"
            )
        check_output(folder, [model.folder for model in models])
    rows = compare_fields(checkpoints)
    _check_rows(checkpoints, rows, force=force)
    originals = [read_conversion(checkpoint) for checkpoint in checkpoints]
    common = common_shape([model.shape for model in originals])
    conversions = [harmonized(with_rope(model, originals[0].shape), common) for model in originals]
    if dtype is not None:
        conversions = [model.after(f"written as {dtype}", sizes={}) for model in conversions]
    for model, checkpoint, files, folder in zip(
        conversions, checkpoints, copied, folders, strict=True
    ):
        log(f"{model.name} -> {folder}")
        for note in model.notes or ("nothing to change: copied",):
            log(f"  {note}")
        others = [other.name for other in checkpoints if other.name != checkpoint.name]
        document = checkpoint.document
        record = {
            "schema_version": 1,
            "layerswap_version": __version__,
            "model": model.name,
            "harmonized_with": others,
            "steps": list(model.notes),
            "shape": model.shape.model_dump(mode="json"),
        }
        tensors = checkpoint.tensors
        written_tensors = [
            _tensor_to_write(model, name, tensors[origin], dtype)
            for name, origin in model.origins.items()
        ]
        inputs = {stored.file: stored.stamp for stored in tensors.values()}
        with claim_output(folder) as temporary:
            layout = lay_out_tensors(written_tensors, temporary, shard_bytes, inputs)
            with bar(f"writing {folder.name}", layout.nbytes) as advance:
                write_files(layout, advance=advance)
            copy_files(files, checkpoint.path, temporary)
            write_json(temporary / "config.json", config_of(model.shape, document, dtype))
            write_json(temporary / HARMONIZE_FILE, record)


def _folder_names(models: Sequence[Model]) -> list[str]:
    """Return the last part of each model's path, with the part above it where two are equal."""
    paths = [output_folder(model.name.partition("@")[0]) for model in models]
    counts = Counter(path.name for path in paths)
    return [
        path.name if counts[path.name] == 1 else f"{path.parent.name}-{path.name}" for path in paths
    ]


def _read(models: Sequence[Model]) -> list[Checkpoint]:
    if len(models) < 2:
        raise InputError("harmonize writes models in a common architecture: give two or more")
    for model in models:
        if model.adapter is not None:
            raise InputError(f"{model.name}: an adapter; merge it into its model first")
    checkpoints = [read_checkpoint(model.name, model.folder) for model in models]
    problems = [problem for checkpoint in checkpoints for problem in own_problems(checkpoint)]
    InputError.raise_any("harmonize", problems)
    return checkpoints


def _check_rows(
    checkpoints: Sequence[Checkpoint], rows: Sequence[ComparedField], *, force: bool
) -> None:
    names = [checkpoint.name for checkpoint in checkpoints]
    impossible = [row.field for row in obstacles(rows)]
    problems = []
    for row in rows:
        if row.field in impossible or (row.remedy == "force" and not force):
            values = (f"{name} {value}" for name, value in zip(names, row.values, strict=True))
            problems.append(f"{row.field}: {'; '.join(values)}: {row.advice}")
    InputError.raise_any(f"{' and '.join(names)} cannot be harmonised", problems)


def _tensor_to_write(
    model: Conversion, name: str, stored: StoredTensor, dtype: str | None
) -> TensorToWrite:
    """Return a tensor that is made when it is written; `dtype` as torch calls it, or None."""
    code = STORED_NAMES[dtype] if dtype is not None else stored.dtype
    if model.is_copy(name) and code == stored.dtype:
        return written_as_stored(name, stored)
    shape, written_dtype = shape_of(name, model.shape), torch_dtype(dtype or stored.torch_name)

    def content(device: str) -> Iterator[memoryview]:
        tensor = model.make(name, read_tensor(stored)).to(written_dtype)
        if dtype is not None and not bool(tensor.isfinite().all()):
            raise InputError(f"{model.name}: {name} is not finite as {dtype}; use another --dtype")
        yield memory_of(tensor.contiguous())

    return TensorToWrite(name, code, shape, math.prod(shape) * written_dtype.itemsize, content)
