"""Base plus adapter, tensor by tensor, is the copy that peft would merge, bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from layerswap_method.deltas.pair import open_pair
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.run import forget_loaders
from layerswap_method.recipe.document import checkpoint_stream
from layerswap_method.recipe.references import StreamInput
from layerswap_method.tensors import read_mix
from tests.standins.merging import merge, recipe, revert_recipe
from tests.standins.oracle import assert_same, stored
from tests.standins.streams import check_stream, stream_of
from tests.standins.tuned import edited, rewritten, train_adapter, with_head

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch_dtype.*"),
    pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied"),
    pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`"),
]

LINEAR = ["q_proj", "v_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {
        "rank_pattern": {"layers.1.self_attn.q_proj": 3, "v_proj": 1},
        "alpha_pattern": {"layers.2.*down_proj": 11},
    },
    "embedding": {"target_modules": ["embed_tokens", "k_proj"]},
    "head": {"target_modules": ["lm_head"]},
    "some_layers": {"layers_to_transform": [0, 4]},
}

MakeAdapter = Callable[..., Path]


@pytest.fixture
def make_adapter(tmp_path: Path) -> MakeAdapter:
    """Return a function: base, config -> folder of an adapter with two random matrices a target."""

    def make(base: Path, name: str = "adapter", seed: int = 0, **config: Any) -> Path:
        config = {"target_modules": LINEAR, "r": 2, "lora_alpha": 7, **config}
        return train_adapter(base, tmp_path / name, seed, **config)

    return make


def check_unmerged(base: Path, adapter: Path, tmp_path: Path) -> set[str]:
    """Fail unless stream and mergekit's copy agree; return the names that the adapter changes."""
    forget_loaders()
    document = {"merge_method": "passthrough", "models": [{"model": f"{base}+{adapter}"}]}
    cache = {"lora_merge_cache": str(tmp_path / "cache")}
    found = dict(check_stream(document, tmp_path / "merged", **cache).tensors())
    plain = stored(base)
    return {name for name in found if not torch.equal(found[name].double(), plain[name].double())}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str, experts: Any, make_adapter: MakeAdapter, tmp_path: Path) -> None:
    base = experts("llama", dtype=torch.float32).base
    changed = check_unmerged(base, make_adapter(base, **KINDS[kind]), tmp_path)
    wanted = {"embedding": 7, "head": 1, "some_layers": 6}.get(kind, 18)
    assert len(changed) == wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_every_dtype(
    dtype: torch.dtype, experts: Any, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    base = experts("llama", dtype=dtype).base
    adapter = make_adapter(base)
    assert len(check_unmerged(base, adapter, tmp_path)) == 18


def test_an_adapter_in_sixteen_bits(
    experts: Any, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    base = experts("llama").base
    file = make_adapter(base) / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    assert len(check_unmerged(base, file.parent, tmp_path)) == 18


def test_a_base_stored_in_another_dtype_than_its_config_says(
    experts: Any, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    base = shutil.copytree(experts("llama", dtype=torch.float32).base, tmp_path / "base")
    edited(base, dtype="bfloat16")
    check_unmerged(base, make_adapter(base), tmp_path)


def test_a_base_stored_in_two_dtypes_is_cast_to_one(
    experts: Any, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    base = rewritten(
        experts("llama", dtype=torch.float32).base,
        tmp_path / "base",
        lambda name, tensor: tensor if "norm" in name else tensor.bfloat16(),
    )
    adapter = make_adapter(base)
    check_unmerged(base, adapter, tmp_path)
    for stream, dtype in (
        (checkpoint_stream(base, adapter), torch.bfloat16),
        (checkpoint_stream(base), torch.float32),
    ):
        assert read_mix(stream.mixes["model.norm.weight"]).dtype == dtype


@pytest.mark.parametrize(
    ("family", "targets", "changed"),
    [
        ("llama_tied", ["embed_tokens", "q_proj"], 7),
        ("gpt2", ["c_attn", "attn.c_proj"], 12),  # Conv1D, one of them square
        ("qwen2", ["q_proj", "gate_proj"], 12),
    ],
)
def test_every_layout(
    family: str,
    targets: list[str],
    changed: int,
    experts: Any,
    make_adapter: MakeAdapter,
    tmp_path: Path,
) -> None:
    base = experts(family, dtype=torch.float32).base
    adapter = make_adapter(base, target_modules=targets, fan_in_fan_out=family == "gpt2")
    assert len(check_unmerged(base, adapter, tmp_path)) == changed


def test_rows_of_an_adapter_on_a_base_that_stores_its_tied_head(
    experts: Any, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    """The copy that mergekit merges it into holds no head, so its rows count once."""
    base = with_head(experts("llama_tied", dtype=torch.float32).base, tmp_path / "base")
    expert = f"{base}+{make_adapter(base, lora_alpha=1)}"
    document = revert_recipe(expert, base, {"keep_fraction": 0.02})
    out = merge(document, tmp_path / "out", lora_merge_cache=str(tmp_path / "cache"))
    plan = json.loads((out / "delta_revert_plan.json").read_text(encoding="utf-8"))
    stream = stream_of(document)
    assert_same(dict(stream.tensors()), stored(out))
    assert stream.measured is not None
    assert stream.measured["threshold"] == plan["threshold"] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layer_swap_of_adapters(
    dtype: torch.dtype, experts: Any, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    base = experts("llama", dtype=dtype).base
    models = {
        role: f"{base}+{make_adapter(base, role, seed)}"
        for seed, role in enumerate(("task", "language"))
    }
    parameters = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}
    for index, top in enumerate(({}, {"dtype": "float16"})):
        forget_loaders()
        document = recipe(models, parameters, base, **top)
        check_stream(document, tmp_path / f"out{index}", lora_merge_cache=str(tmp_path / "cache"))
    stream = stream_of(recipe(models, parameters, base))
    plain = checkpoint_stream(base)
    same = [name for name in plain.names if stream.mixes[name] == plain.mixes[name]]
    # What neither adapter touches and no average rounds is the base's own tensor.
    assert "model.layers.0.self_attn.k_proj.weight" in same
    assert "model.layers.0.self_attn.q_proj.weight" not in same


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"use_dora": True}, "use_dora is set"),
    ({"bias": "all"}, "bias is 'all', not 'none'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
    ({"trainable_token_indices": [3]}, "trainable_token_indices is set"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the base too"),
    ({"target_parameters": ["x"]}, "target_parameters is set"),
    ({"peft_type": "IA3"}, "peft_type is 'IA3', not 'LORA'"),
    ({"r": 5}, "not of the config's rank 5"),
    ({"r": None}, "no readable adapter_config.json"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda v: str(v)[:30])
def test_what_is_refused(
    changes: dict[str, Any], message: str, experts: Any, make_adapter: MakeAdapter
) -> None:
    base = experts("llama").base
    adapter = make_adapter(base)
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError) as raised:
        checkpoint_stream(base, adapter)
    assert message in raised.value.message
    assert str(adapter) in raised.value.message


def test_tensors_that_are_no_change_are_refused(
    experts: Any, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    base = experts("llama").base
    file = make_adapter(base) / "adapter_model.safetensors"
    found = load_file(file)
    save_file({**found, "base_model.model.lm_head.weight": torch.zeros(96, 16)}, file)
    with pytest.raises(InputError, match=r"1 tensors that are not a low-rank change: .*lm_head"):
        checkpoint_stream(base, file.parent)
    down = next(name for name in found if "lora_A" in name)
    save_file({name: tensor for name, tensor in found.items() if name != down}, file)
    with pytest.raises(InputError, match="not a low-rank change"):
        checkpoint_stream(base, file.parent)
    file.write_bytes(b"not safetensors")
    with pytest.raises(InputError, match="is damaged"):
        checkpoint_stream(base, file.parent)
    file.rename(file.with_suffix(".bin"))
    with pytest.raises(InputError, match=r"a pickled adapter_model\.bin is not loaded"):
        checkpoint_stream(base, file.parent)


@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_an_adapter_that_unties_the_embeddings_is_refused(
    module: str, experts: Any, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    """The merge would hold an output embedding of its own under a config that ties it."""
    base = experts("llama_tied", dtype=torch.float32).base
    models = {
        role: f"{base}+{make_adapter(base, role, seed, modules_to_save=[module])}"
        for seed, role in enumerate(("task", "language"))
    }
    document = recipe(models, {"bottom_layers": 1})  # config and tokenizer from the task expert
    with pytest.raises(InputError, match="unties the output embedding"):
        merge(document, tmp_path / "out", lora_merge_cache=str(tmp_path / "cache"))
    with pytest.raises(InputError, match="modules_to_save is set"):
        stream_of(document)
    expert = StreamInput("task", base, adapter=tmp_path / "task")
    with pytest.raises(InputError, match="modules_to_save is set"):
        open_pair(expert, StreamInput("base", base))
    assert not (tmp_path / "out").exists()
    mixed = recipe({**models, "language": base}, {"bottom_layers": 1}, base)
    with pytest.raises(InputError, match=r"ties its output embedding .* does not"):
        merge(mixed, tmp_path / "out", lora_merge_cache=str(tmp_path / "cache"))


def test_a_change_of_a_tied_head_is_refused_where_the_head_is_stored_too(
    experts: Any, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    base = with_head(experts("llama_tied", dtype=torch.float32).base, tmp_path / "base")
    adapter = make_adapter(base, target_modules=["lm_head", "q_proj"])
    with pytest.raises(InputError, match=r"changes lm_head\.weight, .* or a tied output embedding"):
        checkpoint_stream(base, adapter)


def test_an_adapter_of_another_model_is_refused(experts: Any, make_adapter: MakeAdapter) -> None:
    adapter = make_adapter(experts("llama").base, target_modules=["lm_head", "q_proj"])
    with pytest.raises(InputError, match=r"changes lm_head\.weight, which its base does not hold"):
        checkpoint_stream(experts("llama_tied").base, adapter)
    wide = experts("llama", intermediate_size=32).base
    down = make_adapter(experts("llama").base, "down", target_modules=["down_proj"])
    with pytest.raises(InputError, match=r"the change is \[16, 24\] and the weight is \[16, 32\]"):
        checkpoint_stream(wide, down)
