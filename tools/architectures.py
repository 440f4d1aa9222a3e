"""Write down the stacks of layers of every text model of transformers, as files name them.

python -m tools.architectures           write `tests/checkpoint/architectures.json` anew
python -m tools.architectures --check   exit with 1 if it differs; write nothing

Every class is built without weights. Which stack is the text decoder is what the class itself says
(`get_decoder`), or `DECODERS` where it says nothing.
"""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from layerswap_method.checkpoint.config import read_config
from tools.write_or_check import write_or_check

TABLE = Path(__file__).parents[1] / "tests" / "checkpoint" / "architectures.json"

_KINDS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_LISTS = re.compile(r"(.+?)\.(\d+)\.")

_NO_TOKENS = {"pad_token_id": 0, "text_config": {"model_type": "llama", "pad_token_id": 0}}
_OPTIONS: dict[str, dict[str, Any]] = {
    "HunYuanDenseV1ForCausalLM": {"head_dim": 64},
    "HunYuanMoEV1ForCausalLM": {"head_dim": 64},
    "MinistralForCausalLM": {"head_dim": 64},
    "HunYuanVLForConditionalGeneration": {"text_config": {"head_dim": 64}},
    "NemotronForCausalLM": {"num_key_value_heads": 8, "head_dim": 64},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv"] * 32},
    "Idefics3ForConditionalGeneration": _NO_TOKENS,
    "SmolVLMForConditionalGeneration": _NO_TOKENS,
    "ChameleonForConditionalGeneration": {"vocabulary_map": {"<image>": 1}},
    "Emu3ForConditionalGeneration": {"vocabulary_map": {"<image>": 1}},
    "DbrxForCausalLM": {"attn_config": {"rope_theta": 1e4}},
    "Dots1ForCausalLM": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 64,
    },
    "AyaVisionForConditionalGeneration": {
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "num_attention_heads": 16,
        }
    },
}
"""Settings that the defaults of a config lack to build its model."""

DECODERS = {
    "BltForCausalLM": None,
    "FlaubertWithLMHeadModel": None,
    "HrmTextForCausalLM": None,
    "XLMWithLMHeadModel": None,
    "ClvpModelForConditionalGeneration": "text_encoder_model.layers",
    "CsmForConditionalGeneration": "backbone_model.layers",
    "GitForCausalLM": "git.encoder.layer",
    "ModernBertDecoderForCausalLM": "model.layers",
    "PI0ForConditionalGeneration": (
        "paligemma_with_expert.paligemma.model.language_model.model.layers"
    ),
    "Qwen2_5OmniForConditionalGeneration": "thinker.model.layers",
    "Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration": "model.layers",
}
"""Classes that do not say which their decoder is, or whose decoder holds a longer tower; None for
those that are no single stack."""


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield class -> config's layers, decoder, and stacks; for each class that can be built."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    transformers.logging.set_verbosity_error()
    classes = {name for name in dir(transformers) if name.endswith(_KINDS)}
    classes |= {name for name in CAUSAL.values() if isinstance(name, str)}
    for name in sorted(name for name in classes if not name.startswith("Auto")):
        try:
            model, state, saved = _build(transformers, name)
        except Exception as error:  # transformers itself fails, in as many ways as classes
            click.echo(f"{name}: cannot be built ({type(error).__name__})", err=True)
            continue
        if stacks := _stacks(saved):
            config, stated = model.config, _read(model.config, name)
            decoder = DECODERS.get(name)
            if name not in DECODERS and not config.is_encoder_decoder:
                decoder = _decoder(model, state, saved)
            yield name, {"layers": stated, "decoder": decoder, "stacks": stacks}


def _build(library: Any, name: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a model without weights, and its tensors by their names in it and in a file."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(library, name)  # imported here
        model = kind(kind.config_class(**_OPTIONS.get(name, {})))
        state = model.state_dict()
        saved = revert_weight_conversion(model, dict(state))
    return model, state, saved


def _read(config: Any, name: str) -> int | None:
    """Return the number of layers that this project reads in the config's file."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return read_config(name, Path(folder)).num_hidden_layers


def _stacks(saved: dict[str, Any]) -> dict[str, int]:
    stacks: dict[str, int] = {}
    for name in saved:
        if match := _LISTS.match(name):
            stacks[match[1]] = max(stacks.get(match[1], 0), int(match[2]) + 1)
    return stacks


def _decoder(model: Any, state: Mapping[str, Any], saved: Mapping[str, Any]) -> str | None:
    """Return how a file calls the longest list of modules in the model's decoder."""
    from torch import nn

    decoder = model.get_decoder()
    lists = (module for module in decoder.modules() if isinstance(module, nn.ModuleList))
    longest = max(lists, key=len, default=None)
    path = next((name for name, module in model.named_modules() if module is longest), "")
    ours = {id(tensor) for name, tensor in state.items() if name.startswith(f"{path}.")}
    places = (_LISTS.match(name) for name, tensor in saved.items() if id(tensor) in ours)
    return next((place[1] for place in places if place), None)


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the table differs.")
def main(check: bool) -> None:
    """Write the stacks of layers of transformers' text models."""
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_or_check(TABLE, text, "architectures", check=check)


if __name__ == "__main__":
    main()
