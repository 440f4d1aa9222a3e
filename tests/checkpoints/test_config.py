"""What config.json says is what transformers reads in it; where it is silent the files tell."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.compatible import ties
from layerswap_method.checkpoint.config import read_config
from layerswap_method.errors import InputError
from tests.standins.tuned import edited
from tests.standins.zoo import FAMILIES, make_config, make_model


@pytest.mark.parametrize("family", FAMILIES)
def test_it_says_what_transformers_reads(family: str, tmp_path: Path) -> None:
    config = make_config(family)
    config.dtype = torch.bfloat16
    config.architectures = [FAMILIES[family].model]
    config.save_pretrained(tmp_path)
    found, theirs = read_config("model", tmp_path), AutoConfig.from_pretrained(tmp_path)
    text = theirs.get_text_config()
    assert found.architecture == FAMILIES[family].model
    assert (found.model_type, found.text_type) == (theirs.model_type, text.model_type)
    assert (found.num_hidden_layers, found.vocab_size) == (text.num_hidden_layers, text.vocab_size)
    assert found.dtype == "bfloat16"
    assert found.quantization is None
    ties = theirs.tie_word_embeddings or text.tie_word_embeddings
    assert found.tie_word_embeddings in (None, bool(ties))


SILENT = {"tie_word_embeddings": None, "num_hidden_layers": None, "n_layer": None}


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "opt", "gpt_neox", "mistral3_vl"])
def test_where_it_is_silent_the_files_tell(family: str, tmp_path: Path) -> None:
    said = read_checkpoint("said", make_model(family, tmp_path / "said", 1))
    folder = edited(make_model(family, tmp_path / "silent", 1), **SILENT)
    silent = read_checkpoint("silent", folder)
    assert (silent.config.num_hidden_layers, silent.config.tie_word_embeddings) == (None, None)
    assert silent.depth() == said.depth() == 6
    assert ties(silent) == ties(said) == (family in ("gemma2", "gpt2"))


def test_dtypes_and_quantisation(tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path / "model", 1)
    for changes, dtype in (
        ({"dtype": None}, None),
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
        ({"dtype": "torch.float32"}, "float32"),
        ({"dtype": "auto"}, None),
    ):
        assert read_config("model", edited(folder, **changes)).dtype == dtype
    for quantization, name in (({"quant_method": "gptq"}, "gptq"), ({"bits": 4}, "?")):
        edited(folder, quantization_config=quantization)
        assert read_config("model", folder).quantization == name


@pytest.mark.parametrize("text", ["[]", "{}", '{"model_type": 3}', "{", "[" * 200_000])
def test_what_is_no_config(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"^model: .*: no readable config: "):
        read_config("model", tmp_path)
