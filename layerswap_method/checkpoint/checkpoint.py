"""One checkpoint: its config and every stored tensor. Only headers are read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from layerswap_method.checkpoint.config import ModelConfig, read_document, stated_config
from layerswap_method.checkpoint.stored import FLOATS, StoredTensor, read_header
from layerswap_method.checkpoint.tokens import (
    Vocabulary,
    has_tokenizer,
    read_vocabulary,
    tokenizer_digests,
)
from layerswap_method.errors import InputError
from layerswap_method.file_names import STATES, WEIGHTS_FILE, WEIGHTS_INDEX
from layerswap_method.tensor_names import Decoder, find_decoder

_HEADS = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
_BUFFERS = ("inv_freq", "masked_bias", ".attn.bias", ".attention.bias", "position_ids")
_LOADED = ("rotary_pos_emb.inv_freq",)
"""Ends of the names of output embeddings, input embeddings and constants; and of those constants
that a loader asks for, as ChatGLM's does."""

_INTEGERS = ("I64", "BOOL")
"""Dtypes of counts and indices (a batch norm's, hashed routers'), in which no weight is stored."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, each of its files read once; tensors in the order of the files.

    `name` is that of the recipe, `document` is the content of ``config.json``, which nobody
    changes, `config` the fields of it that a merge needs.
    """

    name: str
    path: Path
    document: dict[str, Any] = field(repr=False)
    config: ModelConfig
    tensors: Mapping[str, StoredTensor] = field(repr=False)
    decoder: Decoder
    """Which tensors are layers of the text decoder; where that is unclear, none are."""

    unlisted: tuple[str, ...] = ()
    """Tensors that the files hold and their index does not name, so mergekit does not see them."""

    adapter: Path | None = None
    """The folder of the adapter that the model has, whose changes are no part of the `tensors`."""

    @cached_property
    def as_trained(self) -> Checkpoint:
        """The model with the tokenizer that was saved beside its adapter, where one was."""
        if self.adapter is None or not has_tokenizer(self.adapter):
            return self
        return replace(self, path=self.adapter, adapter=None)

    @cached_property
    def has_tokenizer(self) -> bool:
        """Whether the folder has a file in which a tokenizer keeps its tokens, by its name."""
        return has_tokenizer(self.path)

    @cached_property
    def tokenizer_digests(self) -> Mapping[str, str]:
        """Names of the files with the tokens -> the SHA-256 of their content."""
        return tokenizer_digests(self.path)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The tokens, as `read_vocabulary` reads them."""
        return read_vocabulary(self.name, self.path)

    @property
    def num_layers(self) -> int | None:
        """Number of decoder layers that the config states, or else the tensors' names."""
        return self.decoder.num_layers

    @cached_property
    def first_float(self) -> str | None:
        """The torch dtype of the first stored weight; None where none is a float."""
        tensors = self.tensors.values()
        return next((tensor.torch_name for tensor in tensors if tensor.dtype in FLOATS), None)

    @property
    def dtype(self) -> str | None:
        """The torch dtype in which an engine runs the model: the config's, or the stored one."""
        return self.config.dtype or self.first_float

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Tensor name -> shape."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @cached_property
    def head(self) -> str | None:
        """Name of the stored output embedding; None where none is stored."""
        return next(filter(is_head, self.tensors), None)

    @cached_property
    def embedding(self) -> str | None:
        """Name of the stored input embedding; None where its name is not known."""
        return next(filter(is_embedding, self.tensors), None)

    def depth(self) -> int:
        """Return `num_layers`; raise where it is unclear which layers are the text decoder's."""
        if self.decoder.doubt:
            raise InputError(f"{self.name} has {self.decoder.doubt}; its layers cannot be swapped")
        if self.num_layers is None or not self.decoder.prefix:
            raise InputError(f"{self.name}: no tensor is in a layer of a text decoder, by its name")
        return self.num_layers


