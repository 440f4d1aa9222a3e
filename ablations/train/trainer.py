"""The training itself, by transformers' Trainer, whose checkpoints and resume are used as they are.

Added is that it stops before it saves weights that are not finite, and shows its progress.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from transformers import Trainer, TrainerCallback, TrainingArguments, get_scheduler, set_seed
from transformers.integrations.integration_utils import get_reporting_integration_callbacks
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as transformers_logging

from ablations.machine.progress import Step, note_finished_work, show_step
from ablations.train.apply_regime import prepare_model
from ablations.train.config import LEARNING_RATE, TrainConfig
from ablations.train.folder import (
    CHECKPOINTS,
    remove_partial_checkpoints,
    step_of,
    strip_checkpoints,
    whole_checkpoints,
)
from ablations.train.library_options import check_options
from ablations.train.memory import (
    Memory,
    divides_by_tokens,
    estimate_memory,
    free_memory,
    frozen_dtype,
    memory_text,
)
from ablations.train.model import ends_of_answers, load_base
from ablations.train.regimes import ADAPTERS
from ablations.train.rows import (
    IGNORED,
    Conversation,
    Tokens,
    collate,
    count_learned,
    encode_rows,
    endless_token,
)
from ablations.train.side_adapters import regime_callbacks, restore_adapter
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.errors import InputError, LayerSwapError, counted, first_line
from layerswap_method.write.donor_files import copy_donor_files

logger = logging.getLogger(__name__)

_SEED = "write seed: at the top of the file"
_SAMPLES = "write samples: at the top of the file"
_SELECT = "write select: at the top of the file"
_NO_UPLOAD = "layerswap train uploads nothing; upload the expert afterwards: hf upload"
_FIXED = "is fixed; leave it out"
_FOREIGN = {
    "output_dir": "give --out",
    "seed": _SEED,
    "data_seed": _SEED,
    "num_train_epochs": _SAMPLES,
    "max_steps": _SAMPLES,
    "eval_strategy": _SELECT,
    "eval_on_start": _SELECT,
    "load_best_model_at_end": _SELECT,
    "push_to_hub": _NO_UPLOAD,
    "hub_model_id": _NO_UPLOAD,
    "hub_strategy": _NO_UPLOAD,
    "hub_token": _NO_UPLOAD,
    "hub_private_repo": _NO_UPLOAD,
    "hub_always_push": _NO_UPLOAD,
    "hub_revision": _NO_UPLOAD,
    "gradient_accumulation_steps": "follows from batch_size and per_device_train_batch_size",
    "auto_find_batch_size": _FIXED,
    "train_sampling_strategy": _FIXED,
    "remove_unused_columns": _FIXED,
    "save_only_model": _FIXED,
    "resume_from_checkpoint": _FIXED,
    "do_train": _FIXED,
    "do_eval": _FIXED,
    "do_predict": _FIXED,
}
"""Options that the Trainer has and a training file has not -> what to do instead."""

_RENAMED = ("gradient_checkpointing", "gradient_checkpointing_kwargs")
"""Options that newer transformers call ``activation_...``; of these names they warn."""

_WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")
"""Schedules of the learning rate that read no ``warmup_steps``."""

_IF_DAMAGED = "if it is damaged, remove this folder, and the run goes on from the one before"


def processes() -> Any:
    """Return accelerate's state of the processes that train together, often one."""
    from accelerate import PartialState

    return PartialState(cpu=_on_cpu())


def _on_cpu() -> bool:
    """Return whether the CPU trains: no other device, or `accelerate launch --cpu` says so."""
    is_chosen = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "on")
    return is_chosen or not torch.accelerator.is_available()


def _fillers(rows: Sequence[Tokens], at_once: int) -> list[Tokens]:
    """Return rows without loss that fill up the last round of several processes.

    accelerate fills it with the first rows, which would be learned twice.

    Args:
        rows: all, of `encode_rows`.
        at_once: rows of a round, those of all processes.
    """
    empty: Tokens = {"input_ids": rows[0]["input_ids"][:1], "labels": [IGNORED]}
    return [empty] * (-len(rows) % at_once)


