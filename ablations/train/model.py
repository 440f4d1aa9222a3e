"""The model of a run as it is loaded, with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ablations.models.load import (
    load_model,
    read_generation_config,
    read_model_config,
    read_tokenizer,
)
from layerswap_method.errors import InputError, describe_error


def load_base(folder: Path, dtype: str = "float32") -> Any:
    """Return the model in `folder` with weights of the torch dtype `dtype`, all of them trained.

    Of its generation settings it has the tokens only: an expert gets the file of its base as it is,
    and some, such as those of Llama 2 (a temperature with greedy decoding), cannot be saved.
    """
    from safetensors import SafetensorError
    from transformers import GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = load_model(folder, dtype=dtype, use_safetensors=True, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{folder}: cannot be loaded: {describe_error(error)}") from error
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    tokens = {name: getattr(model.generation_config, name) for name in names}
    model.generation_config = GenerationConfig(**tokens)
    return model


def ends_of_answers(folder: Path, tokenizer: Any) -> set[int]:
    """Return the tokens that end an answer of the model in `folder`, by its files."""
    if (folder / "generation_config.json").is_file():
        stated = read_generation_config(folder).eos_token_id
    else:
        stated = read_model_config(folder).get_text_config().eos_token_id
    ends = {*stated} if isinstance(stated, list | tuple) else {stated}
    return (ends | {tokenizer.eos_token_id}) - {None}


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in `folder`."""
    try:
        return read_tokenizer(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: cannot load its tokenizer: {describe_error(error)}") from error
