"""The training itself, by transformers' Trainer. Knows steps and checkpoints; not what is learned.

Why the Trainer and not trl: the Trainer has checkpoints, resuming, accelerate, trackers and mixed
precision, and trl's `SFTTrainer` is built on it. What trl adds, a mask for the answers, is 60 lines
in `sequences`; it would be one more package to follow.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as transformers_logging

from ablations.machine.training_bars import TrainingBars
from ablations.train import fusion
from ablations.train.config import TrainConfig
from ablations.train.folder import SavedCheckpoint, TrainingFolder, told_if_full
from ablations.train.regime import AdapterFusion, Regime
from ablations.train.sequences import Sequences, collate
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.stream.donor_files import copy_donor_files

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """Which rows each step sees, and after which steps a checkpoint is written."""

    steps: int
    """Optimiser steps."""

    samples_after: tuple[int, ...]
    """[steps + 1]: rows seen after so many steps."""

    save_after: frozenset[int]
    """Steps with a checkpoint; the last one is always among them."""


def plan_steps(sequences: Sequences, batch_size: int, save_every: int | None) -> Plan:
    """Return the steps of one pass over the sequences.

    A checkpoint comes with the first step that has seen a multiple of `save_every` rows.
    """
    steps = math.ceil(len(sequences) / batch_size)
    last = len(sequences)
    seen = tuple(min(step * batch_size, last) for step in range(steps + 1))
    saved = {steps}
    if save_every is not None:
        saved |= {
            step
            for step in range(1, steps + 1)
            if seen[step] // save_every > seen[step - 1] // save_every
        }
    return Plan(steps, seen, frozenset(saved))


def processes() -> Any:
    """Return accelerate's state of the processes that train together, often one."""
    from accelerate import PartialState

    return PartialState(cpu=_on_cpu())


def _on_cpu() -> bool:
    """Return whether the CPU trains: no other device, or `accelerate launch --cpu` says so."""
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "on")
    return asked or not torch.accelerator.is_available()


