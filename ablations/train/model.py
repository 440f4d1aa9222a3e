"""The model of a run: loaded in float32, with the weights that its regime trains."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ablations.models.find import find_model
from ablations.models.load import load_adapter, load_model, read_tokenizer
from ablations.train.config import AdapterFusion, Disjoint, FrozenLayers, Full, Prefix, TrainConfig
from ablations.train.decoder import decoder_of
from layerswap_method.errors import InputError, describe_error, first_line, nearest

if TYPE_CHECKING:
    from peft import LoraConfig


_FIXED = (
    "task_type",
    "peft_type",
    "base_model_name_or_path",
    "auto_mapping",
    "peft_version",
    "revision",
    "inference_mode",
    "layer_replication",
)


def check_options(
    file: str, block: str, options: Mapping[str, Any], kind: Any, foreign: Mapping[str, str]
) -> dict[str, Any]:
    """Return `options` of the dataclass `kind` of a library, with numbers as it declares them.

    They stand below `block` in the training file `file`; `foreign` names may not be given.

    Raises:
        InputError: for names that it does not have, with the nearest one, or no numbers.
    """
    types = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind) if field.init} - set(foreign)
    checked, problems = dict(options), []
    for name, value in options.items():
        if name in foreign:
            problems.append(f"{block}.{name}: {foreign[name]}")
        elif name not in names:
            problems.append(
                f"{block}: {kind.__name__} has no option {name!r}{nearest(name, names)}"
            )
        elif types[name] in (int, float, bool):
            try:
                checked[name] = TypeAdapter(types[name]).validate_python(value)
            except ValidationError:
                words = {int: "a whole number", float: "a number", bool: "true or false"}
                problems.append(f"{block}.{name} is {value!r}; write {words[types[name]]}")
    InputError.raise_any(file, problems)
    return checked


def lora_config(config: TrainConfig) -> LoraConfig:
    """Return the options of `config.lora` as peft takes them; refuse what it does not take."""
    from peft import LoraConfig

    fixed = dict.fromkeys(_FIXED, "is fixed; leave it out")
    fixed["ensure_weight_tying"] = "a change of tied embeddings would be merged twice; leave it out"
    options = check_options(config.file, "lora", config.lora, LoraConfig, fixed)
    if "pissa_niter" in str(options.get("init_lora_weights")):  # drawn anew at every load
        raise InputError(
            f"{config.file}: lora.init_lora_weights: pissa_niter is random; write pissa"
        )
    try:
        return LoraConfig(**options, task_type="CAUSAL_LM")
    except (ValueError, TypeError, ImportError) as error:
        raise InputError(f"{config.file}: lora: peft refuses it: {first_line(error)}") from error


def load_base(folder: Path) -> Any:
    """Return the model in `folder` with float32 weights, all of them trained."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return load_model(folder, dtype="float32", use_safetensors=True, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{folder}: cannot be loaded: {describe_error(error)}") from error


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in `folder`."""
    try:
        return read_tokenizer(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: cannot load its tokenizer: {describe_error(error)}") from error


def prepare_model(model: Any, config: TrainConfig) -> Any:
    """Return `model`, changed in place, so that the regime's weights are trained and no others.

    Raises:
        InputError: for layers or modules that the model does not have.
    """
    regime = config.regime
    if isinstance(regime, Full):
        return model
    if isinstance(regime, FrozenLayers | Disjoint):
        decoder = decoder_of(model)
        try:
            trained = regime.trained_layers(model.config.get_text_config().num_hidden_layers)
        except ValueError as error:
            raise InputError(f"{config.file}: regime: {error}") from error
        if not trained and not regime.outside:
            raise InputError(
                f"{config.file}: regime: all layers are frozen, and so is everything outside of "
                "them"
            )
        for name, parameter in model.named_parameters():
            layer = decoder.layer(name)
            parameter.requires_grad_(regime.outside if layer is None else layer in trained)
        return model
    if isinstance(regime, AdapterFusion):
        from ablations.train import fusion

        base = Path(model.name_or_path)
        adapters = {
            name: Path(str(find_model(f"{base}+{reference}").adapter))
            for name, reference in regime.experts.items()
        }
        fusion.build(model, base, adapters)
        return model
    from peft import PrefixTuningConfig, get_peft_model

    options: Any
    if isinstance(regime, Prefix):
        options = PrefixTuningConfig(num_virtual_tokens=regime.tokens, task_type="CAUSAL_LM")
    else:
        options = lora_config(config)
        _check_targets(model, options.target_modules, config.file)
    try:
        with warnings.catch_warnings():  # an adapter of one side of tied embeddings
            warnings.filterwarnings("error", "Model has `tie_word_embeddings")
            return get_peft_model(model, options)
    except (ValueError, TypeError, LookupError, UserWarning, re.error) as error:
        raise InputError(
            f"{config.file}: regime {regime.kind}: peft refuses it: {first_line(error)}"
        ) from error


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


def _check_targets(model: Any, targets: Any, file: str) -> None:
    """Check that the model has each of a list of target modules; peft needs one of them only."""
    names = [name for name, _ in model.named_modules()]
    for target in targets if isinstance(targets, list | set | tuple) else ():
        if not any(name == target or name.endswith(f".{target}") for name in names):
            last_parts = {name.rpartition(".")[2] for name in names}
            raise InputError(
                f"{file}: lora.target_modules: the model has no module {target!r}"
                f"{nearest(target, last_parts)}"
            )
