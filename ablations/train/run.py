"""`layerswap train`: from a configuration to an expert. Knows the steps and their order."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import fingerprint_checkpoint
from ablations.machine.locks import holder, remove_unused, try_claim
from ablations.machine.whole_files import check_place
from ablations.models.find import find_model
from ablations.train.config import TrainConfig, identity_of
from ablations.train.finish import finish
from ablations.train.folder import SavedCheckpoint, TrainingFolder
from ablations.train.regime import ADAPTERS
from ablations.train.rows import Mix, mix_rows
from ablations.train.select import check_select
from layerswap_method.errors import InputError

logger = logging.getLogger(__name__)

LOCK = ".lock"
_VERSIONS = ("torch", "transformers", "accelerate", "tokenizers", "safetensors")


def train_expert(
    config: TrainConfig,
    out: Path,
    *,
    on_step: Callable[[int, float], None] | None = None,
    keep_checkpoints: bool = True,
) -> dict[str, Any]:
    """Train an expert and return what its `training.json` says.

    A run that was stopped goes on from its last checkpoint and gives the same weights. A finished
    one is left as it is.

    Args:
        config: of `read_config`.
        out: folder of the run; the expert is in it when all is done.
        on_step: called after every step with the number of steps done and the loss, in place of a
            bar; in each of several processes.
        keep_checkpoints: whether they stay when the expert is finished.

    Raises:
        InputError: for what is wrong with the data, the base or the folder.
        LayerSwapError: where the loss is not finite, or something cannot be written.
    """
    check_installed()
    base = find_model(config.base)
    if base.adapter is not None:
        raise InputError(
            f"base: {config.base} is a base with an adapter; merge it first, and give the folder"
        )
    if config.save_dtype != "float32":
        logger.warning(
            "save_dtype is %s: changes smaller than half a step of that format are lost, which is "
            "most of a light fine-tune. float32 keeps them.",
            config.save_dtype,
        )
    from ablations.train.trainer import processes

    if config.select is not None:
        check_select(config.select)
    state = processes()
    folder = TrainingFolder(out)
    with _claimed(folder, state.process_index):
        with state.main_process_first():  # which downloads, and sweeps the folder
            mix = mix_rows(config)
            record = folder.read()
            if state.is_main_process:
                record = folder.open(_identity(config, base.folder, mix))
            resume = folder.resumable()
        if record.get("finished"):
            logger.info("%s: is finished, nothing to do", out)
            return record
        _train(config, base.folder, mix, folder, resume, on_step)
        if not state.is_main_process:
            return record
        record |= {
            "config": config.model_dump(mode="json"),
            "rows_by_source": mix.counts,
            "losses": folder.losses() or record.get("losses", []),
            "processes": state.num_processes,
            "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
        }
        folder.write(record)
        record = finish(config, base, mix.held_out, folder, record)
        if not keep_checkpoints:
            # The expert's files are links to the last one: this frees the others' room.
            shutil.rmtree(folder.checkpoints_dir, ignore_errors=True)
        return record


def check_installed() -> None:
    """Check that what training needs is there.

    Raises:
        InputError: where it is not, with the command that installs it.
    """
    missing = [
        name
        for name in ("accelerate", "peft", "datasets")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise InputError(
            f"training needs {', '.join(missing)}; install it by: pip install 'layerswap[train]'"
        )


def _identity(config: TrainConfig, base: Path, mix: Mix) -> dict[str, Any]:
    """Return what decides the weights: the content of base and data, not where they are."""
    settings = identity_of(config)
    rows = json.dumps([mix.train, mix.held_out], ensure_ascii=False)
    return {
        **{name: value for name, value in settings.items() if name not in ("base", "data")},
        "base_weights": fingerprint_checkpoint(base),
        "rows": hashlib.sha256(rows.encode()).hexdigest(),
    }


def _train(
    config: TrainConfig,
    base: Path,
    mix: Mix,
    folder: TrainingFolder,
    resume: SavedCheckpoint | None,
    on_step: Callable[[int, float], None] | None,
) -> None:
    """Train unless the last checkpoint is there."""
    from transformers import set_seed

    from ablations.train.model import (
        load_base,
        load_tokenizer,
        prepare,
    )
    from ablations.train.sequences import Sequences, encode
    from ablations.train.trainer import plan_steps, train

    tokenizer = load_tokenizer(base)
    encoded = encode(
        mix.train,
        tokenizer,
        template=config.template,
        separator=config.separator,
        max_length=config.max_length,
    )
    if encoded.cut or encoded.dropped:
        logger.warning(
            "%d of %d rows are longer than max_length (%d tokens) and were cut; %d rows were left "
            "out because no token of an answer was left",
            *(encoded.cut, len(mix.train), config.max_length, encoded.dropped),
        )
    if not encoded.rows:
        raise InputError("no row is left to train on; set max_length higher")
    sequences = Sequences(encoded.rows)
    plan = plan_steps(sequences, config.batch_size, config.save_every)
    if any(each.step == plan.steps for each in folder.checkpoints()):
        return
    if resume is not None:
        logger.info("going on from %s (%d samples)", resume.folder, resume.samples)
    set_seed(config.seed)
    model = prepare(load_base(base), config.regime)
    is_adapter = isinstance(config.regime, ADAPTERS)
    padding = next(
        (i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0
    )
    logger.info(
        "%d rows, %d steps of %d",
        *(len(encoded.rows), plan.steps, config.batch_size),
    )
    train(
        model,
        sequences,
        config,
        folder,
        padding=padding,
        donor=None if is_adapter else base,
        resume=resume,
        on_step=on_step,
    )


@contextmanager
def _claimed(folder: TrainingFolder, rank: int) -> Iterator[None]:
    """Hold the folder for this run; the first of several processes does so for all.

    Raises:
        InputError: where another run holds it.
    """
    if rank:
        yield
        return
    check_place(folder.root / LOCK)
    is_new = not folder.root.exists()
    claim = try_claim(folder.root, LOCK)
    if claim is None:
        raise InputError(
            f"{folder.root}: another run is writing to it ({holder(folder.root, LOCK)}); wait for "
            "it to end"
        )
    try:
        yield
    finally:
        claim.release()
        if is_new:
            remove_unused(folder.root, LOCK)
