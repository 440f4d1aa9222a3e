"""The memory that a training takes: an estimate, the rows that go through at once, what is free."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.models.load import model_class, read_model_config
from ablations.train.apply_regime import trained_layers
from ablations.train.config import TrainConfig
from ablations.train.regimes import (
    ADAPTERS,
    AdapterFusion,
    Disjoint,
    FrozenLayers,
    Full,
    Lora,
    Prefix,
)
from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.lora import unsupported_kind
from layerswap_method.checkpoint.stored import FLOATS
from layerswap_method.errors import size_text

_GROUP = Path("/sys/fs/cgroup")

_AT_ONCE = 4e9
"""Bytes of activations up to which more rows go through at once: with the weights of a model of
1.5 B parameters, 16 GB are enough. Fixed, so that the weights do not depend on the machine."""

_PROGRAM = 0.7e9
"""Bytes of Python with torch and transformers."""

_TRAINED = 16
"""Bytes of a trained weight: itself, its gradient and two moments of AdamW, all in float32."""

_ACTIVATIONS = {"float32": 15, "bfloat16": 10}
"""Bytes of activations in a layer, for a token and each of 4 x hidden + intermediate sizes.

Measured: 8.2 to 14.7 in float32 and 5.6 to 10.5 beside weights in bfloat16, for shapes of Llama,
Qwen 2 and Gemma 2; LoRA on all matrices is at the upper end, and its dropout adds half."""

_LOGIT = 16
"""Bytes of a logit: itself, in float32, its log-probability and gradients."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a training takes, by an estimate."""

    weights: float
    """Of all that is there whatever the rows, with gradients and the optimiser."""
    row: float
    """Of the activations of the longest row, and of its logits."""
    at_end: float
    """Of what comes after the training: the whole model in float32, which is measured or merged."""

    def rows_at_once(self, rows: int) -> int:
        """Return how many of `rows` go through at once by default: a divisor of it."""
        divisors = (number for number in range(1, rows + 1) if rows % number == 0)
        return max(number for number in divisors if number == 1 or number * self.row <= _AT_ONCE)

    def total(self, rows_at_once: int) -> float:
        """Return the bytes of the whole run."""
        return _PROGRAM + max(self.weights + rows_at_once * self.row, self.at_end)


def frozen_dtype(config: TrainConfig, base: Checkpoint) -> str:
    """Return the torch dtype of the base's weights while `config` trains.

    Beside an adapter they stay in bfloat16 where the base is stored so. A plain adapter has weights
    of its own, in float32 all the same; others copy or change weights of the base. In float16,
    gradients would underflow.
    """
    if isinstance(config.regime, Lora):
        is_beside = unsupported_kind({"peft_type": "LORA", **config.lora}) is None
    else:
        is_beside = isinstance(config.regime, Prefix | AdapterFusion)
    sizes: dict[str, int] = defaultdict(int)
    for tensor in base.tensors.values():
        if tensor.dtype in FLOATS:
            sizes[tensor.torch_name] += math.prod(tensor.shape) * tensor.itemsize
    is_bfloat16 = sizes["bfloat16"] * 2 > sum(sizes.values())
    return "bfloat16" if is_beside and is_bfloat16 else "float32"


def estimate_memory(config: TrainConfig, base: Checkpoint, longest: int, learned: int) -> Memory:
    """Return the memory of a training.

    Args:
        config: of the training.
        base: the model that is trained.
        longest: tokens of the longest row.
        learned: most tokens of a row that carry loss: for these, logits are made.

    Raises:
        InputError: for layers that the model does not have.
    """
    text = read_model_config(base.path).get_text_config()
    dtype, is_adapter = frozen_dtype(config, base), isinstance(config.regime, ADAPTERS)
    itemsize = {"float32": 4, "bfloat16": 2}[dtype]
    counts = {name: math.prod(shape) for name, shape in base.shapes.items()}
    parameters = sum(counts.values())
    trained = _trained(config, base, text, counts)
    stored = parameters if is_adapter else parameters - trained
    hidden = text.hidden_size
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    layer = _ACTIVATIONS[dtype] * (4 * hidden + inner)
    if config.lora.get("lora_dropout"):
        layer *= 1.5
    if any(config.trainer.get(f"{name}_checkpointing") for name in ("gradient", "activation")):
        stack = layer + text.num_hidden_layers * hidden * itemsize
    else:
        stack = text.num_hidden_layers * layer
    if isinstance(config.regime, AdapterFusion):
        stack *= len(config.regime.experts)  # side by side in the batch
    is_merged = isinstance(config.regime, Lora) and config.regime.merge
    return Memory(
        weights=stored * itemsize + trained * _TRAINED,
        row=longest * stack + learned * text.vocab_size * _LOGIT,
        at_end=4.0 * parameters if config.measure or is_merged else 0.0,
    )


def _trained(config: TrainConfig, base: Checkpoint, text: Any, counts: Mapping[str, int]) -> float:
    """Return the number of weights that are trained; of a LoRA, as if it were on every matrix."""
    regime = config.regime
    layers, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    if isinstance(regime, Full):
        return sum(counts.values())
    if isinstance(regime, FrozenLayers | Disjoint):
        trained = trained_layers(regime, layers, config.file)
        at = {name: base.decoder.layer(name) for name in counts}
        return sum(
            count
            for name, count in counts.items()
            if (regime.outside if at[name] is None else at[name] in trained)
        )
    if isinstance(regime, Lora):
        sides = [sum(shape) for shape in base.shapes.values() if len(shape) == 2]
        return float(sum(sides) * int(config.lora.get("r", 8)))
    if isinstance(regime, Prefix):
        return 2.0 * regime.tokens * layers * hidden
    return 3.0 * layers * hidden**2


def divides_by_tokens(base: Path) -> bool:
    """Return whether the loss of a step is the same however many of its rows go through at once.

    transformers divides it by the tokens of the whole step; in some models with images, it takes
    the mean over parts of a step.
    """
    kind = model_class(read_model_config(base))
    return bool(getattr(kind, "accepts_loss_kwargs", True))


def free_memory(*, is_on_cpu: bool) -> int | None:
    """Return the bytes that are free where the training runs; None where that is not known."""
    import psutil
    import torch

    if not is_on_cpu:
        return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    free: int = psutil.virtual_memory().available
    try:  # what a container, or a job of a cluster, may have
        limit, used = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        fields = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        free = min(free, limit - used + int(fields["inactive_file"]))
    except (OSError, ValueError, KeyError):  # no such system, or no limit
        pass
    return free


def memory_text(
    config: TrainConfig, memory: Memory, rows: int, free: int | None
) -> tuple[str, bool]:
    """Return what the training needs, and whether that fits; if not, the text says what to do."""
    need = memory.total(rows)
    text = f"needs about {size_text(need)} of memory, {rows} rows at once"
    if free is None:
        return text, True
    text += f"; {size_text(free)} are free"
    if need <= free:
        return text, True
    advice = []
    if memory.at_end > memory.weights + rows * memory.row:
        advice.append("measure=false" if config.measure else "regime=lora")
    else:
        if rows > 1:
            advice.append("trainer.per_device_train_batch_size=1")
        if not config.trainer.get("gradient_checkpointing"):
            advice.append("trainer.gradient_checkpointing=true")
        advice.append("a lower max_length")
        if not isinstance(config.regime, ADAPTERS):
            advice.append("regime=lora")
    text += ". If the system ends the run without a word, that is why; less is needed with "
    return text + " or ".join(advice), False
