"""Arrow (arXiv 2405.11157): LoRA experts in one adapter, routed without training by peft's code.

At every matrix, for every token with input x: expert n's share is the softmax over the experts of
``|x . v_n|``, where v_n is the input direction that its change B A moves most (its first right
singular vector). It is the control of AdapterFusion, which learns the shares. An adapter that this
writes holds whole copies of its experts. Knows files; peft is imported in `model`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from ablations.machine.whole_files import told_if_unwritable
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    read_adapter_config,
    read_adapter_tensors,
    read_changes,
)
from layerswap_method.checkpoint.stored import read_rows
from layerswap_method.errors import InputError

KIND = "LORA_ARROW"
"""What its ``adapter_config.json`` says in the place of a kind of peft's."""


def write(experts: Mapping[str, Path], base: Path, folder: Path) -> None:
    """Write the adapter of some experts into `folder`, which is made.

    Args:
        experts: name -> folder of a LoRA adapter to `base`.
        base: the base's checkpoint.
        folder: where to; what is in it is replaced.

    Raises:
        InputError: for an adapter that is none of `base`, or experts of different matrices or
            ranks, which peft's Arrow cannot route.
        LayerSwapError: where it cannot be written.
    """
    from safetensors.torch import save_file

    checkpoint = read_checkpoint(str(base), base)
    tensors: dict[str, torch.Tensor] = {}
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, adapter in experts.items():
        read_changes(adapter, checkpoint)  # refuses what is not one of this base
        stored = read_adapter_tensors(adapter)
        shapes[name] = {tensor: place.shape for tensor, place in stored.items()}
        tensors |= {_prefix(name) + tensor: read_rows(place) for tensor, place in stored.items()}
    _check_alike(shapes)
    configs = {name: read_adapter_config(adapter) for name, adapter in experts.items()}
    config = {"peft_type": KIND, "base_model_name_or_path": str(base), "experts": configs}
    with told_if_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / ADAPTER_WEIGHTS, {"format": "pt"})
        text = json.dumps(config, indent=2) + "\n"
        (folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")


def is_arrow(folder: Path) -> bool:
    """Return whether a folder holds what `write` wrote."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return False
    return read_adapter_config(folder).get("peft_type") == KIND


@contextmanager
def unpacked(folder: Path) -> Iterator[list[str]]:
    """Give the experts in `folder` as adapters of peft's, one folder each, for as long as needed.

    Raises:
        InputError: where it is damaged.
    """
    from safetensors.torch import save_file

    configs = read_adapter_config(folder).get("experts")
    stored = read_adapter_tensors(folder)
    with tempfile.TemporaryDirectory() as root:
        found: list[str] = []
        for name, config in (configs or {}).items():
            start = _prefix(name)
            tensors = {
                tensor.removeprefix(start): read_rows(place)
                for tensor, place in stored.items()
                if tensor.startswith(start)
            }
            if not tensors:
                raise InputError(f"{folder}: has no weights of its expert {name!r}; make it again")
            place = Path(root, str(len(found)))
            place.mkdir()
            save_file(tensors, place / ADAPTER_WEIGHTS, {"format": "pt"})
            (place / ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")
            found.append(str(place))
        if not found:
            raise InputError(f"{folder}: its {ADAPTER_CONFIG} names no experts; make it again")
        yield found


def _prefix(name: str) -> str:
    return f"experts.{name}/"


def _check_alike(shapes: Mapping[str, Mapping[str, tuple[int, ...]]]) -> None:
    first, *others = shapes
    for other in others:
        for tensor in sorted({*shapes[first], *shapes[other]}):
            one, two = (shapes[name].get(tensor, "nothing") for name in (first, other))
            if one != two:
                raise InputError(
                    f"regime.experts: peft's Arrow takes experts of the same matrices and rank; "
                    f"for {tensor}, {first} has {one} and {other} has {two}; train one of them "
                    "again with the targets and the rank of the other"
                )
