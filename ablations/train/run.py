"""`layerswap train`: from a training file to an expert, step by step."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import fingerprint_checkpoint
from ablations.machine.locks import holder, remove_unused, try_claim
from ablations.machine.status_line import status_line
from ablations.machine.whole_files import check_place
from ablations.models.find import find_model
from ablations.train.config import ADAPTERS, Lora, TrainConfig, identity_of
from ablations.train.finish import finish
from ablations.train.folder import (
    CHECKPOINTS,
    open_record,
    read_record,
    read_state,
    remove_partial_checkpoints,
    step_of,
    whole_checkpoints,
    write_record,
)
from ablations.train.rows import Mix, mix_rows
from ablations.train.select import CodeExecution, check_select
from layerswap_method.errors import InputError

logger = logging.getLogger(__name__)

LOCK = ".lock"
_VERSIONS = ("torch", "transformers", "accelerate", "tokenizers", "safetensors")


def train_expert(
    config: TrainConfig,
    out: Path,
    *,
    keep_checkpoints: bool = True,
    code: CodeExecution | None = None,
) -> dict[str, Any]:
    """Train an expert and return what its `training.json` says.

    A run that was stopped goes on from its last checkpoint and gives the same weights. A finished
    one is left as it is.

    Args:
        config: of `read_config`.
        out: folder of the run; the expert is in it when all is done.
        keep_checkpoints: whether they stay when the expert is finished.
        code: how `select` may run the programs that models write; None leaves such tasks out.

    Raises:
        InputError: for what is wrong with the options, the data, the base or the folder.
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
    from ablations.train.model import load_tokenizer, lora_config
    from ablations.train.trainer import processes, training_arguments

    arguments = training_arguments(config, out)
    if isinstance(config.regime, Lora):
        lora_config(config)
    if config.select is not None:
        check_select(config.select, code)
    state = processes()
    with status_line(), _claim(out, is_first=state.is_main_process):
        with state.main_process_first():  # which downloads, and sweeps the folder
            mix = mix_rows(config)
            record = read_record(out)
            if state.is_main_process:
                record = open_record(out, _identity(config, base.folder, mix))
                remove_partial_checkpoints(out)
        if record.get("finished"):
            logger.info("%s: is finished, nothing to do", out)
            return record
        tokenizer = load_tokenizer(base.folder)
        _train(config, arguments, base.folder, tokenizer, mix, out)
        if not state.is_main_process:
            return record
        record |= {
            "config": config.model_dump(mode="json"),
            "rows_by_source": mix.counts,
            "losses": [
                {key: entry[key] for key in ("step", "loss", "grad_norm") if key in entry}
                for entry in (read_state(whole_checkpoints(out)[-1]) or {}).get("log_history", ())
                if "loss" in entry
            ],
            "processes": state.num_processes,
            "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
        }
        write_record(out, record)
        record = finish(config, base, tokenizer, mix.held_out, out, record, code)
        if not keep_checkpoints:
            # The expert's files are links to the last one: this frees the others' room.
            shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
        return record


def check_installed() -> None:
    """Check that what training needs is there.

    Raises:
        InputError: where it is not, with the command that installs it.
    """
    needed = ("accelerate", "peft", "datasets")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"training needs {', '.join(missing)}; install it by: pip install 'layerswap[train]'"
        )


def _identity(config: TrainConfig, base: Path, mix: Mix) -> dict[str, Any]:
    """Return what decides the weights: the content of base and data, not where they are."""
    rows = json.dumps([mix.train, mix.held_out], ensure_ascii=False)
    return {
        **identity_of(config),
        "base_weights": fingerprint_checkpoint(base),
        "rows": hashlib.sha256(rows.encode()).hexdigest(),
    }


def _train(
    config: TrainConfig, arguments: Any, base: Path, tokenizer: Any, mix: Mix, out: Path
) -> None:
    """Train unless the last checkpoint is there."""
    from transformers import set_seed

    from ablations.train.model import load_base, prepare
    from ablations.train.tokens import encode
    from ablations.train.trainer import train

    rows = encode(mix.train, tokenizer, config)
    steps = math.ceil(len(rows) / config.batch_size)
    resume = next(reversed(whole_checkpoints(out)), None)
    if resume is not None:
        if step_of(resume) >= steps:
            return
        logger.info("going on from %s (step %d of %d)", resume, step_of(resume), steps)
    if (warmup := arguments.get_warmup_steps(steps)) >= steps:
        logger.warning(
            "warmup_steps is %d and the run has %d steps: the learning rate never reaches %g",
            *(warmup, steps, arguments.learning_rate),
        )
    set_seed(config.seed)
    logger.info("%s: %d rows, %d steps of %d", out.name, len(rows), steps, config.batch_size)
    train(
        prepare(load_base(base), config),
        rows,
        config,
        arguments,
        out,
        padding=tokenizer.pad_token_id or 0,  # masked, so any token will do
        donor=None if isinstance(config.regime, ADAPTERS) else base,
        resume=resume,
    )


@contextmanager
def _claim(out: Path, *, is_first: bool) -> Iterator[None]:
    """Hold the folder for this run; the first of several processes does so for all.

    Raises:
        InputError: where another run holds it.
    """
    if not is_first:
        yield
        return
    check_place(out / LOCK)
    is_new = not out.exists()
    claim = try_claim(out, LOCK)
    if claim is None:
        at = holder(out, LOCK)
        raise InputError(f"{out}: another run is writing to it ({at}); wait for it to end")
    try:
        yield
    finally:
        claim.release()
        if is_new:
            remove_unused(out, LOCK)
