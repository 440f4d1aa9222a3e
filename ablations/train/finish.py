"""What comes after the last step: choose a checkpoint, write the expert, measure it."""

from __future__ import annotations

import gc
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ablations.machine.whole_files import write_text
from ablations.models.find import Expert
from ablations.train.config import Dtype, TrainConfig
from ablations.train.divergence import Divergence, measure
from ablations.train.folder import (
    SavedCheckpoint,
    TrainingFolder,
    link_or_copy,
    publish,
    told_if_full,
)
from ablations.train.regime import ADAPTERS, Lora
from ablations.train.rows import Row
from ablations.train.select import select
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import is_folder
from layerswap_method.stream.donor_files import copy_donor_files

logger = logging.getLogger(__name__)

HELD_OUT = "held_out.jsonl"
"""Texts that were not trained on: what the drift of several experts can be measured on."""

DIVERGENCE = "divergence.json"
EXPERTS = "experts.yml"
"""The expert with its measured facts, as `layerswap run --experts` reads it."""

_PARTIAL = ".expert.partial"


def finish(
    config: TrainConfig,
    base: Expert,
    held_out: Sequence[Row],
    folder: TrainingFolder,
    record: dict[str, Any],
) -> dict[str, Any]:
    """Choose a checkpoint, make the expert of it, measure it; return the completed record.

    Raises:
        InputError: for tasks that cannot be asked.
        LayerSwapError: where something cannot be written.
    """
    gc.collect()
    checkpoints = folder.checkpoints()
    chosen = checkpoints[-1]
    if config.select is not None:
        adapter_base = base.folder if isinstance(config.regime, ADAPTERS) else None
        chosen, record["selection"] = select(checkpoints, config.select, adapter_base)
    record |= {"step": chosen.step, "samples": chosen.samples}
    texts = [config.separator.join(m["content"] for m in row) for row in held_out]
    with told_if_full(folder.root, ". Make room and run the same command again"):
        _write_expert(config, base.folder, chosen, folder.root)
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
        write_text(folder.root / HELD_OUT, "".join(lines))
        expert = _found(config, base, folder.root.resolve())
        entry: dict[str, Any] = {"path": expert.source}
        if config.measure and (found := _measured(expert, base, texts)) is not None:
            write_text(folder.root / DIVERGENCE, found.model_dump_json(indent=1) + "\n")
            record["facts"] = entry["facts"] = found.facts()
        experts = {"experts": {"base": base.source, expert.name: entry}}
        text = yaml.safe_dump(experts, sort_keys=False, allow_unicode=True)
        write_text(folder.root / EXPERTS, text)
    record["finished"] = True
    folder.write(record)
    # Only now: a run that is stopped before this goes on from these.
    folder.forget_states()
    kept = {row["step"] for row in record.get("selection", ()) if row["kept"]}
    for each in checkpoints:
        if kept and each.step not in kept:
            shutil.rmtree(each.folder, ignore_errors=True)
    return record


def _is_adapter(config: TrainConfig) -> bool:
    """Return whether the expert is an adapter, to be named with its base."""
    return isinstance(config.regime, ADAPTERS) and not getattr(config.regime, "merge", False)


def _found(config: TrainConfig, base: Expert, out: Path) -> Expert:
    """Return the expert in `out` as a study finds it."""
    if _is_adapter(config):
        return Expert(out.name, base.folder, out, source=f"{base.source}+{out}")
    return Expert(out.name, out, source=str(out))


def _measured(expert: Expert, base: Expert, texts: Sequence[str]) -> Divergence | None:
    """Return the divergence; None, with a warning, where there is no reading it.

    Weights that moved by more than 0.7 of the base's norm look like another model to what reads
    deltas. Such a run is finished all the same.
    """
    try:
        (found,) = measure([expert], base, texts)
    except InputError as error:
        logger.warning("the divergence cannot be measured: %s", error.message)
        return None
    for line in found.tell():
        logger.info("%s", line)
    return found


def _write_expert(config: TrainConfig, base: Path, chosen: SavedCheckpoint, out: Path) -> None:
    """Write the checkpoint `chosen` to `out` as the expert; the file that names it comes last."""
    fresh = out / _PARTIAL
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        if isinstance(config.regime, Lora) and config.regime.merge:
            from ablations.train.model import merge_adapter

            merge_adapter(base, chosen.folder).save_pretrained(fresh)
        else:
            for file in sorted(chosen.folder.glob("*.safetensors*")):
                link_or_copy(file, fresh / file.name)
        if _is_adapter(config):
            name = "adapter_config.json"
            document = json.loads((chosen.folder / name).read_text(encoding="utf-8"))
            if not is_folder(config.base):  # an id, which other machines have too
                document["base_model_name_or_path"] = config.base.partition("@")[0]
            write_text(fresh / name, json.dumps(document, indent=2) + "\n")
        else:
            copy_donor_files(base, fresh, config.save_dtype)
        if config.save_dtype != "float32":
            for file in fresh.glob("*.safetensors"):
                _cast(file, config.save_dtype)
        publish(fresh, out, "adapter_config.json" if _is_adapter(config) else "config.json")
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _cast(file: Path, dtype: Dtype) -> None:
    """Replace a file of weights by one in another dtype; other names of the file keep theirs."""
    import torch
    from safetensors.torch import load_file, save_file

    kind = getattr(torch, dtype)
    tensors = {name: tensor.to(kind) for name, tensor in load_file(file).items()}
    other = file.with_suffix(".cast")
    save_file(tensors, other, metadata={"format": "pt"})
    other.replace(file)
