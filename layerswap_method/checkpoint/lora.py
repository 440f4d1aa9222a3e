"""LoRA adapters as changes of single tensors, read from peft's files: no merged copy of the model.

Kinds of adapters whose change is not ``scaling * B @ A`` of a whole tensor are refused by name;
mergekit can still merge those.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from layerswap_method.checkpoint.checkpoint import Checkpoint, is_head, name_list
from layerswap_method.checkpoint.lora_modules import LoraModules
from layerswap_method.checkpoint.low_rank import LowRankChange
from layerswap_method.checkpoint.origin import sampled_change
from layerswap_method.checkpoint.stored import (
    StoredTensor,
    ensure_rows_there,
    read_header,
    read_rows,
    row_blocks,
    same_content,
)
from layerswap_method.checkpoint.tied_heads import ties, untie_advice
from layerswap_method.errors import InputError
from layerswap_method.file_names import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from layerswap_method.recipe.references import is_there
from layerswap_method.tensor_names import bare_name, split_layer

_PREFIX = "base_model.model."
_FACTOR = re.compile(rf"{re.escape(_PREFIX)}(.+)\.(lora_A\.weight|lora_embedding_A)")

_EXPERT = re.compile(r"experts\.\d+\.")

_INITIAL = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` with which peft leaves the base's weights alone."""

_SAVED_WHOLE = ("modules_to_save", "trainable_token_indices", "lora_bias", "use_dora")
_OTHER_FACTORS = (
    "layer_replication",
    "target_parameters",
    "use_bdlora",
    "arrow_config",
    "alora_invocation_tokens",
    "kasa_config",
    "velora_config",
    "monteclora_config",
)
"""Settings that make an adapter more than a low-rank change of whole tensors: by tensors besides,
or by factors that mean something else."""

_SECTIONS = (
    "trainable_token_indices",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
)
"""Settings that are on where they are empty."""

_CONV1D = ("gpt2", "openai-gpt")
"""Model types whose layers store weights inputs x outputs; peft goes by that and not by its
config."""

_MERGE_FIRST = (
    "merge it into its base first (peft: merge_and_unload, save_pretrained) and give the folder"
)


def is_lora(adapter: Path) -> bool:
    """Return whether an adapter is a LoRA, of whatever kind: a change of weights."""
    return read_adapter_config(adapter).get("peft_type") == "LORA"


def read_changes(adapter: Path, base: Checkpoint) -> dict[str, LowRankChange]:
    """Return tensor name -> change, for the tensors of `base` that the adapter changes.

    They are those that peft's `merge_and_unload` adds. Raises `InputError` for an adapter that is
    damaged, not whole, of an unsupported kind, or of another model.
    """
    config = read_adapter_config(adapter)
    if (kind := unsupported_kind(config)) is not None:
        advice = _MERGE_FIRST
        if config.get("peft_type") == "PREFIX_TUNING":
            advice = "a prefix has no weights to merge: use layerswap swap-adapters"
        raise InputError(f"{adapter}: this kind of adapter is not read: {kind}; {advice}")
    stored = read_adapter_tensors(adapter)
    names = _Names(base)
    _check_whole_tensors(adapter, stored, base, names)
    changes = _read_factors(adapter, config, stored, base, names)
    read = {factor.name for change in changes.values() for factor in (change.down, change.up)}
    unread = [
        name
        for name, tensor in stored.items()
        if name not in read and not _is_of_base(name, tensor, base, names)
    ]
    if unread:
        raise InputError(
            f"{adapter}: the adapter holds {len(unread)} tensors that are not a low-rank change: "
            f"{name_list(unread)}; {_MERGE_FIRST}"
        )
    if not changes:
        raise InputError(f"{adapter}: the adapter changes no tensor")
    return changes


def check_for_peft(adapter: Path, base: Checkpoint) -> None:
    """Check that peft, which mergekit calls, can merge an adapter of another kind into its base.

    Raises `InputError` as `read_changes`, for what can be known without peft.
    """
    config, stored = read_adapter_config(adapter), read_adapter_tensors(adapter)
    names = _Names(base)
    _check_whole_tensors(adapter, stored, base, names)
    if not any(map(config.get, _OTHER_FACTORS)):
        _read_factors(adapter, config, stored, base, names)


