"""The one door to the `from_pretrained` of transformers and peft.

No code that comes with a model runs here: without `trust_remote_code` transformers asks on the
terminal, and a "y" of `yes | ...` is an answer. And no weights are made up: where a checkpoint or
an adapter lacks a tensor, the libraries warn and take random numbers.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layerswap_method.checkpoint.checkpoint import (
    Checkpoint,
    is_buffer,
    is_head,
    name_list,
    read_checkpoint,
)
from layerswap_method.checkpoint.compatible import leftover_quantization, row_problems, scales_of
from layerswap_method.checkpoint.vocabulary import tokens_without_rows
from layerswap_method.errors import InputError, LayerSwapError

LOG = logging.getLogger("layerswap")


def read_model_config(model: str | Path) -> Any:
    """Return the config of a model, as transformers reads it.

    Raises:
        InputError: where it names code of its own.
        OSError: where there is none, or it cannot be read; or ValueError.
    """
    from transformers import AutoConfig

    with refuse_code(model):
        return AutoConfig.from_pretrained(model, trust_remote_code=False)


def read_tokenizer(model: str | Path, **options: Any) -> Any:
    """Return the tokenizer of a model; for errors see `read_config`."""
    from transformers import AutoTokenizer

    with refuse_code(model):
        return AutoTokenizer.from_pretrained(model, trust_remote_code=False, **options)


def read_generation_config(folder: Path) -> Any:
    """Return the generation settings in `folder`, which are no code; see `read_config`."""
    from transformers import GenerationConfig

    return GenerationConfig.from_pretrained(folder)


def load_model(model: str | Path, **options: Any) -> Any:
    """Return a model of text with its weights, all of which its files give.

    Raises:
        LayerSwapError: where a tensor is missing.
        InputError: where the model names code of its own.
        OSError: where it cannot be loaded; or ValueError, KeyError, RuntimeError, SafetensorError.
    """
    from transformers import AutoModelForCausalLM

    return _load(AutoModelForCausalLM, model, **options)


def check_complete(model: str | Path, kind: Any) -> None:
    """Check that a checkpoint gives every parameter of its model, tied ones aside.

    Its tensors are loaded onto no device: their names and shapes count, and nothing is read.

    Args:
        model: a folder, or the hub id of a model in the local cache.
        kind: class of transformers by which it is loaded.

    Raises:
        LayerSwapError: where a tensor is missing; else as `load_model`.
    """
    _load(kind, model, device_map="meta")


def model_class(config: Any) -> Any:
    """Return transformers' class of the architecture in a config; None where it has none."""
    import transformers

    return getattr(transformers, (config.architectures or [""])[0], None)


def load_adapter(model: Any, adapter: Path) -> Any:
    """Return `model` with an adapter of peft's on top, all of whose weights its file gives.

    Raises:
        LayerSwapError: where a tensor is missing.
        OSError: where it cannot be loaded; or ValueError, KeyError, RuntimeError.
    """
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found missing adapter keys", UserWarning)
        adapted = PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
    fill_adapter(adapted, adapter)  # it alone reports missing weights
    return adapted


def fill_adapter(model: Any, adapter: Path, **options: Any) -> None:
    """Set the adapter of a peft model to the values in `adapter`; for errors see `load_adapter`."""
    result = model.load_adapter(str(adapter), "default", local_files_only=True, **options)
    _refuse_missing(adapter, [name.replace(".default", "") for name in result.missing_keys])


@contextmanager
def without_code_of_tokenizers() -> Iterator[None]:
    """Let no tokenizer that is read in the block run code of its own, whoever asks for it.

    Tasks of lm-eval (RULER, BABILong) read the one that they are given with `trust_remote_code`.
    """
    from transformers import AutoTokenizer

    method = AutoTokenizer.from_pretrained

    def read(model: str | Path, *arguments: Any, **options: Any) -> Any:
        options["trust_remote_code"] = False
        with refuse_code(model):
            return method(model, *arguments, **options)

    AutoTokenizer.from_pretrained = read
    try:
        yield
    finally:
        AutoTokenizer.from_pretrained = method


@contextmanager
def refuse_code(model: str | Path) -> Iterator[None]:
    """Say in our words that a model needs code of its own; transformers advises to run it."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise InputError(
            f"{model}: its files name Python code of its own (auto_map), which is never run here; "
            "use a model whose class transformers has"
        ) from error


def _load(kind: Any, model: str | Path, **options: Any) -> Any:
    from transformers.utils import logging as transformers_logging

    checkpoint = _stored(Path(model))
    if checkpoint is not None:
        _check_stored(checkpoint)
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # missing tensors are reported below
    try:
        with refuse_code(model):
            loaded, info = kind.from_pretrained(
                model, trust_remote_code=False, output_loading_info=True, **options
            )
    except ImportError as error:
        if checkpoint is None or (reason := leftover_quantization(checkpoint)) is None:
            raise
        raise InputError(reason) from error
    finally:
        transformers_logging.set_verbosity(level)
    _refuse_missing(model, info["missing_keys"])
    if checkpoint is not None:
        _warn_of_unused(checkpoint, info["unexpected_keys"])
    return loaded


def _stored(folder: Path) -> Checkpoint | None:
    """Return the headers of a model's folder; None where its weights are in another form."""
    if next(folder.glob("*.safetensors"), None) is None:
        return None
    try:
        return read_checkpoint(str(folder), folder)
    except InputError:  # its library says what is wrong, or reads it all the same
        return None


def _check_stored(checkpoint: Checkpoint) -> None:
    """Check that the weights are those that config and tokenizer are about."""
    problems = [*row_problems(checkpoint)]
    if checkpoint.config.quantization is None and (scales := scales_of(checkpoint)):
        problems.append(
            f"{checkpoint.name}: its files store scales beside its weights ({name_list(scales)}), "
            "which nothing applies, as its config.json has no quantization_config: put that back, "
            "or use the unquantised checkpoint"
        )
    InputError.raise_any(checkpoint.name, problems)
    for warning in tokens_without_rows([checkpoint]):
        LOG.warning("%s; a text that has one of them cannot be computed", warning)


def _warn_of_unused(checkpoint: Checkpoint, names: Collection[str]) -> None:
    """Warn of stored tensors that the model has no place for; towers and the like are none."""
    decoder = checkpoint.decoder
    unused = [name for name in names if not is_buffer(name) and not decoder.is_apart(name)]
    if unused:
        LOG.warning(
            "%s: its files store %d tensors that the model has no place for and that are left out "
            "(%s); its config.json may be another model's",
            checkpoint.name,
            len(unused),
            name_list(sorted(unused)),
        )


def _refuse_missing(where: str | Path, names: Collection[str]) -> None:
    if names:
        advice = "save it again as a whole"
        if any(is_head(name) for name in names):
            advice += ", or with tie_word_embeddings: true in config.json, if its head is tied"
        raise LayerSwapError(
            f"{where}: its files lack {name_list(sorted(names))}, in whose place random numbers "
            f"would be evaluated or trained; {advice}"
        )
