"""What mergekit's own tests import as `tests.common`, which its releases leave out.

Written anew with the names and results that those tests rely on; runs beside a copy of mergekit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mergekit.architecture import arch_info_for_config, get_architecture_info
from mergekit.config import MergeConfiguration
from mergekit.merge import MergeOptions, run_merge
from safetensors import safe_open
from transformers import (
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

_SMALL: dict[str, int] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


def _saved(model: Any, path: Any) -> str:
    model.save_pretrained(path)
    return str(path)


def make_picollama(path: Any, vocab_size: int = 64) -> str:
    config = LlamaConfig(vocab_size=vocab_size, num_attention_heads=16, **_SMALL)
    return _saved(LlamaForCausalLM(config), path)


def make_picogranite(path: Any, vocab_size: int = 64) -> str:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return _saved(GraniteForCausalLM(GraniteConfig(vocab_size=vocab_size, **heads, **_SMALL)), path)


def make_gpt2size(path: Any) -> str:
    return _saved(GPT2LMHeadModel(GPT2Config()), path)


def make_picoLlaVa(path: Any) -> str:
    vision = CLIPVisionConfig(
        image_size=32,
        patch_size=4,
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=64,
        intermediate_size=128,
    )
    text = LlamaConfig(vocab_size=64, num_attention_heads=16, **_SMALL)
    config = LlavaConfig(vision_config=vision, text_config=text, image_seq_length=16)
    return _saved(LlavaForConditionalGeneration(config=config), path)


def run_and_check_merge(
    config: MergeConfiguration,
    check_nan: bool = True,
    check_tensors: bool = True,
    validate: Callable[[str], None] | None = None,
    index_json_name: str | None = None,
    auto_arch: bool = False,
) -> None:
    """Merge, look at every tensor's values and names, and hand the folder to `validate`."""
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as out:
        run_merge(config, out_path=out, options=MergeOptions())
        files = sorted(Path(out).glob("*.safetensors"))
        assert files
        assert (Path(out) / "config.json").is_file()
        if index_json_name:
            assert (Path(out) / index_json_name).is_file()
        names = set()
        for file in files:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    names.add(name)
                    assert not check_nan or not opened.get_tensor(name).isnan().any(), name
        if check_tensors:
            model = AutoConfig.from_pretrained(out)
            found = (
                get_architecture_info(config, MergeOptions())
                if auto_arch
                else arch_info_for_config(model)
            )
            for weight in found.all_weights(model):
                spelt = {weight.name, *(weight.aliases or ())}
                assert weight.optional or spelt & names, weight.name
        if validate:
            validate(out)
