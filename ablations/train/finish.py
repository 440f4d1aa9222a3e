"""What comes after the last step: choose a checkpoint, write the expert, measure it."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ablations.machine.whole_files import told_if_unwritable, write_text
from ablations.models.find import Expert
from ablations.train.config import ADAPTERS, Dtype, Lora, TrainConfig
from ablations.train.divergence import Divergence, measure
from ablations.train.folder import step_of, strip_checkpoints, whole_checkpoints, write_record
from ablations.train.model import load_base, with_adapter
from ablations.train.rows import Row
from ablations.train.select import CodeExecution, select_checkpoint
from ablations.train.tokens import split_row
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import is_folder
from layerswap_method.write.donor_files import copy_donor_files

logger = logging.getLogger(__name__)

HELD_OUT = "held_out.jsonl"
"""Texts that were not trained on, in the format that was: to measure drift on."""

EXPERTS = "experts.yml"
"""The expert with its measured facts, as `layerswap run --experts` reads it."""


def finish(
    config: TrainConfig,
    base: Expert,
    tokenizer: Any,
    held_out: Sequence[Row],
    out: Path,
    record: dict[str, Any],
    code: CodeExecution | None,
) -> dict[str, Any]:
    """Choose a checkpoint, make the expert of it, measure it; return the completed record.

    Raises:
        InputError: for tasks that cannot be evaluated.
        LayerSwapError: where something cannot be written.
    """
    gc.collect()
    checkpoints = whole_checkpoints(out)
    chosen, kept = checkpoints[-1], [step_of(checkpoint) for checkpoint in checkpoints]
    if config.select is not None:
        chosen, record["selection"] = select_checkpoint(
            checkpoints,
            config.select,
            base.folder,
            are_adapters=isinstance(config.regime, ADAPTERS),
            code=code,
        )
        kept = [row["step"] for row in record["selection"] if row["kept"]]
    step = step_of(chosen)
    record |= {"step": step, "samples": min(step * config.batch_size, config.samples)}
    texts = ["".join(text for text, _ in split_row(row, tokenizer, config)) for row in held_out]
    with told_if_unwritable(out, ". Make room and run the same command again"):
        expert = _write_expert(config, base, chosen, out.resolve())
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
        write_text(out / HELD_OUT, "".join(lines))
        entry: dict[str, Any] = {"path": expert.source}
        if config.measure and (divergence := _measure(expert, base, texts)) is not None:
            write_text(out / "divergence.json", divergence.model_dump_json(indent=1) + "\n")
            record["facts"] = entry["facts"] = divergence.facts()
        experts = {"experts": {"base": base.source, expert.name: entry}}
        write_text(out / EXPERTS, yaml.safe_dump(experts, sort_keys=False, allow_unicode=True))
    record["finished"] = True
    write_record(out, record)
    # Only now: a run that is stopped before this goes on from these.
    strip_checkpoints(out, keep_newest=False)
    for checkpoint in checkpoints:
        if step_of(checkpoint) not in kept:
            shutil.rmtree(checkpoint, ignore_errors=True)
    return record


def _measure(expert: Expert, base: Expert, texts: Sequence[str]) -> Divergence | None:
    """Return the divergence; None, with a warning, where it cannot be measured.

    Weights that moved by more than 0.7 of the base's norm look like another model to what reads
    deltas. Such a run is finished all the same.
    """
    try:
        (divergence,) = measure([expert], base, texts)
    except InputError as error:
        logger.warning("the divergence cannot be measured: %s", error.message)
        return None
    for line in divergence.tell():
        logger.info("%s", line)
    return divergence


def _write_expert(config: TrainConfig, base: Expert, chosen: Path, out: Path) -> Expert:
    """Write the checkpoint `chosen` to `out` as the expert; return it as a study finds it.

    The file that makes the folder a model comes last.
    """
    is_merged = isinstance(config.regime, Lora) and config.regime.merge
    is_adapter = isinstance(config.regime, ADAPTERS) and not is_merged
    last = "adapter_config.json" if is_adapter else "config.json"
    fresh = out / ".expert.partial"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        if is_merged:
            merged = with_adapter(load_base(base.folder), chosen).merge_and_unload()
            merged.save_pretrained(fresh)
        else:
            for file in sorted(chosen.glob("*.safetensors*")):
                _link_or_copy(file, fresh / file.name)
        if is_adapter:
            document = json.loads((chosen / last).read_text(encoding="utf-8"))
            if not is_folder(config.base):  # an id, which other machines have too
                document["base_model_name_or_path"] = config.base.partition("@")[0]
            write_text(fresh / last, json.dumps(document, indent=2) + "\n")
        else:
            copy_donor_files(base.folder, fresh, config.save_dtype)
        if config.save_dtype != "float32":
            for file in fresh.glob("*.safetensors"):
                _cast(file, config.save_dtype)
        for file in sorted(fresh.iterdir(), key=lambda path: path.name == last):
            file.replace(out / file.name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    if is_adapter:
        return Expert(out.name, base.folder, out, source=f"{base.source}+{out}")
    return Expert(out.name, out, source=str(out))


def _link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _cast(file: Path, dtype: Dtype) -> None:
    """Replace a file of weights by one in another dtype; other names of the file keep theirs."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(file).items()}
    other = file.with_suffix(".cast")
    save_file(tensors, other, metadata={"format": "pt"})
    other.replace(file)
