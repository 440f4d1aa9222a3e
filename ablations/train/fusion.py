"""AdapterFusion over frozen LoRA experts: the method of arXiv 2005.00247, not its library.

In every decoder layer l, for every token with hidden state h (the layer's input)::

    z_n = layer_n(h) - h                  what the layer adds when expert n's LoRA is in it
    s   = softmax_n((Q h + q) . (K z_n + k))
    out = h + V sum_n(s_n z_n)            (the paper's sum_n(s_n V z_n), as V is linear)

Q, K, V (hidden x hidden, per layer) are trained and nothing else. V begins as the identity, so one
expert alone gives that expert. The paper fuses after a bottleneck adapter; a LoRA is inside of the
layer, so here the layer itself runs once per expert. The experts stand side by side in the batch,
and so each has its own keys and values in the cache. No weights of a plain model say this: it runs
on transformers only.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ablations.machine.whole_files import replaced_folder, told_if_unwritable
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.stored import read_tensor
from layerswap_method.checkpoint.lora import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    LowRankChange,
    read_adapter_config,
    read_adapter_tensors,
    read_changes,
)
from layerswap_method.errors import InputError
from layerswap_method.tensor_names import decoder_layer

KIND = "ADAPTER_FUSION"
"""What a fusion's ``adapter_config.json`` says in the place of a kind of peft's."""

NAME = "adapter_fusion"
"""The module of a model that holds its fusion."""

_DOWN, _UP = "lora_down.", "lora_up."
"""What the names of the experts' matrices begin with, before the module's name."""


class FusionLayer(nn.Module):
    """Q, K and V of one layer."""

    def __init__(self, width: int) -> None:
        """Take the initial values of the authors' code: Q and K small, V the identity."""
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width, bias=False)
        for each in (self.query, self.key):
            nn.init.normal_(each.weight, std=0.02)
            nn.init.zeros_(each.bias)
        nn.init.eye_(self.value.weight)

    def forward(self, hidden: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Return what the experts add together.

        Args:
            hidden: [..., width], the layer's input.
            added: [experts, ..., width], what each expert adds to it.
        """
        hidden, added = (each.to(self.value.weight.dtype) for each in (hidden, added))
        shares = (self.query(hidden) * self.key(added)).sum(-1).softmax(0)
        mixed: torch.Tensor = self.value((shares[..., None] * added).sum(0))
        return mixed

    def distance(self) -> torch.Tensor:
        """Return the squared distance of V from the identity."""
        weight = self.value.weight
        return (weight - torch.eye(len(weight), device=weight.device)).square().sum()


class Fusion(nn.Module):
    """The fusion of one model: Q, K, V per layer, and the experts' frozen matrices."""

    def __init__(self, experts: Sequence[str], layers: int, width: int) -> None:
        """Take the initial values; `attach` brings it into a model."""
        super().__init__()
        self.experts = tuple(experts)
        """Names, in the order of the sum."""
        self.layers = nn.ModuleList(FusionLayer(width) for _ in range(layers))
        """One per decoder layer."""
        self.width = width
        """Values of a hidden state."""
        self._matrices: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def set_matrices(self, module: str, down: torch.Tensor, up: torch.Tensor) -> None:
        """Set the experts' changes of a module of the model.

        Args:
            module: its name.
            down: [experts, rank, inputs].
            up: [experts, outputs, rank], with the scaling in it.
        """
        self._matrices[module] = down, up

    @property
    def matrices(self) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
        """Module -> what `set_matrices` was given."""
        return self._matrices

    def penalty(self) -> torch.Tensor:
        """Return the squared distance of all V from the identity."""
        return torch.stack([layer.distance() for layer in self._each()]).sum()

    def attach(self, model: Any) -> None:
        """Make `model` the fused one, in place; only the fusion is then trained.

        Raises:
            InputError: where the model is not of the fusion's sizes, or has one already.
        """
        if hasattr(model, NAME):
            raise InputError("the model has a fusion already")
        blocks = _decoder_layers(model)
        width = model.config.get_text_config().hidden_size
        ours = (len(self.layers), self.width)
        if (len(blocks), width) != ours:
            raise InputError(
                f"the fusion is of {ours[0]} layers of width {ours[1]}, and the model has "
                f"{len(blocks)} of width {width}; it was trained on another base"
            )
        model.requires_grad_(False)
        with ExitStack() as undo:
            for block, layer in zip(blocks, self._each(), strict=True):
                undo.callback(setattr, block, "forward", block.forward)
                self._wrap_layer(block, layer)
            for name in self._matrices:
                undo.callback(self._hook_module(model, name).remove)
            undo.pop_all()
        model.add_module(NAME, self.to(next(model.parameters()).device))
        self.requires_grad_(True)

    def _each(self) -> Iterator[FusionLayer]:
        for layer in self.layers:
            assert isinstance(layer, FusionLayer)
            yield layer

    def _wrap_layer(self, block: Any, layer: FusionLayer) -> None:
        """Replace a decoder layer's forward: hooks of others then see one batch and its fusion."""
        count, run = len(self.experts), block.forward

        def forward(hidden_states: torch.Tensor, *others: Any, **named: Any) -> Any:
            size = len(hidden_states)
            masks = (_repeated(each, size, count) for each in others)
            for name in named.keys() & {"attention_mask", "position_ids", "position_embeddings"}:
                named[name] = _repeated(named[name], size, count)
            output = run(_repeated(hidden_states, size, count), *masks, **named)
            first = output[0] if isinstance(output, tuple) else output
            added = first.unflatten(0, (count, size)) - hidden_states
            fused = (hidden_states + layer(hidden_states, added)).to(first.dtype)
            return (fused, *output[1:]) if isinstance(output, tuple) else fused

        block.forward = forward

    def _hook_module(self, model: Any, name: str) -> Any:
        try:
            module = model.get_submodule(name)
        except AttributeError:
            raise InputError(
                f"the experts change {name}, which the model does not have; they were trained on "
                "another base"
            ) from None

        def change(_: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            given = args[0]
            down, up = self._on(given)[name]
            rows = given.to(down.dtype).reshape(len(down), -1, given.shape[-1])
            added = rows @ down.mT @ up.mT
            total: torch.Tensor = output + added.view(output.shape).to(output.dtype)
            return total

        return module.register_forward_hook(change)

    def _on(self, given: torch.Tensor) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return the matrices on the device of `given`, in float32 or its own wider dtype."""
        dtype = torch.promote_types(given.dtype, torch.float32)
        some = next(iter(self._matrices.values()))[0]
        if (some.device, some.dtype) != (given.device, dtype):
            self._matrices = {
                name: (down.to(given.device, dtype), up.to(given.device, dtype))
                for name, (down, up) in self._matrices.items()
            }
        return self._matrices


def build(model: Any, base: Path, experts: Mapping[str, Path], seed: int = 0) -> Fusion:
    """Return the fusion of LoRA experts, attached to `model` and ready to be trained.

    Args:
        model: the base as transformers loads it; changed in place, its weights frozen.
        base: the base's checkpoint.
        experts: name -> folder of a LoRA adapter to that base.
        seed: of the first values of Q and K.

    Raises:
        InputError: for no expert, an adapter that is not one or of another model, or one that
            changes something outside of the decoder layers.
    """
    if not experts:
        raise InputError("adapter_fusion: no experts; give one adapter or more")
    checkpoint = read_checkpoint(str(base), base)
    changes = {name: read_changes(adapter, checkpoint) for name, adapter in experts.items()}
    for name, found in changes.items():
        outside = [tensor for tensor in found if decoder_layer(tensor) is None]
        if outside:
            raise InputError(
                f"{experts[name]}: changes {outside[0]}, which is in no decoder layer; "
                "adapter_fusion fuses layers only: train the expert without it"
            )
    width = model.config.get_text_config().hidden_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fusion = Fusion(tuple(experts), checkpoint.depth(), width)
    for tensor in dict.fromkeys(itertools.chain(*changes.values())):
        down, up = _stacked([found.get(tensor) for found in changes.values()])
        fusion.set_matrices(tensor.removesuffix(".weight"), down, up)
    fusion.attach(model)
    return fusion


def save(fusion: Fusion, folder: Path, base: str) -> None:
    """Write a fusion to a folder of its own, whole or not at all; see `write`.

    Args:
        fusion: what to write.
        folder: made, or replaced where it holds a fusion.
        base: reference of the base, for the config.

    Raises:
        InputError: where `folder` holds something else.
        LayerSwapError: where it cannot be written.
    """
    if folder.exists() and not is_fusion(folder):
        raise InputError(f"{folder}: exists and is no fusion; give another folder")
    with told_if_unwritable(folder), replaced_folder(folder) as fresh:
        write(fusion, fresh, base)


def write(fusion: Fusion, folder: Path, base: str) -> None:
    """Write a fusion, with its experts' matrices, as ``adapter_model.safetensors`` and a config."""
    from safetensors.torch import save_file

    tensors = dict(fusion.state_dict())
    for name, (down, up) in fusion.matrices.items():
        tensors |= {f"{_DOWN}{name}": down, f"{_UP}{name}": up}
    config = {
        "peft_type": KIND,
        "base_model_name_or_path": base,
        "experts": list(fusion.experts),
        "layers": len(fusion.layers),
        "width": fusion.width,
    }
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(kept, folder / ADAPTER_WEIGHTS, {"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def restore(fusion: Fusion, folder: Path) -> None:
    """Set Q, K and V to those in `folder`.

    Raises:
        InputError: where they are damaged, or of other sizes.
    """
    try:
        fusion.load_state_dict(_own(_stored(folder)))
    except RuntimeError as error:
        raise InputError(f"{folder}: is no whole fusion: {error}") from error


def is_fusion(folder: Path) -> bool:
    """Return whether a folder holds a fusion."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return False
    return read_adapter_config(folder).get("peft_type") == KIND


def load(model: Any, folder: Path) -> Fusion:
    """Return the fusion in `folder`, attached to `model`.

    Args:
        model: the base as transformers loads it; changed in place.
        folder: what `save` wrote.

    Raises:
        InputError: where it is no fusion, damaged, or of another base.
    """
    config = read_adapter_config(folder)
    if config.get("peft_type") != KIND:
        raise InputError(f"{folder}: is no fusion (peft_type is {config.get('peft_type')!r})")
    stored = _stored(folder)
    downs = {name.removeprefix(_DOWN): t for name, t in stored.items() if name.startswith(_DOWN)}
    try:
        fusion = Fusion(config["experts"], config["layers"], config["width"])
        for name, down in downs.items():
            fusion.set_matrices(name, down, stored[f"{_UP}{name}"])
        fusion.load_state_dict(_own(stored))
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{folder}: is no whole fusion: {error}") from error
    fusion.attach(model)
    return fusion


def _stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: read_rows(place) for name, place in read_adapter_tensors(folder).items()}


def _own(stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors that are no expert's."""
    return {n: tensor for n, tensor in stored.items() if not n.startswith((_DOWN, _UP))}


def _stacked(changes: Sequence[LowRankChange | None]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return down [experts, rank, inputs] and up [experts, outputs, rank], with the scaling in up.

    Lower ranks are filled with zeros, and so is an expert without a change. float32, or float64
    where an expert has that.
    """
    factors = {
        i: tuple(
            read_tensor(factor) for factor in (change.down, change.up)
        )
        for i, change in enumerate(changes)
        if change is not None
    }
    rank = max(len(down) for down, _ in factors.values())
    some_down, some_up = next(iter(factors.values()))
    dtype = torch.float32
    for pair in factors.values():
        for each in pair:
            dtype = torch.promote_types(dtype, each.dtype)
    downs = torch.zeros(len(changes), rank, some_down.shape[1], dtype=dtype)
    ups = torch.zeros(len(changes), len(some_up), rank, dtype=dtype)
    for i, (down, up) in factors.items():
        change = changes[i]
        assert change is not None
        downs[i, : len(down)] = down
        ups[i, :, : len(down)] = up.to(dtype) * change.scaling
    return downs, ups


def _decoder_layers(model: Any) -> Sequence[nn.Module]:
    count = model.config.get_text_config().num_hidden_layers
    for name, module in model.named_modules():
        is_list = isinstance(module, nn.ModuleList) and len(module) == count
        if is_list and decoder_layer(f"{name}.0.weight") == 0:
            return list(module)
    raise InputError(f"{type(model).__name__}: its decoder layers are not known by their names")


def _repeated(value: Any, size: int, count: int) -> Any:
    """Return tensors of `size` rows `count` times, one expert's rows after the other's.

    A vector is no batch (positions in the cache), and one row serves every batch.
    """
    if isinstance(value, tuple):
        return tuple(_repeated(each, size, count) for each in value)
    if not isinstance(value, torch.Tensor) or value.ndim < 2 or len(value) != size:
        return value
    return value.repeat(count, *[1] * (value.ndim - 1))
