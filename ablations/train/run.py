"""`layerswap train`: from a training file to an expert, step by step."""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ablations.drawing.text_table import wrapped
from ablations.machine.fingerprint import fingerprint_checkpoint
from ablations.machine.locks import holder, try_claim
from ablations.machine.progress import Step, show_step, status_line
from ablations.machine.whole_files import put_aside, write_errors, write_text
from ablations.models.find import Expert, find_model
from ablations.requests.resolve import ResolvedTasks
from ablations.sandbox import Isolation
from ablations.train.apply_regime import lora_config
from ablations.train.config import TrainConfig
from ablations.train.divergence import measure_divergence
from ablations.train.folder import (
    check_record,
    read_state,
    remove_partial_checkpoints,
    step_of,
    strip_checkpoints,
    whole_checkpoints,
    write_training_record,
)
from ablations.train.model import load_base, load_tokenizer
from ablations.train.regimes import ADAPTERS, AdapterFusion, Lora
from ablations.train.rows import IGNORED, Mix, Tokens, count_learned, mix_rows, split_row
from ablations.train.select import check_selection_data, select_checkpoint, selection_tasks
from ablations.train.side_adapters import with_adapter
from layerswap_method.checkpoint.origin import is_far
from layerswap_method.errors import InputError, counted
from layerswap_method.file_names import ADAPTER_CONFIG
from layerswap_method.output import give_folder_mode
from layerswap_method.recipe.references import is_folder
from layerswap_method.write.donor_files import copy_donor_files, donor_files

if TYPE_CHECKING:
    from transformers import TrainingArguments

logger = logging.getLogger(__name__)

LOCK = ".lock"

HELD_OUT = "held_out.jsonl"
"""Texts that were not trained on, in the format that was: to measure drift on."""

EXPERTS = "experts.yml"
"""The expert with its measured facts, as `layerswap run --experts` reads it."""

DIVERGENCE = "divergence.json"
"""The distance of the expert from its base."""

_VERSIONS = ("torch", "transformers", "accelerate", "tokenizers", "safetensors")
_WITHOUT_EFFECT = (
    "logging_",
    "log_",
    "save_",
    "report_to",
    "run_name",
    "project",
    "trackio_",
    "per_device_train_batch_size",
    "disable_tqdm",
)
"""Beginnings of options of the Trainer that change weights by rounding at most; rows at once also
decide the draws of dropout."""


def train_expert(
    config: TrainConfig, out: Path, *, isolation: Isolation | None = None
) -> dict[str, Any]:
    """Train an expert and return its `training.json`.

    A run that was stopped goes on from its last checkpoint and gives the same weights. A finished
    one is left as it is.

    Args:
        config: of `read_training_file`.
        out: folder of the run; the expert is in it when all is done.
        isolation: sandbox of the programs that models write; None leaves such tasks out.

    Raises:
        InputError: for what is wrong with the options, the data, the base or the folder.
        LayerSwapError: where the loss is not finite, or something cannot be written, or data of the
            tasks that choose a checkpoint is on a hub that cannot be reached.
    """
    base, arguments, tasks = _prepare(config, out, isolation)
    from ablations.train.trainer import processes, train

    state = processes()
    with status_line():
        show_step(Step("reading the rows"))
        with state.main_process_first():  # which downloads
            mix = mix_rows(config)
        tokenizer = load_tokenizer(base.folder)
        record = check_record(out, base.folder, _identity(config, base.folder, mix))
        if record.get("finished"):
            if record["config"]["select"] != config.model_dump(mode="json")["select"]:
                raise InputError(f"{out}: is a run with another select; choose another --out")
            logger.info("%s: is finished, nothing to do", out)
            return record
        claim = try_claim(out, LOCK) if state.is_main_process else None
        if claim is None and state.is_main_process:
            raise InputError(
                f"{out}: another run is writing to it ({holder(out, LOCK)}); wait for it to end"
            )
        try:
            if claim is not None:
                if tasks is not None:
                    check_selection_data(tasks, config.file)
                write_training_record(out, record)
                remove_partial_checkpoints(out)
            state.wait_for_everyone()
            train(config, arguments, base.folder, tokenizer, mix.train, out)
            if claim is None:
                return record
            record |= {
                "config": config.model_dump(mode="json"),
                "rows_by_source": mix.counts,
                "losses": [
                    {key: entry[key] for key in ("step", "loss", "grad_norm") if key in entry}
                    for entry in (read_state(whole_checkpoints(out)[-1]) or {})["log_history"]
                    if "loss" in entry
                ],
                "processes": state.num_processes,
                "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
            }
            texts = [
                "".join(text for text, _ in split_row(row, tokenizer, config))
                for row in mix.held_out
            ]
            _finish(config, base, texts, tasks, out, record)
            return record
        finally:
            if claim is not None:
                claim.release()


