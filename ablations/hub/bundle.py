"""A run in one file: study, experts, scores, answers and versions, to rerun or to read elsewhere.

bundle.json        what this is, and expert -> hash of its files
study.yml          the study with its recipe, as `layerswap run` takes it
experts.yml        expert -> hub id with its commit, or the folder of the machine that ran it
environment.txt    every installed package, as `pip install -r` takes it
run.json, results.json, records/    the run folder without scratch files
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.whole_files import check_place, told_if_unwritable, write_bytes
from ablations.runner.records import Run, load_run
from ablations.runner.results import RESULTS_FILE
from ablations.runner.run import FINGERPRINTS
from ablations.study.identity import Fingerprints
from layerswap_method import __version__
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import is_folder

ABOUT, STUDY, EXPERTS, ENVIRONMENT = "bundle.json", "study.yml", "experts.yml", "environment.txt"
_RUN = "run.json"
_RECORD = re.compile(r"records/[\w-]+/(record\.json|merge\.yml|samples\.jsonl)")
_MOST_BYTES = 20 * 2**30
"""Of a bundle when it is unpacked; more is no bundle of ours."""

_UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError)
"""What zipfile raises: damage, an encrypted entry (RuntimeError), an unknown compression."""

OWN_CHOICE: Mapping[str, Any] = {
    "evaluate.allow_code_execution": False,
    "evaluate.code_isolation": "bwrap",
}
"""Settings that a bundle's study cannot make: whoever runs it decides which programs run here."""


def is_bundle(path: str | Path) -> bool:
    """Return whether a path names a bundle: a file that ends in .zip."""
    return Path(path).suffix == ".zip" and Path(path).is_file()


def pack(run_folder: Path, out: Path) -> Iterator[str]:
    """Write a run folder as one file, and yield lines about it.

    Args:
        run_folder: of `layerswap run` or `layerswap evaluate`.
        out: the file, ending in ``.zip``.

    Raises:
        InputError: for a folder that is no run or has no scores, or another ending.
        LayerSwapError: where it cannot be written.
    """
    if out.suffix != ".zip":
        raise InputError(f"{out}: write a name that ends in .zip")
    check_place(out)
    run = load_run(run_folder)
    if not run.cells:
        raise InputError(f"{run_folder}: has no scores yet; run it first")
    experts = portable_experts(run)
    hashes = _hashes(run)
    texts = {
        ABOUT: _json(
            {
                "schema_version": 1,
                "layerswap": __version__,
                "study": run.study.name,
                "experts": hashes,
            }
        ),
        STUDY: _yaml(_study(run)),
        EXPERTS: _yaml({"experts": experts}),
        ENVIRONMENT: _environment(),
    }
    files = [run_folder / name for name in (_RUN, RESULTS_FILE) if (run_folder / name).is_file()]
    files += [
        path
        for path in sorted(run_folder.glob("records/*/*"))
        if _RECORD.fullmatch(path.relative_to(run_folder).as_posix())
    ]
    with TemporaryDirectory() as scratch, told_if_unwritable(out):
        made = Path(scratch) / out.name
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, text in texts.items():
                bundle.writestr(_entry(name), text)
            for path in files:
                name = path.relative_to(run_folder).as_posix()
                with bundle.open(_entry(name), "w") as to, path.open("rb") as file:
                    shutil.copyfileobj(file, to)
        write_bytes(out, made.read_bytes())
    local = [
        f"{name} ({place}{f', content {hashes[name][:12]}' if name in hashes else ''})"
        for name, place in experts.items()
        if is_folder(place)
    ]
    if local:
        yield (
            f"note: other people do not have these experts' folders: {', '.join(local)}; they name "
            "their own with --experts FILE. Models of the same content need no new evaluation"
        )
    if (tasks := run.study.evaluate.include_path) is not None:
        yield f"note: the tasks are not in the bundle; to run it again, they must be in {tasks}"
    yield f"{out}: {len(run.cells)} cells, {out.stat().st_size} bytes"


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield a temporary folder with the content of a bundle.

    Raises:
        InputError: for a file that is no bundle, or one that holds anything else.
    """
    with TemporaryDirectory(prefix="layerswap-bundle-") as folder:
        try:
            with zipfile.ZipFile(path) as bundle:
                _check(path, bundle)
                bundle.extractall(folder)
        except _UNREADABLE as error:
            raise InputError(f"{path}: cannot be read as a bundle: {error}") from error
        yield Path(folder)


def portable_experts(run: Run) -> dict[str, str]:
    """Return expert -> reference that means the same elsewhere, where there is one.

    A folder of the hub's cache becomes ``OWNER/NAME@COMMIT``; any other stays.
    """
    return {
        name: "+".join(_portable(part) for part in reference.split("+"))
        for name, reference in run.head.experts.items()
    }


def _hashes(run: Run) -> dict[str, str]:
    """Return expert -> hash of its checkpoint and adapter, where the run folder has it."""
    known = Fingerprints(run.path / FINGERPRINTS)
    found = {}
    for name, reference in run.head.experts.items():
        parts = [known.recorded(Path(part)) for part in reference.split("+")]
        if None not in parts:
            found[name] = fingerprint_of(parts=parts)
    return found


def _portable(place: str) -> str:
    path = Path(place)
    repository = path.parent.parent.name
    if path.parent.name != "snapshots" or not repository.startswith("models--"):
        return place
    return f"{repository.removeprefix('models--').replace('--', '/', 1)}@{path.name}"


def _check(path: Path, bundle: zipfile.ZipFile) -> None:
    names = set(bundle.namelist())
    known = {ABOUT, STUDY, EXPERTS, ENVIRONMENT, _RUN}
    odd = sorted(name for name in names - known - {RESULTS_FILE} if not _RECORD.fullmatch(name))
    lacking = sorted(known - names)
    if odd or lacking:
        what = f"holds {odd[0]!r}" if odd else f"lacks {', '.join(lacking)}"
        raise InputError(f"{path}: is not a bundle of layerswap share: it {what}")
    if sum(entry.file_size for entry in bundle.infolist()) > _MOST_BYTES:
        raise InputError(f"{path}: is not a bundle of layerswap share: it unpacks to over 20 GiB")


def _study(run: Run) -> dict[str, object]:
    study: dict[str, object] = run.study.model_dump(mode="json", exclude_defaults=True)
    return {**study, "experts_file": EXPERTS}


def _environment() -> str:
    found = {
        f"{package.metadata['Name']}=={package.version}"
        for package in importlib.metadata.distributions()
        if package.metadata["Name"]
    }
    return "\n".join(sorted(found, key=str.lower)) + "\n"


def _entry(name: str) -> zipfile.ZipInfo:
    """Return the entry of a file: the same content gives the same bytes."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _json(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _yaml(content: object) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