class _Names:
    """The base's tensors by the names of a loaded model."""

    def __init__(self, base: Checkpoint) -> None:
        # A tied output embedding has no change of its own, even where the base stores it.
        tied = ties(base)
        self.shapes = {n: shape for n, shape in base.shapes.items() if not (tied and is_head(n))}
        self._by_bare = {bare_name(name): name for name in reversed(self.shapes)}

    def in_file(self, name: str) -> str:
        """Return the name in the base's files; `name` where they have no such tensor."""
        return name if name in self.shapes else self._by_bare.get(bare_name(name), name)


def _check_whole_tensors(
    adapter: Path, stored: Mapping[str, StoredTensor], base: Checkpoint, names: _Names
) -> None:
    """Check that tensors which an adapter replaces have the shapes of the base's."""
    for key, tensor in stored.items():
        name = names.in_file(key.removeprefix(_PREFIX).replace(".base_layer.", "."))
        shape = base.shapes.get(name, tensor.shape)
        if tensor.shape == shape:
            continue
        where = f"{adapter}: its {name} is {list(tensor.shape)} and the base's {list(shape)}"
        if name in (base.embedding, base.head) and tensor.shape[1:] == shape[1:]:
            raise InputError(
                f"{where}: it was trained with other tokens. Give it a base with as many rows: "
                f"load {base.name.partition('+')[0]}, resize_token_embeddings({tensor.rows}), save "
                "it with the adapter's tokenizer"
            )
        raise InputError(f"{where}; it was trained on another model")


def _read_factors(
    adapter: Path,
    config: Mapping[str, Any],
    stored: Mapping[str, StoredTensor],
    base: Checkpoint,
    names: _Names,
) -> dict[str, LowRankChange]:
    """Return tensor name -> change of every pair of lora_A and lora_B in an adapter.

    Raises `InputError` where one has no place in the base, or where one is missing.
    """
    try:
        modules = LoraModules.read(config)
    except ValueError as error:
        raise InputError(f"{adapter}: {ADAPTER_CONFIG}: {error}") from error
    changes: dict[str, LowRankChange] = {}
    ignored: list[str] = []
    for name, down in stored.items():
        match = _FACTOR.fullmatch(name)
        if match is None:
            continue
        module, kind = match.groups()
        up = stored.get(f"{_PREFIX}{module}.{kind.replace('_A', '_B')}")
        target = names.in_file(f"{module}.weight")
        if up is None:
            raise InputError(f"{adapter}: {target} has lora_A and no lora_B")
        try:
            rank, scaling = modules.rank_of(module), modules.scaling_of(module)
        except ValueError as error:
            raise InputError(f"{adapter}: {ADAPTER_CONFIG}: {module}: {error}") from error
        is_conv1d = base.config.model_type in _CONV1D and base.decoder.layer(target) is not None
        change = LowRankChange(
            down=down,
            up=up,
            scaling=scaling,
            transposed=kind == "lora_embedding_A" or is_conv1d,
            module=module,
        )
        if target not in names.shapes:
            raise InputError(
                f"{adapter}: the adapter changes {target}, which its base does not hold (another "
                f"model, or a tied head); {_MERGE_FIRST}"
            )
        if target in changes:
            raise InputError(f"{adapter}: {target} has two changes: {changes[target].module} too")
        if not modules.has(module) and not modules.has(target.removesuffix(".weight")):
            ignored.append(module)
        _check_change(f"{adapter}: {target}", names.shapes[target], change, rank)
        changes[target] = change
    if ignored:
        raise InputError(
            f"{adapter}: its {ADAPTER_CONFIG} does not target {name_list(ignored)}, whose matrices "
            "it holds and peft would leave out; name them in target_modules, or take the matrices "
            "out of the file"
        )
    if missing := [*_missing_modules(modules, changes, base)]:
        raise InputError(
            f"{adapter}: it lacks the matrices of {name_list(missing)}, which its {ADAPTER_CONFIG} "
            "targets; save it again as a whole, or name them in exclude_modules where they were "
            "not trained"
        )
    return changes


