"""A model of a study as a checkpoint on disk, for as long as it is needed."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.progress import Step, tell
from ablations.machine.whole_files import write_text
from ablations.runner.work import Work
from ablations.study.documents import with_references
from layerswap_method.errors import InputError

if TYPE_CHECKING:
    from ablations.runner.engines import EngineSetup

logger = logging.getLogger(__name__)


@contextmanager
def checkpoint_of(setup: EngineSetup, work: Work) -> Iterator[tuple[Path, float]]:
    """Yield the work's checkpoint and the seconds it took; what was merged vanishes after."""
    single = setup.single(work.merge)
    if single is not None and single.adapter is None:
        yield single.folder, 0.0
        return
    folder = setup.work / work.weights_key
    recipe = setup.work / f"{work.weights_key}.yml"
    started = time.monotonic()
    killed = setup.work.glob(f".layerswap-*.partial/{work.weights_key}")
    for left in [*setup.work.glob(f".{work.weights_key}*"), *(p.parent for p in killed)]:
        shutil.rmtree(left, ignore_errors=True)
    try:
        references = {ref: expert.reference for ref, expert in setup.experts.items()}
        document = with_references(work.merge, references)
        write_text(recipe, yaml.safe_dump(document, sort_keys=False))
        tell(Step("merging to disk"))
        if not _merged_from_files(setup, recipe, folder):
            _merge_by_mergekit(setup, work, recipe, folder)
        yield folder, time.monotonic() - started
        folder.with_suffix(".log").unlink(missing_ok=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        recipe.unlink(missing_ok=True)


def _merged_from_files(setup: EngineSetup, recipe: Path, folder: Path) -> bool:
    """Merge without mergekit, if it can be done so; return whether it was."""
    from layerswap_method.merge import find_models, write_merge
    from layerswap_method.methods.read import read_recipe_file, recipe_by_files

    experts = {expert.reference: expert for expert in setup.experts.values()}
    try:
        file = read_recipe_file(recipe)
        given = recipe_by_files(file.document)
        models = "" if given is None else find_models(given, experts.__getitem__)
        if given is None or isinstance(models, str):
            return False
        for _ in write_merge(given, models, str(folder), document=file.document, text=file.text):
            pass
    except InputError as error:  # some kinds of adapters: mergekit merges them, or says more
        logger.info("  %s", error.message)
        return False
    return True


def _merge_by_mergekit(setup: EngineSetup, work: Work, recipe: Path, folder: Path) -> None:
    from ablations.machine.mergekit_program import merge

    adapters = any(expert.adapter is not None for expert in setup.used(work.merge))
    cache = ["--lora-merge-cache", str(_adapter_cache(setup))] if adapters else []
    merge(recipe, folder, fingerprint=work.weights_key, options=cache)


def _adapter_cache(setup: EngineSetup) -> Path:
    """Return the folder for adapters merged into their bases; older experts' copies go.

    mergekit takes the copy that it finds, whatever has become of the adapter since.
    """
    folder = setup.work / "adapters" / fingerprint_of(**setup.states)
    for other in folder.parent.glob("*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder
