"""The model of a run: loaded in float32, with the weights that its regime trains.

The only importer of peft here. Knows regimes and modules; not data, nor the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablations.models.find import find_model
from ablations.train.regime import (
    AdapterFusion,
    Disjoint,
    FrozenLayers,
    Full,
    Lora,
    Prefix,
    Regime,
    trained_layers,
)
from layerswap_method.algorithm.tensor_names import decoder_layer
from layerswap_method.errors import InputError, describe_error, nearest


def load_base(folder: Path) -> Any:
    """Return the model in `folder` with float32 weights, all of them trained.

    Raises:
        InputError: where transformers cannot load it.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype="float32", use_safetensors=True, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{folder}: cannot be loaded: {describe_error(error)}") from error
    return model


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in `folder`.

    Raises:
        InputError: where there is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: its tokenizer cannot be loaded: {describe_error(error)}"
        ) from error


def prepare(model: Any, regime: Regime) -> Any:
    """Return `model` so that the regime's weights are trained and no others.

    Args:
        model: of `load_base`; changed in place.
        regime: what is trained.

    Raises:
        InputError: for layers or modules that the model does not have.
    """
    if isinstance(regime, Full):
        return model
    if isinstance(regime, Lora):
        return _with_lora(model, regime)
    if isinstance(regime, Prefix):
        return _with_prefix(model, regime)
    if isinstance(regime, AdapterFusion):
        return _with_fusion(model, regime)
    try:
        _freeze(model, regime)
    except ValueError as error:
        raise InputError(f"regime: {error}") from error
    return model


def with_adapter(model: Any, adapter: Path) -> Any:
    """Return `model` with the adapter in `adapter` on top; one of `is_ours` changes it in place.

    Raises:
        InputError: where it does not fit the model.
    """
    from ablations.train import fusion

    if fusion.is_fusion(adapter):
        fusion.load(model, adapter)
        return model
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(
            f"{adapter}: does not fit {model.name_or_path}; it was trained on another base, or is "
            f"damaged: {describe_error(error)}"
        ) from error


def is_ours(adapter: Path) -> bool:
    """Return whether an adapter is a fusion, which peft cannot load from its folder."""
    from ablations.train import fusion

    return fusion.is_fusion(adapter)


def lora_experts(regime: AdapterFusion, base: Path) -> dict[str, Path]:
    """Return name -> folder of the LoRA experts that a regime combines.

    Raises:
        InputError: where one is not there.
    """
    found = {name: find_model(f"{base}+{each}") for name, each in regime.experts.items()}
    return {name: e.adapter for name, e in found.items() if e.adapter is not None}


def merge_adapter(base: Path, adapter: Path) -> Any:
    """Return the base in float32 with the change of a LoRA adapter in its weights."""
    return with_adapter(load_base(base), adapter).merge_and_unload()


def _freeze(model: Any, regime: FrozenLayers | Disjoint) -> None:
    """Leave `requires_grad` on the regime's layers only, and outside of them if it says so.

    Raises:
        ValueError: as `trained_layers`.
    """
    trained = set(trained_layers(regime, model.config.get_text_config().num_hidden_layers))
    for name, parameter in model.named_parameters():
        layer = decoder_layer(name)
        parameter.requires_grad_(regime.outside if layer is None else layer in trained)


def _with_lora(model: Any, regime: Lora) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = regime.targets if isinstance(regime.targets, str) else list(regime.targets)
    if isinstance(targets, list):
        _check_targets(model, targets)
    config = LoraConfig(
        r=regime.rank,
        lora_alpha=regime.alpha,
        lora_dropout=regime.dropout,
        target_modules=targets,
        use_dora=regime.dora,
        use_rslora=regime.rslora,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def _with_prefix(model: Any, regime: Prefix) -> Any:
    from peft import PrefixTuningConfig, get_peft_model

    config = PrefixTuningConfig(num_virtual_tokens=regime.tokens, task_type="CAUSAL_LM")
    return get_peft_model(model, config)


def _with_fusion(model: Any, regime: AdapterFusion) -> Any:
    from ablations.train import fusion

    base = str(model.name_or_path)
    built = fusion.build(model, Path(base), lora_experts(regime, Path(base)))

    def save_pretrained(folder: str, **_: Any) -> None:
        fusion.write(built, Path(folder), base)

    model.save_pretrained = save_pretrained  # a checkpoint is the fusion, not the whole model
    return model


def _check_targets(model: Any, targets: list[str]) -> None:
    modules: Mapping[str, Any] = dict(model.named_modules())
    kinds = {
        name.rpartition(".")[2]
        for name, module in modules.items()
        if name and getattr(module, "weight", None) is not None and module.weight.dim() == 2
    }
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in modules):
            raise InputError(
                f"regime.targets: the model has no module {target!r}{nearest(target, kinds)}; it "
                f"has {', '.join(sorted(kinds))}"
            )