def read_checkpoint(name: str, path: Path, adapter: Path | None = None) -> Checkpoint:
    """Return the checkpoint in folder `path`, which messages call `name`.

    Of an `adapter` nothing is read here.

    Raises `InputError` for files that are missing or damaged, or that disagree on the layers.
    """
    document = read_document(name, path)
    config = stated_config(document)
    tensors: dict[str, StoredTensor] = {}
    unlisted: dict[str, None] = {}
    absent: dict[str, Path] = {}
    for shard, listed in _shards(name, path):
        header = read_header(shard, f"{name}: {shard.name}")
        for key, tensor in header.items():
            if listed is None or key in listed:
                tensors[key] = tensor
            else:
                unlisted[key] = None
        absent |= {key: shard for key in sorted(listed or ()) if key not in header}
    decoder = find_decoder(tensors, config.num_hidden_layers, config.further_layers)
    lost = [key for key in absent if not decoder.is_apart(key)]
    if lost:
        raise InputError(
            f"{name}: {WEIGHTS_INDEX} names {len(lost)} tensors that {absent[lost[0]].name} does "
            f"not hold: {name_list(lost)}; download it again or, where it is published so, remove "
            "these entries from the index"
        )
    own = [key for key in unlisted if key not in tensors and not is_buffer(key)]
    unlisted_weights = tuple(key for key in own if not decoder.is_apart(key))
    depth, stored = config.num_hidden_layers, decoder.stored
    if depth and stored and not depth <= stored <= depth + config.further_layers:
        raise InputError(
            f"{name}: its config.json says {depth} layers and its weights have {stored}; "
            "download it again, or correct num_hidden_layers"
        )
    return Checkpoint(name, path, document, config, tensors, decoder, unlisted_weights, adapter)


def is_head(name: str) -> bool:
    """Return whether a tensor is the output embedding, which may be tied to the input's."""
    return name.endswith(_HEADS)


def is_embedding(name: str) -> bool:
    """Return whether a tensor is the input embedding, by its name."""
    return name.endswith(_EMBEDDINGS)


def is_buffer(name: str) -> bool:
    """Return whether `name` is a constant that older checkpoints stored and no loader asks for."""
    return name.endswith(_BUFFERS) and not name.endswith(_LOADED)


def is_integer(stored: StoredTensor) -> bool:
    """Return whether a tensor holds counts or indices, which no average and no cast is made of."""
    return stored.dtype in _INTEGERS


def keeps_dtype(name: str) -> bool:
    """Return whether no recipe's `dtype` casts a weight: transformers loads it as float32."""
    return name.endswith("e_score_correction_bias")


def name_list(names: Sequence[str], shown: int = 3) -> str:
    """Return the first few names and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _shards(name: str, path: Path) -> list[tuple[Path, set[str] | None]]:
    """Return each file of weights, with the tensors the index places in it (None: no index)."""
    if not path.is_dir():
        raise InputError(f"{name}: {path} is not a folder")
    index, single = path / WEIGHTS_INDEX, path / WEIGHTS_FILE
    if not index.is_file():
        if single.is_file():
            return [(single, None)]
        every = (*sorted(path.glob("*.bin")), *sorted(path.glob("*.pt*")))
        pickles = [file for file in every if not any(map(file.match, STATES))]
        if pickles:
            raise InputError(
                f"{name}: only pickled weights ({pickles[0].name}); loading a pickle can run code. "
                "Convert it: AutoModelForCausalLM.from_pretrained(...).save_pretrained(DIR)"
            )
        is_download = path.parent.name == "snapshots"
        why = "; pickled weights (*.bin) are never downloaded" if is_download else ""
        raise InputError(f"{name}: no {WEIGHTS_FILE} and no {WEIGHTS_INDEX} in {path}{why}")
    shards: dict[str, set[str]] = defaultdict(set)
    for key, file in _weight_map(name, index).items():
        shards[file].add(key)
    if single.is_file() and WEIGHTS_FILE not in shards:
        raise InputError(
            f"{name}: {path} has {WEIGHTS_FILE} and also {WEIGHTS_INDEX}, which names other files; "
            "transformers loads the one, mergekit the others: remove what is not the model's"
        )
    absent = [file for file in sorted(shards) if not (path / file).is_file()]
    if absent:
        raise InputError(
            f"{name}: {len(absent)} of {len(shards)} shards are missing in {path}: "
            f"{name_list(absent)}; download the checkpoint again"
        )
    return [(path / file, shards[file]) for file in sorted(shards)]


def _weight_map(name: str, index: Path) -> dict[str, str]:
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: {index} cannot be read ({error}); download it again") from error
    file_of = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(file_of, dict) or not file_of:
        raise InputError(f"{name}: {index} has no weight_map with tensors; download it again")
    for key, file in file_of.items():
        if not isinstance(file, str) or Path(file).name != file or len(file) > 255:
            raise InputError(
                f"{name}: {index} places {key} in {str(file)[:80]!r}, no file name in its folder; "
                "download it again"
            )
    return file_of
