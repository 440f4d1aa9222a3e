"""Adapters that run next to the weights, prefixes and fusions: how they are trained and loaded.

They change none of the base's weights, so no merge has them, and they run on transformers only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.engines.backends import resolve_backend
from ablations.engines.options import BackendChoice
from ablations.models.find import find_model
from ablations.models.load import fill_adapter, load_adapter
from ablations.scoring.evaluation import Backend
from ablations.train.regimes import AdapterFusion, Prefix, Regime
from layerswap_method.checkpoint.lora import is_lora
from layerswap_method.errors import InputError, describe_error

if TYPE_CHECKING:
    from transformers import TrainerCallback


def is_side_adapter(adapter: Path | None) -> bool:
    """Return whether there is an adapter and it changes no weights."""
    return adapter is not None and not is_lora(adapter)


def backend_beside(choice: BackendChoice, adapter: Path) -> Backend:
    """Return the backend that runs an adapter next to the weights.

    Raises:
        InputError: for ``vllm``, or where lm-eval is missing.
    """
    if choice == "vllm":
        raise InputError(
            f"{adapter}: this adapter (a prefix or a fusion) changes none of the base's "
            "weights and runs on transformers only; use --backend hf"
        )
    return resolve_backend("hf")


def new_side_adapter(model: Any, regime: Prefix | AdapterFusion) -> Any:
    """Return `model`, changed in place, with a new adapter that alone is trained.

    Raises:
        InputError: for experts of a fusion that are none of this model.
        ValueError: where peft refuses it; or TypeError, LookupError.
    """
    if isinstance(regime, Prefix):
        from peft import PrefixTuningConfig, get_peft_model

        options = PrefixTuningConfig(num_virtual_tokens=regime.tokens, task_type="CAUSAL_LM")
        return get_peft_model(model, options)
    from ablations.train import fusion

    base = Path(model.name_or_path)
    adapters = {
        name: Path(str(find_model(f"{base}+{reference}").adapter))
        for name, reference in regime.experts.items()
    }
    fusion.build(model, base, adapters)
    return model


def with_adapter(model: Any, adapter: Path) -> Any:
    """Return `model` with the adapter in `adapter` on top, of weights or not; it may be changed.

    Raises:
        InputError: for an adapter that does not fit the model.
    """
    from ablations.train import fusion

    if fusion.is_fusion(adapter):  # peft cannot load one
        fusion.load(model, adapter)
        return model
    try:
        return load_adapter(model, adapter)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(
            f"{adapter}: does not fit {model.name_or_path}; it was trained on another base, or is "
            f"damaged: {describe_error(error)}"
        ) from error


def restore_adapter(model: Any, folder: Path) -> None:
    """Set the adapter of a model that is trained to the values in a checkpoint.

    The Trainer reads no fusion, and passes over names that a file has and the model has not.
    """
    from ablations.train import fusion

    if (fused := getattr(model, fusion.NAME, None)) is not None:
        fused.load(folder)
    else:
        fill_adapter(model, folder, is_trainable=True)


def regime_callbacks(model: Any, regime: Regime) -> list[TrainerCallback]:
    """Return what the Trainer calls for a regime: the penalty of a fusion."""
    if not isinstance(regime, AdapterFusion):
        return []
    from ablations.train import fusion

    return [fusion.Penalty(getattr(model, fusion.NAME), regime.value_penalty)]