def train(
    model: Any,
    sequences: Sequences,
    config: TrainConfig,
    folder: TrainingFolder,
    *,
    padding: int,
    donor: Any,
    resume: SavedCheckpoint | None,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train `model` and write its checkpoints.

    Args:
        model: float32, prepared by its regime; changed in place.
        sequences: what it sees, in order.
        config: the run.
        folder: where checkpoints go.
        padding: id of the token that fills up batches.
        donor: folder whose config and tokenizer whole checkpoints get; None for adapters.
        resume: a checkpoint to go on from.
        on_step: called after every step with the number of steps done and the loss; None shows a
            bar.

    Raises:
        InputError: for a batch size that the processes cannot share, or a tracker that is missing.
        LayerSwapError: where the loss is not finite, or a checkpoint cannot be written.
    """
    plan = plan_steps(sequences, config.batch_size, config.save_every)
    _warn_of_schedule(config, plan.steps)
    arguments = _arguments(config, folder, plan.steps)
    run = _Run(folder, plan, donor, on_step)
    with _quiet():
        trainer = _Trainer(
            model=model,
            args=arguments,
            train_dataset=sequences,
            data_collator=partial(collate, padding=padding),
            callbacks=[run, *_penalties(model, config.regime)],
        )
        trainer.remove_callback(PrinterCallback)
        run.trainer = trainer
        try:
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume.folder))
        finally:
            run.close()


def _arguments(config: TrainConfig, folder: TrainingFolder, steps: int) -> TrainingArguments:
    world = processes().num_processes
    share, rest = divmod(config.batch_size, world)
    if rest:
        raise InputError(
            f"batch_size {config.batch_size} is not a multiple of the {world} processes"
        )
    micro = config.micro_batch_size or share
    if share % micro:
        raise InputError(
            f"batch_size {config.batch_size} is not a multiple of micro_batch_size {micro} times "
            f"{world} processes"
        )
    for name in config.report_to:
        if importlib.util.find_spec(name) is None:
            raise InputError(f"report_to: {name} is not installed; pip install {name}")
    names = {
        "linear": ("linear", {}),
        "cosine": ("cosine", {}),
        "constant": ("constant_with_warmup", {}),
        "wsd": (
            "warmup_stable_decay",
            {"num_decay_steps": round(config.decay_share * steps), "decay_type": "linear"},
        ),
    }
    schedule, settings = names[config.schedule]
    try:
        arguments = TrainingArguments(
            output_dir=str(folder.checkpoints_dir),
            num_train_epochs=1,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=share // micro,
            learning_rate=config.learning_rate,
            lr_scheduler_type=schedule,
            lr_scheduler_kwargs=settings,
            warmup_steps=config.warmup_steps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            adam_beta1=config.adam_beta1,
            adam_beta2=config.adam_beta2,
            seed=config.seed,
            use_cpu=_on_cpu(),
            bf16=config.compute == "bfloat16",
            gradient_checkpointing=config.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            logging_steps=config.log_every,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to=list(config.report_to) or "none",
            run_name=folder.root.name,
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=torch.cuda.is_available(),
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(f"transformers refuses these settings: {error}") from error
    # One process takes one GPU: on several, DataParallel would multiply the batch.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _warn_of_schedule(config: TrainConfig, steps: int) -> None:
    if config.warmup_steps >= steps:
        logger.warning(
            "warmup_steps is %d and the run has %d steps: the learning rate never reaches %g",
            *(config.warmup_steps, steps, config.learning_rate),
        )


class _Trainer(Trainer):  # type: ignore[misc]
    """The Trainer, which stops at a loss that is not finite and keeps the order of the rows."""

    step_loss = 0.0
    """Of the step under way, in nats a learned token; of this process's share."""

    @property
    def _run(self) -> _Run:
        return next(c for c in self.callback_handler.callbacks if isinstance(c, _Run))

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def training_step(self, *arguments: Any, **options: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*arguments, **options)
        self.step_loss += loss.item() / max(1, self.accelerator.num_processes)
        self._check("loss", loss.item())
        return loss

    def _get_grad_norm(self, *arguments: Any, **options: Any) -> Any:
        norm = super()._get_grad_norm(*arguments, **options)
        self._check("norm of the gradients", float(norm))
        return norm

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if (found := getattr(self.model, fusion.NAME, None)) is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            fusion.restore(found, Path(resume_from_checkpoint))

    def _check(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise LayerSwapError(
                f"the {what} is {value} at step {self.state.global_step + 1}: training stopped. "
                f"{self._run.last_good()}. Lower the learning rate and choose another --out"
            )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run = self._run
        path = run.folder.checkpoints_dir / f"checkpoint-{self.state.global_step}"
        then = f". {run.last_good()}. Make room and run the same command again"
        try:
            with told_if_full(path, then):
                try:
                    super()._save_checkpoint(model, trial)
                except RuntimeError as error:  # what torch makes of a full disk
                    raise OSError(str(error)) from error
                if self.args.should_save:
                    run.finish(self.state.global_step)
        except LayerSwapError:
            shutil.rmtree(path, ignore_errors=True)
            raise


class _Run(TrainerCallback):  # type: ignore[misc]
    """Shows progress, asks for checkpoints at the planned steps, and makes them whole."""

    trainer: _Trainer

    def __init__(
        self,
        folder: TrainingFolder,
        plan: Plan,
        donor: Any,
        on_step: Callable[[int, float], None] | None,
    ) -> None:
        self.folder = folder
        self._plan = plan
        self._donor = donor
        self._on_step = on_step
        self._bars: TrainingBars | None = None

    def last_good(self) -> str:
        """Return where the last whole checkpoint is, in words."""
        found = self.folder.checkpoints()
        if not found:
            return "No checkpoint was written before"
        return f"The last good checkpoint is {found[-1].folder} ({found[-1].samples} samples)"

    def finish(self, step: int) -> None:
        """Give the checkpoint of `step` the base's config and tokenizer, and mark it as whole."""
        if self._donor is not None:
            folder = self.folder.checkpoints_dir / f"checkpoint-{step}"
            copy_donor_files(self._donor, folder, "float32")
        self.folder.mark(step, self._plan.samples_after[step])

    def close(self) -> None:
        if self._bars is not None:
            self._bars.close()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._on_step is None and state.is_world_process_zero:
            name = self.folder.root.name
            self._bars = TrainingBars({name: self._plan.steps})
            self._on_step = partial(self._bars.update, name)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._on_step is not None:
            self._on_step(state.global_step, self.trainer.step_loss)
        self.trainer.step_loss = 0.0
        control.should_log |= state.global_step == self._plan.steps
        control.should_save = state.global_step in self._plan.save_after


class _Penalty(TrainerCallback):  # type: ignore[misc]
    """Adds the gradient of a fusion's penalty once a step, whatever the batch is cut into.

    It comes after the norm of the gradients is clipped, as weight decay does.
    """

    def __init__(self, fused: fusion.Fusion, weight: float) -> None:
        self._fused, self._weight = fused, weight

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.autograd.backward(self._weight * self._fused.penalty())


def _penalties(model: Any, regime: Regime) -> list[_Penalty]:
    if not isinstance(regime, AdapterFusion):
        return []
    return [_Penalty(getattr(model, fusion.NAME), regime.value_penalty)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' advice out of the way; what it would warn of is ours to say."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="torch|transformers")
            yield
    finally:
        transformers_logging.set_verbosity(level)
