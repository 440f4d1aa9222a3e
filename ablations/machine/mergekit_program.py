"""Runs mergekit's own console program in a process of its own. Imports no mergekit.

So what is merged here is what a user gets who types the same command: no wrapper, no flag.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ablations.machine.whole_files import replaced_folder, write_text
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.output import PLAN_FILE, REVERT_PLAN_FILE

FINGERPRINT_FILE = "layerswap_merge.key"
_TAIL_LINES = 15


def mergekit_yaml() -> list[str]:
    """Return the command of `mergekit-yaml` of this Python environment."""
    program = Path(sys.executable).parent / "mergekit-yaml"
    if program.is_file():
        return [str(program)]
    return [sys.executable, "-m", "mergekit.scripts.run_yaml"]


def merge(recipe: Path, out: Path, *, fingerprint: str, options: Sequence[str] = ()) -> bool:
    """Merge `recipe` into the folder `out`, unless `out` holds the same merge already.

    mergekit's output goes to ``OUT.log``. The folder appears when it is whole.

    Args:
        recipe: a mergekit recipe; relative paths in it are taken from the working directory.
        out: folder of the merged checkpoint; an older merge in it is replaced.
        fingerprint: of everything the result depends on.
        options: further options of mergekit-yaml.

    Returns:
        Whether a merge was run.

    Raises:
        InputError: when mergekit-yaml refuses the recipe (exit code 2).
        LayerSwapError: when it fails otherwise; with the end of its output.
    """
    mark = out / FINGERPRINT_FILE
    if mark.is_file() and mark.read_text(encoding="utf-8") == fingerprint:
        return False
    with replaced_folder(out) as fresh:
        command = [*mergekit_yaml(), str(recipe), str(fresh), *options]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        write_text(out.with_suffix(".log"), done.stdout)
        if done.returncode:
            tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
            kind = InputError if done.returncode == 2 else LayerSwapError
            raise kind(
                f"mergekit-yaml {recipe} failed with exit code {done.returncode}; "
                f"all of its output is in {out.with_suffix('.log')}. It ended with:\n{tail}"
            )
        (fresh / FINGERPRINT_FILE).write_text(fingerprint, encoding="utf-8")
    return True


def read_measured(merged: Path) -> dict[str, Any]:
    """Return what a merge of ours measured of the experts' changes, as provenance."""
    for name in (PLAN_FILE, REVERT_PLAN_FILE):
        if (merged / name).is_file():
            return measured_of(json.loads((merged / name).read_text(encoding="utf-8")))
    return {}


def measured_of(
    record: Mapping[str, Any], names: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Return what the record of a merge says of the experts' changes, as provenance.

    `names` has the experts' names by their references, to be written in their place.
    """
    if record.get("merge_method") == "delta_revert":
        return {"measured": {key: record[key] for key in ("base_model", "threshold", "kept")}}
    if (deltas := record.get("deltas")) is None:
        return {}
    weights = [
        {**row, "model": names.get(row["model"], row["model"])} for row in deltas.get("weights", ())
    ]
    return {"measured": {**deltas, **({"weights": weights} if weights else {})}}
