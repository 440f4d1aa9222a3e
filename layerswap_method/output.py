"""The output folder of a merge: all of it or nothing. Knows files and names; not what is merged."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from layerswap_method.errors import InputError

PLAN_FILE = "layer_swap_plan.json"
"""The layer plan, written beside the weights."""

_WEIGHTS = ("model*.safetensors", "model*.safetensors.index.json", "pytorch_model*.bin*")
_MERGED = (PLAN_FILE, "mergekit_config.yml")
"""Files that only a merge leaves."""


def check_output(out: Path, inputs: Collection[Path]) -> None:
    """Check that a merge may be written to `out`.

    Raises:
        InputError: if `out` is a file, the folder of an input, or holds another model's weights.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: the output path is a file; give a folder")
    if any(out.resolve() == folder.resolve() for folder in inputs):
        raise InputError(f"{out}: the output folder is one of the merge's inputs; give another")
    weights = _weight_files(out)
    if weights and not any((out / name).is_file() for name in _MERGED):
        raise InputError(
            f"{out}: the folder holds weights that no merge has written ({weights[0].name}); give "
            "another folder, or delete them"
        )


@contextmanager
def temporary_output(out: Path) -> Iterator[Path]:
    """Yield a folder beside `out` that becomes `out` when the body ends, and vanishes on failure.

    Files of an existing `out` that the merge does not write stay, as with mergekit itself, but
    for the weights of an earlier merge: transformers would load its `model.safetensors` in place
    of new shards.

    Raises:
        InputError: if `out` is a file.
    """
    check_output(out, ())
    out.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    folder = holder / out.name  # mergekit prints the last part of the path on the model card
    try:
        folder.mkdir()
        yield folder
        if out.is_dir():
            for file in _weight_files(out):
                file.unlink()
            for file in sorted(folder.iterdir()):
                file.replace(out / file.name)
        else:
            folder.replace(out)
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def _weight_files(folder: Path) -> list[Path]:
    return sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))
