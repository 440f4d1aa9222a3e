"""What context the config of a model allows. Reads no weights, starts no engine."""

from __future__ import annotations

from typing import Any

from layerswap_method.errors import InputError


def check_context(model: str, tokens: int | None) -> None:
    """Check that the model has positions for `tokens`, prompt and answer; None is its own.

    vLLM refuses more by itself; transformers goes on, and what comes after the last position that
    was trained is noise.

    Raises:
        InputError: where it has fewer.
        OSError: where there is no config to be read.
    """
    context = None if tokens is None else context_of(model)
    if tokens is not None and context is not None and tokens > context:
        raise InputError(
            f"{model}: a context of {tokens} tokens (--max-model-len) is more than it has "
            f"positions for ({context})"
        )


def context_of(model: str) -> int | None:
    """Return the tokens that a model has positions for; None where its config does not say.

    Raises:
        OSError: where there is no config to be read.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model).get_text_config()
    stated = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    positions = next((each for each in stated if each is not None), None)
    rotary: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    kinds = [each for each in (rotary, *rotary.values()) if isinstance(each, dict)]
    # Rotary positions are stretched; others (yarn, llama3, longrope) state the stretched number.
    stretched = [kind for kind in kinds if kind.get("rope_type") in ("linear", "dynamic")]
    factor = max((float(kind.get("factor") or 1) for kind in stretched), default=1.0)
    return None if positions is None else int(positions * factor)
