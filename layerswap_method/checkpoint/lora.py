"""LoRA adapters as changes of single tensors, read from peft's files: no merged copy of the model.

Kinds of adapters whose change is not ``scaling * B @ A`` of a whole tensor are refused by name;
mergekit can still merge those.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import regex

from layerswap_method.checkpoint.checkpoint import Checkpoint, is_head, name_list
from layerswap_method.checkpoint.low_rank import LowRankChange
from layerswap_method.checkpoint.stored import StoredTensor, read_header, same_content
from layerswap_method.checkpoint.tied_heads import ties, untie_advice
from layerswap_method.errors import InputError
from layerswap_method.file_names import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from layerswap_method.tensor_names import bare_name

_PREFIX = "base_model.model."
_FACTOR = re.compile(rf"{re.escape(_PREFIX)}(.+)\.(lora_A\.weight|lora_embedding_A)")

_INITIAL = (None, True, False, "gaussian", "orthogonal")
"""Values of `init_lora_weights` with which peft leaves the base's weights alone."""

_UNSUPPORTED = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "layer_replication",
    "target_parameters",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "alora_invocation_tokens",
    "kasa_config",
    "velora_config",
    "monteclora_config",
    "ensure_weight_tying",
)
"""Settings that make an adapter more than a low-rank change of whole tensors."""

_CONV1D = ("gpt2", "openai-gpt")
"""Model types that store weights inputs x outputs; peft goes by that and not by its config."""

_PATTERNS_S, _LONGEST_PATTERN = 10.0, 10_000
"""Seconds for matching all patterns of an adapter, and the most characters of one."""

_MERGE_FIRST = (
    "merge it into its base first (peft: merge_and_unload, save_pretrained) and give the folder"
)


def is_lora(adapter: Path) -> bool:
    """Return whether an adapter is a LoRA, of whatever kind: a change of weights."""
    return read_adapter_config(adapter).get("peft_type") == "LORA"


def read_changes(adapter: Path, base: Checkpoint) -> dict[str, LowRankChange]:
    """Return tensor name -> change, for the tensors of `base` that the adapter changes.

    Raises `InputError` for an adapter that is damaged, of an unsupported kind, or of another model.
    """
    config = read_adapter_config(adapter)
    if (kind := unsupported_kind(config)) is not None:
        advice = _MERGE_FIRST
        if config.get("peft_type") == "PREFIX_TUNING":
            advice = "a prefix has no weights to merge: use layerswap swap-adapters"
        raise InputError(f"{adapter}: this kind of adapter is not read: {kind}; {advice}")
    stored = read_adapter_tensors(adapter)
    # A tied output embedding has no change of its own, even where the base stores it.
    tied = ties(base)
    shapes = {name: shape for name, shape in base.shapes.items() if not (tied and is_head(name))}
    changes: dict[str, LowRankChange] = {}
    deadline = time.monotonic() + _PATTERNS_S
    unread = {name for name, tensor in stored.items() if not _is_of_base(name, tensor, base)}
    for name, down in stored.items():
        match = _FACTOR.fullmatch(name)
        if match is None:
            continue
        module, kind = match.groups()
        up = stored.get(f"{_PREFIX}{module}.{kind.replace('_A', '_B')}")
        target = _in_file(f"{module}.weight", shapes)
        if up is None:
            raise InputError(f"{adapter}: {target} has lora_A and no lora_B")
        rank = _pattern(adapter, config, "rank_pattern", module, config["r"], deadline)
        alpha = _pattern(adapter, config, "alpha_pattern", module, config["lora_alpha"], deadline)
        change = LowRankChange(
            down=down,
            up=up,
            scaling=alpha / (math.sqrt(rank) if config.get("use_rslora") else rank),
            transposed=kind == "lora_embedding_A" or base.config.model_type in _CONV1D,
            module=module,
        )
        if target not in shapes:
            raise InputError(
                f"{adapter}: the adapter changes {target}, which its base does not hold (another "
                f"model, or a tied head); {_MERGE_FIRST}"
            )
        _check_change(f"{adapter}: {target}", shapes[target], change, rank)
        changes[target] = change
        unread -= {down.name, up.name}
    if unread:
        raise InputError(
            f"{adapter}: the adapter holds {len(unread)} tensors that are not a low-rank change: "
            f"{name_list(sorted(unread))}; {_MERGE_FIRST}"
        )
    if not changes:
        raise InputError(f"{adapter}: the adapter changes no tensor")
    return changes


def other_base(adapter: Path, base: Checkpoint) -> str | None:
    """Return a warning where the adapter's config names another base; None where it does not.

    Only the last parts of names are compared: a base may have been copied to any folder.
    """
    stated = read_adapter_config(adapter).get("base_model_name_or_path")
    if not isinstance(stated, str) or not stated.strip("/"):
        return None
    path = Path(stated)
    model, _, name = base.name.partition("+")
    reference = model.partition("@")[0]
    names = {Path(reference).name.lower(), base.path.name.lower()}
    if base.path.parent.name == "snapshots":
        names.add(base.path.parents[1].name.rpartition("--")[2].lower())
    is_same = path.exists() and path.resolve() == base.path.resolve()
    if is_same or path.name.lower() in names:
        return None
    return (
        f"{name or adapter}: its config says that it was trained on {stated}, and it is added to "
        f"{reference}; check that it is the same model"
    )