def _prepare(
    config: TrainConfig, out: Path, isolation: Isolation | None
) -> tuple[Expert, TrainingArguments, ResolvedTasks | None]:
    """Return the base, the Trainer's arguments, and what chooses a checkpoint, all checked."""
    check_installed()
    if out.resolve().name == "base":
        raise InputError(
            f"{out}: the name base is reserved: an experts file calls the model so from which an "
            "expert was trained; choose another --out"
        )
    try:
        base = find_model(config.base)
        if not config.writes_adapter:
            donor_files(base.folder)  # the expert gets them when it is trained
    except InputError as error:
        raise InputError(f"{config.file}: base: {error.message}") from error
    if base.adapter is not None:
        raise InputError(
            f"{config.file}: base: {config.base} is a base with an adapter; merge it first"
        )
    from ablations.train.trainer import training_arguments

    arguments = training_arguments(config, out)
    if isinstance(config.regime, Lora):
        lora_config(config)
    tasks = None
    if config.select is not None:
        is_chat = config.template == "chat"
        tasks = selection_tasks(config.select, isolation, config.file, chat=is_chat)
    return base, arguments, tasks


def describe_training(config: TrainConfig, out: Path, *, isolation: Isolation | None = None) -> str:
    """Return the rows of a training, one of them as tokens, its steps and its memory.

    Data sets (also of the tasks of ``select``) and the base are read, the base's weights only where
    `out` has a run, which must be of these settings. Nothing is written.

    Raises:
        InputError: as `train_expert`.
    """
    base, arguments, tasks = _prepare(config, out, isolation)
    from ablations.train.trainer import describe_memory, prepare_rows

    with status_line():
        show_step(Step("reading the rows"))
        mix = mix_rows(config)
        if any(out.glob("[!.]*")):
            check_record(out, base.folder, _identity(config, base.folder, mix))
        if tasks is not None:
            check_selection_data(tasks, config.file)
        tokenizer = load_tokenizer(base.folder)
        prepared = prepare_rows(config, arguments, base.folder, tokenizer, mix.train)
    rows, at_once = prepared.rows, arguments.per_device_train_batch_size
    lengths = sorted(len(row["input_ids"]) for row in rows)
    learned = sum(map(count_learned, rows))
    done = max(map(step_of, whole_checkpoints(out)), default=0)
    lines = [
        f"base: {base.reference}",
        *(f"{name}: {counted(count, 'row')}" for name, count in mix.counts.items()),
        f"{counted(len(rows), 'row')} of {sum(lengths):,} tokens in all, {learned:,} of them "
        f"learned; a row has {lengths[0]} to {lengths[-1]}, in the middle "
        f"{lengths[len(lengths) // 2]} (max_length {config.max_length})",
        f"{counted(prepared.steps, 'step')} of {config.batch_size} rows, {at_once} at once, about "
        f"{round(sum(lengths) / len(rows) * config.batch_size):,} tokens a step"
        + (f"; {out} has {done} of them" if done else ""),
        describe_memory(config, arguments, prepared.memory)[0],
        "the first row, token by token; what is learned stands in [ ]:",
    ]
    return "\n".join([*map(wrapped, lines), token_lines(_as_tokens(rows[0], tokenizer))])


def token_lines(tokens: Sequence[str]) -> str:
    """Return tokens in lines that fit the terminal, each whole, whatever blanks it has."""
    blank = "\N{NO-BREAK SPACE}"  # which ends no line
    text = " ".join(token.replace(" ", blank) for token in tokens)
    return wrapped(text, first="  ", indent="  ").replace(blank, " ")


def _as_tokens(row: Tokens, tokenizer: Any) -> list[str]:
    """Return the texts of a row's tokens, runs of those with loss in brackets."""
    parts = list[str]()
    pairs = zip(row["input_ids"], row["labels"], strict=True)
    for is_learned, run in itertools.groupby(pairs, key=lambda pair: pair[1] != IGNORED):
        texts = [repr(tokenizer.decode(token)) for token, _ in run]
        parts += ["[", *texts, "]"] if is_learned else texts
    return parts


