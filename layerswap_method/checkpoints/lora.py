"""LoRA adapters as changes of single tensors: no merged copy of the model. Knows peft's files.

Not peft itself: what is read is ``adapter_config.json`` and the names in
``adapter_model.safetensors``. Kinds of adapters whose change is not ``scaling * B @ A`` of a whole
tensor are refused by name; mergekit can still merge those (``--lora-merge-cache``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerswap_method.checkpoints.compatible import ties
from layerswap_method.checkpoints.headers import Checkpoint, is_head, name_list
from layerswap_method.checkpoints.stored import StoredTensor, read_header
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen

_PREFIX = "base_model.model."
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""The files of an adapter, as peft names them."""

_INITIAL = (None, True, False, "gaussian", "orthogonal")
"""Values of `init_lora_weights` with which peft leaves the base's weights alone."""

_UNSUPPORTED = (
    *("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices"),
    *("layer_replication", "target_parameters", "use_qalora", "use_bdlora", "arrow_config"),
    *("alora_invocation_tokens", "kasa_config", "velora_config", "monteclora_config"),
    "ensure_weight_tying",
)
"""Settings that make an adapter more than a low-rank change of whole tensors."""

_CONV1D = ("gpt2", "openai-gpt")
"""Model types that store weights inputs x outputs; peft goes by that and not by its config."""


def check_readable(adapter: Path) -> None:
    """Check that the files of an adapter, of any kind, can be read at all.

    Raises:
        InputError: where one of them is missing or damaged.
    """
    read_adapter_config(adapter)
    read_adapter_tensors(adapter)


def is_lora(adapter: Path) -> bool:
    """Return whether an adapter is a LoRA, of whatever kind: a change of weights.

    Others, such as prefixes, change what a model does and none of its weights.

    Raises:
        InputError: where its config is missing or damaged.
    """
    return read_adapter_config(adapter).get("peft_type") == "LORA"


def read_changes(adapter: Path, base: Checkpoint) -> dict[str, LowRankChange]:
    """Return tensor name -> change, for the tensors that the adapter changes.

    Args:
        adapter: folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
        base: the checkpoint that it changes.

    Raises:
        InputError: for an adapter that is damaged, of an unsupported kind, or of another model.
    """
    config = read_adapter_config(adapter)
    _check_config(adapter, config)
    stored = read_adapter_tensors(adapter)
    # A tied output embedding has no change of its own, even where the base stores it.
    tied = ties(base)
    shapes = {name: shape for name, shape in base.shapes.items() if not (tied and is_head(name))}
    changes: dict[str, LowRankChange] = {}
    for name in stored:
        found = re.fullmatch(rf"{re.escape(_PREFIX)}(.+)\.(lora_A\.weight|lora_embedding_A)", name)
        if found is None:
            continue
        module, kind = found[1], found[2]
        up = f"{_PREFIX}{module}.{kind.replace('_A', '_B')}"
        rank = _pattern(config.get("rank_pattern"), module, config["r"])
        alpha = _pattern(config.get("alpha_pattern"), module, config["lora_alpha"])
        transposed = kind == "lora_embedding_A" or base.config.model_type in _CONV1D
        target = f"{module}.weight"
        if up not in stored:
            raise InputError(f"{adapter}: {target} has lora_A and no lora_B")
        _check_change(
            adapter, target, shapes, stored[name].shape, stored[up].shape, rank, transposed
        )
        changes[target] = LowRankChange(
            file=stored[name].file,
            stamp=stored[name].stamp,
            down=name,
            up=up,
            scaling=alpha / (math.sqrt(rank) if config.get("use_rslora") else rank),
            transposed=transposed,
        )
    known = {name for change in changes.values() for name in (change.down, change.up)}
    if odd := [name for name in stored if name not in known]:
        raise InputError(
            f"{adapter}: the adapter holds {len(odd)} tensors that are not a low-rank change: "
            f"{name_list(odd)}; {_HOW}"
        )
    if not changes:
        raise InputError(f"{adapter}: the adapter changes no tensor")
    return changes


_HOW = "merge it into its base first (peft: merge_and_unload, save_pretrained) and give the folder"


def read_adapter_config(adapter: Path) -> dict[str, Any]:
    """Return what ``adapter_config.json`` says, of an adapter of any kind.

    Raises:
        InputError: where it is missing or damaged.
    """
    path = adapter / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is not a mapping")
        if config.get("peft_type") == "LORA":
            config["r"], config["lora_alpha"] = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{adapter}: no readable {ADAPTER_CONFIG}: {error}") from error
    return config


def _check_config(adapter: Path, config: Mapping[str, Any]) -> None:
    problems = []
    if config.get("peft_type") != "LORA":
        problems.append(f"peft_type is {config.get('peft_type')!r}, not 'LORA'")
    if config.get("bias", "none") != "none":
        problems.append(f"bias is {config['bias']!r}, not 'none'")
    if config.get("init_lora_weights", True) not in _INITIAL:
        problems.append(
            f"init_lora_weights is {config['init_lora_weights']!r}, which changes the base too"
        )
    problems += [f"{name} is set" for name in _UNSUPPORTED if config.get(name)]
    if problems:
        raise InputError(
            f"{adapter}: this kind of adapter cannot be streamed: {'; '.join(problems)}; {_HOW}"
        )


def read_adapter_tensors(adapter: Path) -> dict[str, StoredTensor]:
    """Return name -> place of the tensors of an adapter of any kind.

    Raises:
        InputError: where the file is missing or damaged.
    """
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        raise InputError(
            f"{adapter}: no {ADAPTER_WEIGHTS} (a pickled adapter_model.bin is not loaded: it can "
            "run code); save the adapter again with safe_serialization=True"
        )
    return read_header(adapter / ADAPTER_WEIGHTS)


def _pattern(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """Return the value of the first pattern that ends the module's name, as peft looks it up."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _check_change(
    adapter: Path,
    target: str,
    shapes: Mapping[str, tuple[int, ...]],
    down: tuple[int, ...],
    up: tuple[int, ...],
    rank: int,
    transposed: bool,
) -> None:
    if target not in shapes:
        raise InputError(
            f"{adapter}: the adapter changes {target}, which its base does not hold under that "
            f"name (another model, or a tied output embedding); {_HOW}"
        )
    if len(down) != 2 or len(up) != 2 or down[0] != rank or up[1] != rank:
        raise InputError(
            f"{adapter}: {target}: lora_A {list(down)} and lora_B {list(up)} are not of the "
            f"config's rank {rank}"
        )
    shape = (down[1], up[0]) if transposed else (up[0], down[1])
    if shape != shapes[target]:
        raise InputError(
            f"{adapter}: {target}: the change is {list(shape)} and the weight is "
            f"{list(shapes[target])}; it was trained on another model"
        )


class LowRankChange(Frozen):
    """A LoRA adapter's change of one tensor: ``scaling * (up @ down)``."""

    file: Path
    """The adapter's safetensors file."""

    stamp: int
    """When that file was last written, in ns: another file of the same name is another change."""

    down: str
    """Name of ``lora_A`` (rank x inputs)."""

    up: str
    """Name of ``lora_B`` (outputs x rank)."""

    scaling: float
    """alpha/r, or alpha/sqrt(r) with rank-stabilised LoRA."""

    transposed: bool
    """Whether the tensor is stored inputs x outputs (embeddings, GPT-2's Conv1D)."""