def tie_problems(models: Iterable[tuple[Checkpoint, Path | None]]) -> Iterator[str]:
    """Yield why models with these adapters would not fit once peft has merged the adapters.

    peft unties input and output embeddings where an adapter has trained a copy of one of them.
    """
    untied, tied = list[Checkpoint](), list[Checkpoint]()
    for base, adapter in models:
        if ties(base):
            (untied if adapter is not None and _unties(adapter, base) else tied).append(base)
    if untied and tied:
        names = " and ".join(dict.fromkeys(model.name for model in untied))
        others = " and ".join(dict.fromkeys(model.name for model in tied))
        folders = " and ".join(dict.fromkeys(str(model.path) for model in tied))
        yield (
            f"{names}: its adapter has trained a copy of the embedding or of the head "
            f"(modules_to_save), so peft's merge unties the two, and {others} ties them; "
            f"{untie_advice(folders)}"
        )


def _unties(adapter: Path, base: Checkpoint) -> bool:
    """Return whether peft's merge of an adapter into a tied base gives a head of its own."""
    if read_adapter_config(adapter).get("ensure_weight_tying"):
        return False
    names = (name.removeprefix(_PREFIX) for name in read_adapter_tensors(adapter))
    return any(is_head(name) or _in_file(name, base.tensors) == base.embedding for name in names)


def unsupported_kind(config: Mapping[str, Any]) -> str | None:
    """Return what in its config makes an adapter more than low-rank changes; None for nothing."""
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
    return "; ".join(problems) or None


def read_adapter_config(adapter: Path) -> dict[str, Any]:
    """Return an adapter's config, of any kind. Raises `InputError` where it is damaged."""
    try:
        config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is not a mapping")
        if config.get("peft_type") == "LORA":
            rank, alpha = int(config["r"]), float(config["lora_alpha"])
            if rank < 1 or not math.isfinite(alpha):
                raise ValueError(f"r is {config['r']} and lora_alpha is {config['lora_alpha']}")
            config |= {"r": rank, "lora_alpha": alpha}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{adapter}: no readable {ADAPTER_CONFIG}: {error}") from error
    return config


def read_adapter_tensors(adapter: Path) -> dict[str, StoredTensor]:
    """Return name -> place of an adapter's tensors. Raises `InputError` for a damaged file."""
    return read_header(adapter / ADAPTER_WEIGHTS)


def _pattern(
    adapter: Path,
    config: Mapping[str, Any],
    key: str,
    module: str,
    default: float,
    deadline: float,
) -> Any:
    """Return the value of the first pattern that ends the module's name, as peft looks it up.

    Until `deadline`, a time of `time.monotonic`.
    """
    try:
        for pattern, value in (config.get(key) or {}).items():
            if len(pattern) > _LONGEST_PATTERN:
                raise ValueError("a pattern is too long")
            # Repeats in repeats can take for ever.
            timeout = max(deadline - time.monotonic(), 0.001)
            if regex.match(rf"(.*\.)?({pattern})$", module, timeout=timeout):
                if type(value) not in (int, float) or not 0 < value < math.inf:
                    raise ValueError(f"the value of {pattern} is {value!r}")
                return value
    except TimeoutError:
        raise InputError(
            f"{adapter}: {key} in {ADAPTER_CONFIG}: its patterns take over {_PATTERNS_S:g} s to "
            "match; write plain names of modules in their place"
        ) from None
    except (regex.error, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{adapter}: {key} in {ADAPTER_CONFIG} cannot be read: {error}") from error
    return default


def _in_file(name: str, names: Collection[str]) -> str:
    """Return a tensor's name in the file."""
    bare = bare_name(name)
    return name if name in names else next((n for n in names if bare_name(n) == bare), name)


def _is_of_base(name: str, copy: StoredTensor, base: Checkpoint) -> bool:
    """Return whether a tensor is the base's embedding or head, which peft saves with its change."""
    plain = name.removeprefix(_PREFIX).replace(".base_layer.", ".")
    tensor = base.tensors.get(_in_file(plain, base.tensors))
    if ".base_layer." not in name or tensor is None or tensor.shape != copy.shape:
        return False
    return tensor.dtype != copy.dtype or same_content(tensor, copy)


def _check_change(
    where: str, weight_shape: tuple[int, ...], change: LowRankChange, rank: int
) -> None:
    down, up = change.down.shape, change.up.shape
    if len(down) != 2 or len(up) != 2 or down[0] != rank or up[1] != rank:
        raise InputError(
            f"{where}: lora_A {list(down)} and lora_B {list(up)} are not of the config's rank "
            f"{rank}"
        )
    shape = (down[1], up[0]) if change.transposed else (up[0], down[1])
    if shape != weight_shape:
        raise InputError(
            f"{where}: the change is {list(shape)} and the weight is {list(weight_shape)}; it was "
            "trained on another model"
        )
