"""The text decoder of a loaded model."""

from __future__ import annotations

from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.tensor_names import Decoder, find_decoder


def decoder_of(model: Any) -> Decoder:
    """Return which weights of a loaded model are in the layers of its text decoder.

    Raises:
        InputError: where that is unclear.
    """
    names = (name for name, _ in model.named_parameters())
    decoder = find_decoder(names, model.config.get_text_config().num_hidden_layers)
    if not decoder.prefix:
        doubt = decoder.doubt or "no layers of a text decoder, by the names of its weights"
        raise InputError(f"{model.name_or_path} has {doubt}")
    return decoder
