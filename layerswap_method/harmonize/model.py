"""A whole checkpoint as tensors that are made when they are asked for.

A transformation (`Step`) maps a `Model` to another one that computes the same function. It says of
each new tensor which old ones it is made of and how; nothing is read before the writer asks, one
tensor at a time. So any number of steps stream through the memory of one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from layerswap_method.checkpoint.checkpoint import Checkpoint, is_buffer, is_head, name_list
from layerswap_method.checkpoint.config import ModelShape, read_shape
from layerswap_method.checkpoint.stored import StoredTensor
from layerswap_method.errors import InputError
from layerswap_method.harmonize.axes import LAYER_TENSORS, Axis, axes_of
from layerswap_method.tensor_names import split_layer

if TYPE_CHECKING:
    import torch

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


@dataclass(frozen=True)
class LazyTensor:
    """One tensor that is made when it is asked for."""

    shape: tuple[int, ...]
    """Its shape."""

    dtype: str
    """As safetensors writes it, such as `BF16`: what it is written as."""

    sources: tuple[StoredTensor, ...]
    """The stored tensors that it is made of."""

    make: Callable[[], torch.Tensor] | None = field(default=None, repr=False)
    """Makes it; None for the one source as it is."""

    def read(self) -> torch.Tensor:
        """Return the tensor, in its dtype or in a wider one (see `wide`); it is the caller's.

        Raises:
            InputError: if a file is gone, cut short, or was written anew since it was opened.
        """
        if self.make is not None:
            return self.make()
        from layerswap_method.checkpoint.stored import read_rows

        return read_rows(self.sources[0])

    def then(
        self, function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...] | None = None
    ) -> LazyTensor:
        """Return what `function` makes of this one.

        Args:
            function: applied to what `read` returns, which it may change in place.
            shape: of the result; that of this tensor where it is None.
        """
        return replace(self, shape=shape or self.shape, make=lambda: function(self.read()))


def join(
    function: Callable[..., torch.Tensor], *inputs: LazyTensor, shape: tuple[int, ...] | None = None
) -> LazyTensor:
    """Return what `function` makes of several tensors, in the dtype of the first.

    Args:
        function: applied to what each `read` returns, in the order of `inputs`.
        inputs: at least one.
        shape: of the result; that of the first where it is None.
    """
    return LazyTensor(
        shape or inputs[0].shape,
        inputs[0].dtype,
        tuple(dict.fromkeys(source for each in inputs for source in each.sources)),
        lambda: function(*(each.read() for each in inputs)),
    )


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the dtype in which steps compute: float32, or float64 as it is.

    The writer rounds once, at the end of all steps. What only copies or adds zeros needs no `wide`.
    """
    import torch

    return tensor if tensor.dtype == torch.float64 else tensor.float()


@dataclass(frozen=True)
class Model:
    """A checkpoint on its way through the steps."""

    name: str
    """As the user writes it."""

    shape: ModelShape
    """Its sizes now."""

    tensors: Mapping[str, LazyTensor] = field(repr=False)
    """Tensor name -> tensor, in the order in which they are written; no head where it is tied."""

    notes: tuple[str, ...] = ()
    """What the steps did so far, a sentence each, for the log and the record."""

    def changed(self, tensors: Mapping[str, LazyTensor], note: str, **sizes: object) -> Model:
        """Return the model with other tensors.

        Args:
            tensors: all of them, in the order in which they are written.
            note: what the step did.
            sizes: fields of the shape that are new.
        """
        shape = self.shape.model_copy(update=sizes)
        return Model(self.name, shape, tensors, (*self.notes, note))

    def untied(self) -> Model:
        """Return the model with an output embedding of its own: a copy of the input embedding."""
        if not self.shape.tied:
            return self
        tensors = {**self.tensors, HEAD: self.tensors[EMBEDDING]}
        note = "untied: the output embedding is a copy of the input embedding"
        return self.changed(tensors, note, tied=False)


Step = Callable[[Model], Model]
"""A transformation that keeps the function of the model."""


def open_model(checkpoint: Checkpoint) -> Model:
    """Return a checkpoint as it is; only headers are read.

    Raises:
        InputError: for an architecture that is not in `DECODERS`, or files that disagree with their
            config: a tensor that is missing, unknown, or of another shape, in any layer.
    """
    shape = read_shape(checkpoint)
    tensors = {
        name: LazyTensor(stored.shape, stored.dtype, (stored,))
        for name, stored in checkpoint.tensors.items()
        if not is_buffer(name) and not (shape.tied and is_head(name))
    }
    problems = list(_problems(shape, tensors))
    if problems:
        raise InputError.from_problems(checkpoint.name, problems)
    return Model(checkpoint.name, shape, tensors)


def _problems(shape: ModelShape, tensors: Mapping[str, LazyTensor]) -> Iterator[str]:
    """Yield which tensors are not those of a model of `shape`.

    A step would write something else in their place, or stop after the first output is written.
    """
    sizes: dict[Axis, int] = {
        **{"vocab": shape.vocab, "writes": shape.hidden, "reads": shape.hidden},
        **{"norm": shape.hidden, "neurons": shape.intermediate, "head": shape.head_dim},
        **{"heads": shape.heads * shape.head_dim, "kv_heads": shape.kv_heads * shape.head_dim},
    }
    of_layers = LAYER_TENSORS | {rest for layer, rest in map(split_layer, tensors) if layer == 0}
    wanted = [EMBEDDING, NORM, *([] if shape.tied else [HEAD])]
    wanted += [
        f"model.layers.{layer}.{rest}"
        for layer in range(shape.layers)
        for rest in sorted(of_layers)
    ]
    missing = [name for name in wanted if name not in tensors]
    if missing:
        yield f"the weights lack {name_list(missing)}; download or copy it again"
    for name, tensor in tensors.items():
        try:
            expected = tuple(sizes[axis] for axis in axes_of(name))
        except InputError as error:
            yield error.message
            continue
        if tensor.shape != expected:
            yield (
                f"{name} is {list(expected)} by config.json, and the weights hold "
                f"{list(tensor.shape)}"
            )
