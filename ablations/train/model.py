"""The model of a run as it is loaded, with its tokenizer and adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ablations.models.load import load_adapter, load_model, read_tokenizer
from layerswap_method.errors import InputError, describe_error


def load_base(folder: Path, dtype: str = "float32") -> Any:
    """Return the model in `folder` with weights of the torch dtype `dtype`, all of them trained."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return load_model(folder, dtype=dtype, use_safetensors=True, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{folder}: cannot be loaded: {describe_error(error)}") from error


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in `folder`."""
    try:
        return read_tokenizer(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: cannot load its tokenizer: {describe_error(error)}") from error


def with_adapter(model: Any, adapter: Path) -> Any:
    """Return `model` with the adapter in `adapter` on top; a fusion changes it in place."""
    from ablations.train import fusion

    if fusion.is_fusion(adapter):
        fusion.load(model, adapter)
        return model
    try:
        return load_adapter(model, adapter)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(
            f"{adapter}: does not fit {model.name_or_path}; it was trained on another base, or is "
            f"damaged: {describe_error(error)}"
        ) from error