def training_arguments(config: TrainConfig, out: Path) -> TrainingArguments:
    """Return the Trainer's options of a run with the folder `out`; refuse what it does not take."""
    options = check_options(config.file, "trainer", config.trainer, TrainingArguments, _FOREIGN)
    for name in _RENAMED:
        new_name = name.replace("gradient", "activation")
        if name in options and hasattr(TrainingArguments, new_name):
            options[new_name] = options.pop(name)
    world = processes().num_processes
    device_batch = options.setdefault(
        "per_device_train_batch_size", max(1, config.batch_size // world)
    )
    if device_batch < 1 or config.batch_size % (device_batch * world):
        raise InputError(
            f"{config.file}: batch_size {config.batch_size} is not a multiple of "
            f"trainer.per_device_train_batch_size {device_batch} times {world} processes"
        )
    if options.get("save_strategy", "steps") not in ("steps", "epoch"):
        raise InputError(
            f"{config.file}: trainer.save_strategy: write steps, or epoch to save at the end only"
        )
    defaults = {
        "learning_rate": LEARNING_RATE,
        "logging_steps": 10,
        "disable_tqdm": True,
        "run_name": out.name,
        "use_cpu": _on_cpu(),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }
    try:
        arguments = TrainingArguments(
            **(defaults | options),
            output_dir=str(out / CHECKPOINTS),
            num_train_epochs=1,
            gradient_accumulation_steps=config.batch_size // (device_batch * world),
            seed=config.seed,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
        )
        # Trackers, rate and schedule are looked at only when they are used: use them now.
        for tracker in get_reporting_integration_callbacks(options.get("report_to", "none")):
            tracker()
        get_scheduler(
            arguments.lr_scheduler_type,
            torch.optim.AdamW([torch.zeros(1)], lr=arguments.learning_rate),
            num_warmup_steps=1,
            num_training_steps=9,
            scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,
        )
    except (ValueError, RuntimeError, TypeError, ImportError, OverflowError) as error:
        raise _refusal(config, error) from error
    arguments.logging_nan_inf_filter = False  # such losses are to be seen
    # One process takes one GPU: on several, DataParallel would multiply the batch.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


class Prepared(NamedTuple):
    """Rows as tokens, and what training on them takes."""

    rows: list[Tokens]
    steps: int
    memory: Memory
    base: Checkpoint


def prepare_rows(
    config: TrainConfig,
    arguments: TrainingArguments,
    base: Path,
    tokenizer: Any,
    rows: Sequence[Conversation],
) -> Prepared:
    """Return the rows as tokens; `arguments` gets how many of them go through at once.

    `rows` are what the model sees, in order; `base` is the folder of the model to start from.

    Raises:
        InputError: where no row is left, or for layers that the model does not have.
    """
    show_step(Step("turning the rows into tokens"))
    encoded = encode_rows(rows, tokenizer, config)
    _warn_of_endless_answers(config, base, tokenizer, encoded)
    checkpoint = read_checkpoint(config.base, base)
    longest = max(len(row["input_ids"]) for row in encoded)
    learned = max(count_learned(row) for row in encoded)
    memory = estimate_memory(config, checkpoint, longest, learned)
    at_once = arguments.per_device_train_batch_size
    if "per_device_train_batch_size" not in config.trainer and divides_by_tokens(base):
        arguments.per_device_train_batch_size = memory.rows_at_once(at_once)
        arguments.gradient_accumulation_steps *= at_once // arguments.per_device_train_batch_size
    steps = math.ceil(len(encoded) / config.batch_size)
    _warn_of_few_steps(arguments, steps)
    return Prepared(encoded, steps, memory, checkpoint)


def describe_memory(
    config: TrainConfig, arguments: TrainingArguments, memory: Memory
) -> tuple[str, bool]:
    """Return the memory that a training needs and what is free here, as `memory_text` does."""
    free = free_memory(is_on_cpu=_on_cpu())
    return memory_text(config, memory, arguments.per_device_train_batch_size, free)


def train(
    config: TrainConfig,
    arguments: TrainingArguments,
    base: Path,
    tokenizer: Any,
    rows: Sequence[Conversation],
    out: Path,
) -> None:
    """Train and write checkpoints to `out`, unless the last one is there; go on where it stopped.

    `rows` are what the model sees, in order; `base` is the folder of the model to start from.

    Raises:
        InputError: for options that peft or the Trainer refuses, or a base that cannot be loaded.
        LayerSwapError: where the loss is not finite, or a checkpoint cannot be written.
    """
    prepared = prepare_rows(config, arguments, base, tokenizer, rows)
    encoded, steps, checkpoint = prepared.rows, prepared.steps, prepared.base
    resume = next(reversed(whole_checkpoints(out)), None)
    if resume is not None:
        note_finished_work()
        if step_of(resume) >= steps:
            return
        logger.info("going on from %s (step %d of %d)", resume, step_of(resume), steps)
    set_seed(config.seed)
    logger.info("%s: %d rows, %d steps of %d", out.name, len(encoded), steps, config.batch_size)
    text, fits = describe_memory(config, arguments, prepared.memory)
    logger.log(logging.INFO if fits else logging.WARNING, "%s", text)
    donor = None if isinstance(config.regime, ADAPTERS) else base
    start = base if resume is None or donor is None else resume
    show_step(Step(f"loading {start.name}"))
    try:
        model = prepare_model(load_base(start, frozen_dtype(config, checkpoint)), config)
    except LayerSwapError as error:
        if start == base:
            raise
        raise type(error)(f"{error.message}; {_IF_DAMAGED}") from error
    watch = _Watch(out, donor)
    with warnings.catch_warnings(), ExitStack() as stack:
        # Warnings of transformers would repeat messages of this module.
        if not logger.isEnabledFor(logging.DEBUG):
            stack.callback(transformers_logging.set_verbosity, transformers_logging.get_verbosity())
            transformers_logging.set_verbosity_error()
        warnings.filterwarnings("ignore", category=UserWarning, module="torch|transformers")
        try:
            trainer = (_AdapterTrainer if donor is None else _WholeTrainer)(
                model=model,
                args=arguments,
                train_dataset=encoded,
                data_collator=partial(
                    collate, padding=tokenizer.pad_token_id or 0, few_logits=_keeps_logits(model)
                ),
                callbacks=[watch, *regime_callbacks(model, config.regime)],
            )
        except (ValueError, ImportError, AttributeError) as error:
            raise _refusal(config, error) from error
        trainer.remove_callback(PrinterCallback)
        world = processes().num_processes
        if world > 1 and trainer.model_accepts_loss_kwargs:  # its mean is over tokens with loss
            at_once = arguments.per_device_train_batch_size * world
            trainer.train_dataset = [*encoded, *_fillers(encoded, at_once)]
        try:
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        except Exception as error:
            if resume is not None and not watch.is_started:
                raise InputError(f"{resume}: {first_line(error)}; {_IF_DAMAGED}") from error
            # An optimiser may not be installed.
            if trainer.optimizer is None and isinstance(error, ValueError | ImportError):
                raise _refusal(config, error) from error
            if not isinstance(error, OSError | RuntimeError | SafetensorError):
                raise
            if not remove_partial_checkpoints(out) and isinstance(error, RuntimeError):
                raise  # torch has this error for a full disk, and for much else
            reason = getattr(error, "strerror", None) or first_line(error)
            raise LayerSwapError(
                f"{out / CHECKPOINTS}: cannot be written: {reason}. {_last_whole(out)}. Make room "
                "and run the same command again"
            ) from error


def _warn_of_endless_answers(
    config: TrainConfig, base: Path, tokenizer: Any, rows: Sequence[Tokens]
) -> None:
    whole_rows = [row for row in rows if len(row["input_ids"]) < config.max_length]
    ends = ends_of_answers(base, tokenizer)
    if (last := endless_token(whole_rows, tokenizer, ends)) is None:
        return
    whose = "the base" if isinstance(config.regime, ADAPTERS) else "the expert"
    logger.warning(
        "answers are trained to end with %r (%d), and by the files of %s they end at %s: they "
        "will run on. Write eos_token_id: %s into generation_config.json of %s",
        tokenizer.decode(last),
        last,
        base.name,
        " or ".join(f"{tokenizer.decode(end)!r} ({end})" for end in sorted(ends)) or "no token",
        [*sorted(ends), last],
        whose,
    )


def _warn_of_few_steps(arguments: TrainingArguments, steps: int) -> None:
    """Warn where a run ends within its warm-up, or has no room for warm-up and decay."""
    warmup = arguments.get_warmup_steps(steps)
    decay = (arguments.lr_scheduler_kwargs or {}).get("num_decay_steps", 0)
    if arguments.lr_scheduler_type in _WITHOUT_WARMUP or warmup + decay <= steps:
        return
    logger.warning(
        "%s: too few for the %d of warm-up%s, so the learning rate %s; set %s lower",
        counted(steps, "step"),
        warmup,
        f" and {decay} of decay" if decay else "",
        "falls at once" if warmup < steps else f"never reaches {arguments.learning_rate:g}",
        "trainer.warmup_steps" + (" and lr_scheduler_kwargs.num_decay_steps" if decay else ""),
    )


def _keeps_logits(model: Any) -> bool:
    """Return whether a model can be told for which positions it makes logits."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "logits_to_keep" in inspect.signature(base.forward).parameters


def _refusal(config: TrainConfig, error: Exception) -> InputError:
    return InputError(f"{config.file}: trainer: transformers refuses these options: {error}")


def _last_whole(out: Path) -> str:
    last = next(reversed(whole_checkpoints(out)), "none")
    return f"The last good checkpoint is {last}"


class _WholeTrainer(Trainer):  # type: ignore[misc]
    """Goes on with a model that is loaded from the checkpoint already."""

    def _load_from_checkpoint(self, folder: str, model: Any = None) -> None:
        """Do nothing."""


class _AdapterTrainer(Trainer):  # type: ignore[misc]
    """Goes on with the adapter of a checkpoint."""

    def _load_from_checkpoint(self, folder: str, model: Any = None) -> None:
        restore_adapter(self.model, Path(folder))


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Stops at a loss that is not finite, completes checkpoints, and says how far it is.

    A loss is logged before every save, so no checkpoint has weights that are not finite.
    """

    def __init__(self, out: Path, donor: Path | None) -> None:
        self._out, self._donor = out, donor
        self.is_started = False
        self._parts = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._show(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.is_started = True

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._parts += 1
        self._show(state, self._parts / args.gradient_accumulation_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._parts = 0
        self._show(state)
        control.should_log |= control.should_save or state.global_step >= state.max_steps

    def _show(self, state: Any, share: float = 0.0) -> None:
        """Show how far it is, with the share of a step that is done."""
        step, steps = state.global_step + share, state.max_steps
        show_step(Step(f"training {self._out.name}", step, steps, unit="steps"))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        for name, quantity in (("loss", "loss"), ("grad_norm", "norm of the gradients")):
            if not math.isfinite(logs.get(name, 0.0)):
                raise LayerSwapError(
                    f"the {quantity} is {logs[name]} at step {state.global_step}: training "
                    f"stopped. {_last_whole(self._out)}. Lower the learning rate and choose "
                    "another --out"
                )
        if "loss" in logs and state.is_world_process_zero:
            logger.info(
                "%s: step %d of %d, loss %.3f",
                self._out.name,
                state.global_step,
                state.max_steps,
                logs["loss"],
            )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.should_save:
            if self._donor is not None:
                folder = self._out / CHECKPOINTS / f"checkpoint-{state.global_step}"
                copy_donor_files(self._donor, folder, "float32")
            note_finished_work()
            strip_checkpoints(self._out, keep_newest=True)