def _missing_modules(
    modules: LoraModules, changes: Mapping[str, LowRankChange], base: Checkpoint
) -> Iterator[str]:
    """Yield the modules of decoder layers that an adapter targets and has no change of.

    Files may store matrices of which a loaded model has none, such as those of experts that are
    one tensor there: they count where the adapter changes the same one of another layer.
    """
    decoder, prefix = base.decoder, base.decoder.prefix
    kinds = set[str]()
    for name, change in changes.items():
        layer, kind = split_layer(name)
        if decoder.layer(name) is not None:
            kinds.add(kind)
            prefix = change.module.removesuffix(f".{layer}.{kind.removesuffix('.weight')}")
    for name, shape in base.shapes.items():
        layer, kind = split_layer(name)
        if decoder.layer(name) is None or name in changes or len(shape) != 2:
            continue
        module = f"{prefix}.{layer}.{kind.removesuffix('.weight')}"
        is_module = kind in kinds or (kind.endswith(".weight") and not _EXPERT.search(kind))
        if is_module and modules.has(module):
            yield module


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
    names = _names_of_place(Path(reference)) | _names_of_place(base.path)
    is_same = is_there(path) and path.resolve() == base.path.resolve()
    if is_same or names & _names_of_place(path):
        return None
    return (
        f"{name or adapter}: its config says that it was trained on {stated}, and it is added to "
        f"{reference}; check that it is the same model"
    )


def _names_of_place(path: Path) -> set[str]:
    """Return the last part of a path, and the model's name of one in a cache of the hub."""
    names = {path.name.lower()}
    if path.parent.name == "snapshots":
        names.add(path.parents[1].name.rpartition("--")[2].lower())
    return names


def added_elsewhere(name: str, checkpoint: Checkpoint, base: Checkpoint) -> str | None:
    """Return that an adapter is added to another model than a merge's base; None where it is not.

    Copies of one model are compared by a sample.
    """
    if checkpoint.path == base.path or not sampled_change(checkpoint.tensors, base.tensors):
        return None
    return (
        f"{name}: its adapter is added to another model than base_model {base.name}, so what the "
        "merge takes of it is more than the adapter's change"
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
    names, in_file = read_adapter_tensors(adapter), _Names(base).in_file
    plain = [name.removeprefix(_PREFIX) for name in names]
    return any(is_head(name) or in_file(name) == base.embedding for name in plain)


def unsupported_kind(config: Mapping[str, Any]) -> str | None:
    """Return what in its config makes an adapter more than low-rank changes; None for nothing."""
    problems = []
    if config.get("peft_type") != "LORA":
        problems.append(f"peft_type is {config.get('peft_type')!r}, not 'LORA'")
    if config.get("bias", "none") != "none":
        problems.append(f"bias is {config['bias']!r}, not 'none'")
    initial = config.get("init_lora_weights", True)
    initial = "gaussian" if str(initial).lower() == "gaussian" else initial
    if initial not in _INITIAL:
        problems.append(
            f"init_lora_weights is {config['init_lora_weights']!r}, which changes the base too"
        )
    for name in (*_SAVED_WHOLE, *_OTHER_FACTORS, "ensure_weight_tying"):
        if config.get(name) or (name in _SECTIONS and config.get(name) is not None):
            problems.append(f"{name} is set")
    return "; ".join(problems) or None


def read_adapter_config(adapter: Path) -> dict[str, Any]:
    """Return an adapter's config, of any kind. Raises `InputError` where it is damaged."""
    try:
        config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is not a mapping")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{adapter}: no readable {ADAPTER_CONFIG}: {error}") from error
    return config


def read_adapter_tensors(adapter: Path) -> dict[str, StoredTensor]:
    """Return name -> place of an adapter's tensors. Raises `InputError` for a damaged file."""
    return read_header(adapter / ADAPTER_WEIGHTS)


def _is_of_base(name: str, copy: StoredTensor, base: Checkpoint, names: _Names) -> bool:
    """Return whether a tensor is the base's embedding or head, which peft saves with its change."""
    if ".base_layer." not in name:
        return False
    tensor = base.tensors.get(names.in_file(name.removeprefix(_PREFIX).replace(".base_layer", "")))
    return tensor is not None and tensor.shape == copy.shape and _is_copy(copy, tensor)


@functools.lru_cache(maxsize=64)
def _is_copy(copy: StoredTensor, tensor: StoredTensor) -> bool:
    """Return whether `copy` is what a tensor is in the copy's dtype."""
    if copy.dtype == tensor.dtype:
        return same_content(tensor, copy)
    ensure_rows_there([(tensor, slice(None))])
    for rows in row_blocks(tensor.shape):
        values = read_rows(copy, rows)
        if not read_rows(tensor, rows).to(values.dtype).equal(values):
            return False
    return True


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
