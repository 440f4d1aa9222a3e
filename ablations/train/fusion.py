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

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from ablations.train.decoder import decoder_of
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import (
    read_adapter_config,
    read_adapter_tensors,
    read_changes,
)
from layerswap_method.checkpoint.low_rank import LowRankChange
from layerswap_method.checkpoint.stored import read_tensor
from layerswap_method.errors import InputError
from layerswap_method.file_names import ADAPTER_CONFIG, ADAPTER_WEIGHTS

KIND = "ADAPTER_FUSION"
"""The kind in a fusion's ``adapter_config.json``, in the place of one of peft's."""

NAME = "adapter_fusion"
"""The module of a model that holds its fusion."""

_DOWN, _UP = "lora_down.", "lora_up."
"""Beginnings of the names of the experts' matrices in files, before the module's name."""


class FusionLayer(nn.Module):
    """Q, K and V of one layer."""

    def __init__(self, width: int) -> None:
        """Take the initial values of the authors' code: Q and K small, V the identity."""
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width, bias=False)
        for linear in (self.query, self.key):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        nn.init.eye_(self.value.weight)

    def forward(self, hidden: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Return the sum that the experts add together to `hidden` [..., width].

        `added` [experts, ..., width] has the addition of every expert.
        """
        dtype = self.value.weight.dtype
        hidden, added = hidden.to(dtype), added.to(dtype)
        shares = (self.query(hidden) * self.key(added)).sum(-1).softmax(0)
        mixed: torch.Tensor = self.value((shares[..., None] * added).sum(0))
        return mixed


class Fusion(nn.Module):
    """The fusion of one model: Q, K, V per layer, and the experts' frozen matrices as buffers."""

    def __init__(
        self, experts: Sequence[str], layers: int, width: int, matrices: Mapping[str, torch.Tensor]
    ) -> None:
        """Take the experts' names and sizes of the model; `attach` brings it into one.

        `matrices` are ``lora_down.MODULE`` [experts, rank, inputs] and ``lora_up.MODULE``
        [experts, outputs, rank], with the scaling in it, of every module that is changed.
        """
        super().__init__()
        self.experts = tuple(experts)
        self.width = width
        self.layers = nn.ModuleList(FusionLayer(width) for _ in range(layers))
        self._changed = [name.removeprefix(_DOWN) for name in matrices if name.startswith(_DOWN)]
        for name, matrix in matrices.items():
            self.register_buffer(_key(name), matrix)

    def penalty(self) -> torch.Tensor:
        """Return the squared distance of all V from the identity."""
        weights = [layer.get_parameter("value.weight") for layer in self.layers]
        identity = torch.eye(self.width, device=weights[0].device)
        return torch.stack([(weight - identity).square().sum() for weight in weights]).sum()

    def write(self, folder: Path, base: str) -> None:
        """Write it as ``adapter_model.safetensors`` and a config; `base` names the model."""
        from safetensors.torch import save_file

        config = {
            "peft_type": KIND,
            "base_model_name_or_path": base,
            "experts": list(self.experts),
            "layers": len(self.layers),
            "width": self.width,
        }
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name.replace("/", "."): tensor.detach().cpu().contiguous()
            for name, tensor in self.state_dict().items()
        }
        save_file(tensors, folder / ADAPTER_WEIGHTS, {"format": "pt"})
        text = json.dumps(config, indent=2) + "\n"
        (folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Set all values to those in `folder`."""
        try:
            self.load_state_dict({_key(name): tensor for name, tensor in _read(folder).items()})
        except RuntimeError as error:
            raise InputError(f"{folder}: is not a complete fusion: {error}") from error

    def attach(self, model: Any) -> None:
        """Make `model` the fused one, in place; only the fusion is then trained and saved."""
        blocks = list(model.get_submodule(decoder_of(model).prefix))
        width = model.config.get_text_config().hidden_size
        if (len(blocks), width) != (len(self.layers), self.width):
            raise InputError(
                f"the fusion is of {len(self.layers)} layers of width {self.width}, and the model "
                f"has {len(blocks)} of width {width}; it was trained on another base"
            )
        model.requires_grad_(False)
        for block, layer in zip(blocks, self.layers, strict=True):
            self._wrap_layer(block, layer)
        for module in self._changed:
            self._hook_module(model, module)
        base = str(model.name_or_path)
        # A checkpoint is the fusion, not the whole model.
        model.save_pretrained = lambda folder, **_: self.write(Path(folder), base)
        model.add_module(NAME, self.to(next(model.parameters()).device))
        self.requires_grad_(True)

    def _wrap_layer(self, block: Any, layer: nn.Module) -> None:
        """Replace a decoder layer's forward: hooks of others then see one batch and its fusion."""
        count, run = len(self.experts), block.forward

        def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            size = len(hidden_states)
            masks = (_repeat(value, size, count) for value in args)
            for name in kwargs.keys() & {"attention_mask", "position_ids", "position_embeddings"}:
                kwargs[name] = _repeat(kwargs[name], size, count)
            output = run(_repeat(hidden_states, size, count), *masks, **kwargs)
            states = output[0] if isinstance(output, tuple) else output
            added = states.unflatten(0, (count, size)) - hidden_states
            fused = (hidden_states + layer(hidden_states, added)).to(states.dtype)
            return (fused, *output[1:]) if isinstance(output, tuple) else fused

        block.forward = forward

    def _hook_module(self, model: Any, name: str) -> None:
        def change(_: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            inputs = args[0]
            down, up = self.get_buffer(_key(_DOWN + name)), self.get_buffer(_key(_UP + name))
            rows = inputs.to(down.dtype).reshape(len(down), -1, inputs.shape[-1])
            added = rows @ down.mT @ up.mT
            total: torch.Tensor = output + added.view(output.shape).to(output.dtype)
            return total

        try:
            model.get_submodule(name).register_forward_hook(change)
        except AttributeError as error:
            raise InputError(
                f"the experts change {name}, which the model does not have; they were trained on "
                "another base"
            ) from error


class Penalty(TrainerCallback):  # type: ignore[misc]
    """Adds the gradient of a fusion's penalty once a step, after gradients are clipped."""

    def __init__(self, fusion: Fusion, weight: float) -> None:
        """Take the fusion and the weight of its penalty in the loss."""
        self._fusion, self._weight = fusion, weight

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add it; called by the Trainer."""
        torch.autograd.backward(self._weight * self._fusion.penalty())


def build(model: Any, base: Path, experts: Mapping[str, Path]) -> Fusion:
    """Return the fusion of LoRA experts, attached to `model` and ready to be trained.

    The first values of Q and K are drawn from torch's global generator, as peft's adapters are.
    `model` is the checkpoint `base` as transformers loads it; it is changed in place.

    Raises:
        InputError: for an adapter that is not one or of another model, or one that changes
            something outside of the decoder layers.
    """
    checkpoint = read_checkpoint(str(base), base)
    changes = {name: read_changes(adapter, checkpoint) for name, adapter in experts.items()}
    matrices: dict[str, torch.Tensor] = {}
    for name, tensors in changes.items():
        for tensor in tensors:
            if checkpoint.decoder.layer(tensor) is None:
                raise InputError(
                    f"{experts[name]}: changes {tensor}, which is in no decoder layer; "
                    "adapter_fusion fuses layers only: train the expert without it"
                )
            module = tensor.removesuffix(".weight")
            if _DOWN + module not in matrices:
                expert_changes = [expert.get(tensor) for expert in changes.values()]
                matrices[_DOWN + module], matrices[_UP + module] = _stack(expert_changes)
    width = model.config.get_text_config().hidden_size
    fusion = Fusion(tuple(experts), checkpoint.depth(), width, matrices)
    fusion.attach(model)
    return fusion


def is_fusion(folder: Path) -> bool:
    """Return whether a folder holds a fusion."""
    is_adapter = (folder / ADAPTER_CONFIG).is_file()
    return is_adapter and read_adapter_config(folder).get("peft_type") == KIND


def load(model: Any, folder: Path) -> Fusion:
    """Return the fusion in `folder`, attached to `model`, which is changed in place."""
    config = read_adapter_config(folder)
    matrices = {name: matrix for name, matrix in _read(folder).items() if _key(name) != name}
    try:
        fusion = Fusion(config["experts"], config["layers"], config["width"], matrices)
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder}: is not a complete fusion: {error}") from error
    fusion.load(folder)
    fusion.attach(model)
    return fusion


def _key(name: str) -> str:
    """Return the name in `Fusion.state_dict` of a tensor of a file: a buffer's has no dots."""
    return name.replace(".", "/") if name.startswith((_DOWN, _UP)) else name


def _read(folder: Path) -> dict[str, torch.Tensor]:
    return {name: read_tensor(place) for name, place in read_adapter_tensors(folder).items()}


def _stack(changes: Sequence[LowRankChange | None]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return down [experts, rank, inputs] and up [experts, outputs, rank], with the scaling in up.

    Lower ranks are filled with zeros, and so is an expert without a change. float32.
    """
    pairs = {
        number: (read_tensor(change.down).float(), read_tensor(change.up).float() * change.scaling)
        for number, change in enumerate(changes)
        if change is not None
    }
    first_down, first_up = next(iter(pairs.values()))
    rank = max(len(down) for down, _ in pairs.values())
    downs = torch.zeros(len(changes), rank, first_down.shape[1])
    ups = torch.zeros(len(changes), len(first_up), rank)
    for number, (down, up) in pairs.items():
        downs[number, : len(down)] = down
        ups[number, :, : len(down)] = up
    return downs, ups


def _repeat(value: Any, size: int, count: int) -> Any:
    """Return tensors of `size` rows `count` times; a vector is not a batch, one row serves all."""
    if isinstance(value, tuple):
        return tuple(_repeat(part, size, count) for part in value)
    if not isinstance(value, torch.Tensor) or value.ndim < 2 or len(value) != size:
        return value
    return value.repeat(count, *[1] * (value.ndim - 1))
