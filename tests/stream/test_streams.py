"""Every tensor of a stream is the one that mergekit's own `run_merge` writes, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from layerswap_method.stream import weight_stream
from safetensors.torch import load_file, save_file

from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.errors import InputError
from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.methods.layer_swap_merge import layer_swap_stream
from layerswap_method.recipe.document import WeightStream, checkpoint_stream, linear_stream
from layerswap_method.recipe.references import StreamInput
from layerswap_method.tensors import mixes_from_json, mixes_to_json, read_mix
from tests.standins.merging import linear_recipe, recipe, roles
from tests.standins.oracle import assert_same
from tests.standins.streams import check_stream, stream_of
from tests.standins.zoo import LAYERS, make_model

PARAMETERS: list[dict[str, Any]] = [
    {"bottom_layers": 2, "top_layers": 1},
    {"bottom_layers": 0, "top_layers": 0},
    {"bottom_layers": 1, "top_layers": 1, "bottom_transition": 1, "top_transition": 2},
    {"bottom_layers": 2, "top_layers": 0, "placement": "middle", "bottom_transition": 1},
    {"bottom_layers": 2, "top_layers": 1, "placement": "random", "seed": 3},
    {"bottom_layers": 2, "top_layers": 1, "placement": "alternating"},
    {"placement": "layers", "language_layers": "0,2-3", "top_transition": 1},
    *({"bottom_layers": 1, "top_layers": 1, "non_layer": n} for n in ("task", "language", "base")),
    *({"bottom_layers": 2, "top_layers": 1, "swap_modules": m} for m in ("attention", "mlp")),
    {"bottom_layers": 2, "top_layers": 1, "layer_norms": "average"},
    {"bottom_layers": 1, "bottom_transition": 2, "task_weight": 0.7, "language_weight": 0.3},
    {"bottom_layers": 1, "bottom_transition": 2, "task_weight": 0},
]


def tensors(stream: WeightStream) -> dict[str, torch.Tensor]:
    return dict(stream.tensors())


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda p: "-".join(map(str, p.values())))
def test_every_parameter(parameters: dict[str, Any], experts: Any, tmp_path: Path) -> None:
    given = experts("llama")
    check_stream(recipe(roles(given), parameters, given.base), tmp_path / "merged")


@pytest.mark.parametrize(
    "family",
    [
        *("llama_tied", "qwen2", "qwen3", "gemma2", "phi3"),
        *("gpt2", "opt", "olmo2", "mistral", "mistral3_vl"),
    ],
)
def test_every_family(family: str, experts: Any, tmp_path: Path) -> None:
    given = experts(family)
    parameters = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}
    stream = check_stream(recipe(roles(given), parameters, given.base), tmp_path / "merged")
    has_head = any(name.endswith("lm_head.weight") for name in stream.names)
    assert has_head == (family not in ("llama_tied", "gemma2", "gpt2"))


@pytest.mark.parametrize("non_layer", ["average", "language"])
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float32"])
def test_experts_of_different_dtypes(
    dtype: str | None, non_layer: str, experts: Any, tmp_path: Path
) -> None:
    task = experts("llama").task
    language = make_model("llama", tmp_path / "language", 5, dtype=torch.float32)
    half = make_model("llama", tmp_path / "half", 6, dtype=torch.float16)
    document = recipe(
        {"task": task, "language": language},
        {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1, "non_layer": non_layer},
        **({} if dtype is None else {"dtype": dtype}),
    )
    document["models"].append(
        {"model": str(half), "parameters": {"role": "language", "weight": 0.3}}
    )
    stream = check_stream(document, tmp_path / "merged")
    assert stream.model_dtype == (dtype or "bfloat16")


def test_out_dtype(experts: Any, tmp_path: Path) -> None:
    given = experts("llama", dtype=torch.float32)
    parameters = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}
    document = recipe(roles(given), parameters, dtype="float32", out_dtype="float16")
    assert check_stream(document, tmp_path / "merged").model_dtype == "float16"


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.3, 0.7, 0.1), (0.0, 1.0, 2.0)])
def test_soups(weights: tuple[float, ...], experts: Any, tmp_path: Path) -> None:
    given = experts("llama")
    document = recipe(
        roles(given), {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}, given.base
    )
    document["models"].append({"model": str(given.base), "parameters": {"role": "task"}})
    for entry, weight in zip(document["models"], weights, strict=True):
        entry["parameters"]["weight"] = weight
    check_stream(document, tmp_path / "merged")


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 0.7), (1.0, 0.0)])
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_linear(
    weights: tuple[float, float], dtype: str | None, experts: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    document = linear_recipe([given.task, given.language], weights)
    check_stream(document | ({"dtype": dtype} if dtype else {}), tmp_path / "merged")


def test_a_folder_that_is_listed_twice_keeps_both_weights(
    experts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = experts("llama")
    read: list[str] = []

    def counting(name: str, path: Path) -> Checkpoint:
        read.append(name)
        return read_checkpoint(name, path)

    monkeypatch.setattr(weight_stream, "read_checkpoint", counting)
    inputs = [
        StreamInput(name, folder, weight=weight)
        for name, folder, weight in (("a", given.task, 0.2), ("b", given.base, 0.5))
    ]
    stream = linear_stream([*inputs, StreamInput("a again", given.task, weight=0.3)])
    assert read == ["a", "b"]
    for mix in stream.mixes.values():
        assert [weight for _, weight in mix.terms] == [0.2, 0.5, 0.3]


def test_passthrough_and_shards(experts: Any, tmp_path: Path) -> None:
    folder = experts("qwen2", shard="4KB").task
    assert len(list(folder.glob("*.safetensors"))) > 3
    document = {"merge_method": "passthrough", "models": [{"model": str(folder)}]}
    check_stream(document, tmp_path / "merged")
    check_stream(document | {"dtype": "float32"}, tmp_path / "float32")


def test_equal_weights_have_equal_mixes(experts: Any) -> None:
    given = experts("llama")
    plain = checkpoint_stream(given.task)
    nothing = {"bottom_layers": 0, "top_layers": 0, "non_layer": "task"}
    for dtype in (None, "bfloat16"):
        document = recipe(roles(given), nothing, given.base) | ({"dtype": dtype} if dtype else {})
        assert stream_of(document).mixes == plain.mixes
    rounded = stream_of(recipe(roles(given), nothing, given.base, dtype="float32"))
    some = stream_of(recipe(roles(given), {**nothing, "bottom_layers": 1}, given.base))
    for name in plain.names:
        assert rounded.mixes[name] != plain.mixes[name]
        assert (some.mixes[name] != plain.mixes[name]) == name.startswith("model.layers.0.")
    assert len({stream.mixes[plain.names[0]] for stream in (plain, rounded, some)}) == 2


def test_a_mix_survives_the_way_to_another_process(experts: Any) -> None:
    given = experts("qwen2")
    stream = stream_of(recipe(roles(given), PARAMETERS[2], given.base))
    mixes = mixes_from_json(mixes_to_json(stream.mixes))
    assert mixes == stream.mixes
    assert_same({name: read_mix(mix) for name, mix in mixes.items()}, tensors(stream))


def test_a_file_written_anew_is_not_read(experts: Any, tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path / "model", 7)
    stream = checkpoint_stream(folder)
    file = folder / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    with pytest.raises(InputError, match="rewritten"):
        read_mix(stream.mixes[stream.names[0]])
    assert checkpoint_stream(folder).mixes[stream.names[0]] != stream.mixes[stream.names[0]]
    file.unlink()
    with pytest.raises(InputError, match="gone: No such file"):
        read_mix(stream.mixes[stream.names[0]])


def test_experts_that_do_not_fit(experts: Any, tmp_path: Path) -> None:
    given = experts("llama")
    wide = make_model("llama", tmp_path / "wide", 1, hidden_size=32)
    deep = make_model("llama", tmp_path / "deep", 1, num_hidden_layers=LAYERS + 1)
    inputs = [StreamInput("task", given.task, "task"), StreamInput("wide", wide, "language")]
    base = StreamInput("deep", deep)
    with pytest.raises(InputError) as raised:
        layer_swap_stream(LayerSwapSpec(bottom_layers=1, top_layers=1), inputs, base)
    assert "2 problems" in raised.value.message
    assert "task and wide have different shapes" in raised.value.message
    assert "task and deep have different depths (6 and 7 layers)" in raised.value.message
    both = [*inputs[:1], StreamInput("language", given.language, "language")]
    with pytest.raises(InputError, match="more than the model's 6 layers"):
        layer_swap_stream(LayerSwapSpec(bottom_layers=5), both, StreamInput("b", given.base))
    with pytest.raises(InputError, match="no language expert"):
        layer_swap_stream(LayerSwapSpec(bottom_layers=1), inputs[:1], StreamInput("b", given.base))
    with pytest.raises(InputError, match="weights sum to 0"):
        linear_stream([StreamInput("task", given.task, weight=0.0)])
    with pytest.raises(InputError, match="no readable config"):
        checkpoint_stream(tmp_path / "absent")