def check_installed() -> None:
    """Check that training's packages are installed; an `InputError` has the command for it."""
    packages = ("accelerate", "peft", "datasets")
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise InputError(f"training needs {', '.join(missing)}: pip install 'layerswap[train]'")


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that decide the weights beyond rounding, as JSON can hold them."""
    settings = config.model_dump(mode="json", exclude={"select", "measure", "base", "data"})
    settings["trainer"] = {
        name: value
        for name, value in config.trainer.items()
        if not name.startswith(_WITHOUT_EFFECT)
    }
    return settings


def _identity(config: TrainConfig, base: Path, mix: Mix) -> dict[str, Any]:
    """Return all but the base that decides the weights: the content of data, not its place."""
    identity: dict[str, Any] = {}
    if isinstance(config.regime, AdapterFusion):
        identity["adapters"] = [
            fingerprint_checkpoint(Path(str(find_model(f"{base}+{expert}").adapter)))
            for expert in config.regime.experts.values()
        ]
    identity |= settings_of(config)
    rows = json.dumps([mix.train, mix.held_out], ensure_ascii=False)
    identity["rows"] = hashlib.sha256(rows.encode()).hexdigest()
    return identity


def _finish(
    config: TrainConfig,
    base: Expert,
    texts: list[str],
    tasks: ResolvedTasks | None,
    out: Path,
    record: dict[str, Any],
) -> None:
    """Choose a checkpoint, make the expert of it and measure it; complete and write the record."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # an engine that chooses a checkpoint wants most of the GPU
    checkpoints = whole_checkpoints(out)
    chosen_checkpoint = checkpoints[-1]
    steps_to_keep = [step_of(checkpoint) for checkpoint in checkpoints]
    if config.select is not None and tasks is not None:
        are_adapters = isinstance(config.regime, ADAPTERS)
        chosen_checkpoint, record["selection"] = select_checkpoint(
            checkpoints, config.select, tasks, base.folder, are_adapters=are_adapters
        )
        steps_to_keep = [row["step"] for row in record["selection"] if row["kept"]]
    step = step_of(chosen_checkpoint)
    record |= {"step": step, "samples": min(step * config.batch_size, config.samples)}
    show_step(Step("writing the expert"))
    with write_errors(out, ". Make room and run the same command again"):
        expert = _write_expert(config, base, chosen_checkpoint, out.resolve())
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
        write_text(out / HELD_OUT, "".join(lines))
        entry: dict[str, Any] = {"path": expert.source}
        if config.measure:
            try:
                (divergence,) = measure_divergence([expert], base, texts, is_their_base=True)
            except InputError as error:  # such as weights that are not finite
                logger.warning("the divergence cannot be measured: %s", error.message)
            else:
                logger.info("%s", divergence.describe())
                if is_far(divergence.relative_norm):
                    logger.warning(
                        "%s was trained so far from %s that check, compat and delta will take "
                        "that for the base of another model: ||delta|| / ||weights|| is %.2f, of "
                        "a fine-tune far below 0.5",
                        expert.name,
                        base.name,
                        divergence.relative_norm,
                    )
                write_text(out / DIVERGENCE, divergence.model_dump_json(indent=1) + "\n")
                record["facts"] = entry["facts"] = divergence.facts()
        experts = {"experts": {"base": base.source, expert.name: entry}}
        write_text(out / EXPERTS, yaml.safe_dump(experts, sort_keys=False, allow_unicode=True))
    record["finished"] = True
    write_training_record(out, record)
    # Checkpoints go last: a run that is stopped before this goes on from them.
    strip_checkpoints(out, keep_newest=False)
    for checkpoint in checkpoints:
        if step_of(checkpoint) not in steps_to_keep:
            shutil.rmtree(checkpoint, ignore_errors=True)


def _write_expert(config: TrainConfig, base: Expert, checkpoint: Path, out: Path) -> Expert:
    """Write a checkpoint to `out` as the expert; return it as a study finds it.

    The file that makes the folder a model comes last.
    """
    is_adapter = config.writes_adapter
    temporary = out / ".expert.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        if isinstance(config.regime, ADAPTERS) and not is_adapter:
            with_adapter(load_base(base.folder), checkpoint).merge_and_unload().save_pretrained(
                temporary
            )
        else:
            for file in checkpoint.glob("*.safetensors*"):
                _link(file, temporary / file.name)
        if is_adapter:
            document = json.loads((checkpoint / ADAPTER_CONFIG).read_text(encoding="utf-8"))
            if not is_folder(config.base):  # an id, which other machines have too
                hub_id, _, revision = base.source.partition("@")
                document |= {"base_model_name_or_path": hub_id, "revision": revision or None}
            write_text(temporary / ADAPTER_CONFIG, json.dumps(document, indent=2) + "\n")
        else:
            copy_donor_files(base.folder, temporary, "float32")
        last = (ADAPTER_CONFIG, "config.json")
        give_folder_mode(temporary)
        files = sorted(
            path.relative_to(temporary) for path in temporary.rglob("*") if path.is_file()
        )
        put_aside(out, [*map(str, files), HELD_OUT, DIVERGENCE, EXPERTS])
        for file in sorted(files, key=lambda path: path.name in last):
            (out / file).parent.mkdir(exist_ok=True)
            (temporary / file).replace(out / file)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if is_adapter:
        return Expert(out.name, base.folder, out, source=f"{base.source}+{out}")
    return Expert(out.name, out, source=str(out))


def _link(source: Path, target: Path) -> None:
    """Put a file at `target`: a second name of it, which takes no room."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
