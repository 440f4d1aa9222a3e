"""The regimes applied: a model of which only the weights of its regime are trained."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, assert_never

from ablations.train.config import TrainConfig
from ablations.train.decoder import decoder_of
from ablations.train.library_options import check_options
from ablations.train.regimes import (
    AdapterFusion,
    Disjoint,
    FrozenLayers,
    Full,
    Lora,
    Prefix,
    Regime,
)
from ablations.train.side_adapters import new_side_adapter
from layerswap_method.errors import InputError, first_line, nearest

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


def trained_layers(regime: FrozenLayers | Disjoint, num_layers: int, file: str) -> set[int]:
    """Return the 0-based layers that are trained; refuse those that the model does not have."""
    try:
        trained = regime.trained_layers(num_layers)
    except ValueError as error:
        raise InputError(f"{file}: regime: {error}") from error
    if not trained and not regime.outside:
        raise InputError(
            f"{file}: regime: all layers are frozen, and so is everything outside of them"
        )
    return trained


def prepare_model(model: Any, config: TrainConfig) -> Any:
    """Return `model`, changed in place, so that the regime's weights are trained and no others.

    Raises:
        InputError: for layers or modules that the model does not have.
    """
    from peft import get_peft_model

    regime: Regime = config.regime
    if isinstance(regime, Full):
        return model
    if isinstance(regime, FrozenLayers | Disjoint):
        decoder = decoder_of(model)
        num_layers = model.config.get_text_config().num_hidden_layers
        trained = trained_layers(regime, num_layers, config.file)
        for name, parameter in model.named_parameters():
            layer = decoder.layer(name)
            parameter.requires_grad_(regime.outside if layer is None else layer in trained)
        return model
    try:
        if isinstance(regime, Prefix | AdapterFusion):
            return new_side_adapter(model, regime)
        if isinstance(regime, Lora):
            options = lora_config(config)
            _check_targets(model, options.target_modules, config.file)
            with warnings.catch_warnings():  # an adapter of one side of tied embeddings
                warnings.filterwarnings("error", "Model has `tie_word_embeddings")
                return get_peft_model(model, options)
        assert_never(regime)
    except (ValueError, TypeError, LookupError, UserWarning, re.error) as error:
        raise InputError(
            f"{config.file}: regime {regime.kind}: peft refuses it: {first_line(error)}"
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
