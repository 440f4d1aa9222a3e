"""Streams of `delta_revert`: mergekit's tensors, bit for bit, whatever goes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layerswap_method.delta_revert import measure

from layerswap_method.deltas import known, magnitudes, passes
from layerswap_method.deltas.measure import row_mav, row_mavs
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.run import forget_loaders
from layerswap_method.recipe.document import WeightStream, checkpoint_stream
from layerswap_method.tensors import mixes_from_json, mixes_to_json, read_mix
from tests.delta.experts import pair_of
from tests.standins.merging import revert_recipe
from tests.standins.oracle import stored
from tests.standins.streams import check_stream, stream_of
from tests.standins.tuned import rewritten, uneven, write_adapter
from tests.standins.zoo import make_model

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")

ROWS: list[dict[str, Any]] = [
    {"threshold": 1e-3},
    {"threshold": 0.0},
    {"threshold": 9.0},
    {"keep_fraction": 0.0},
    {"keep_fraction": 0.3},
    {"keep_fraction": 0.7},
    {"keep_fraction": 1.0},
    {"keep_fraction": 0.5, "bottom_layers": 1, "top_layers": 2, "revert_modules": "norm"},
]
WHOLE: list[dict[str, Any]] = [
    {"bottom_layers": 0},
    {"bottom_layers": 2, "top_layers": 1},
    {"revert_layers": "0,2-3"},
    *({"revert_modules": name} for name in ("attention", "mlp", "norm", "non_layer")),
    {"revert_modules": "attention,non_layer", "top_layers": 1},
]

Tuned = Callable[..., SimpleNamespace]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Return a function: family, dtypes of expert and base -> their folders."""
    made: dict[Any, SimpleNamespace] = {}

    def make(
        family: str, dtype: torch.dtype = torch.bfloat16, base: torch.dtype | None = None
    ) -> SimpleNamespace:
        key = (family, dtype, base)
        if key not in made:
            root = tmp_path_factory.mktemp(family)
            parent = make_model(family, root / "base", 0, dtype=base or dtype)
            expert = uneven(parent, root / "expert", 5e-3, dtype)
            made[key] = SimpleNamespace(base=parent, expert=expert)
        return made[key]

    return make


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the tiny tensors into several blocks and segments."""
    monkeypatch.setattr(passes, "BLOCK", 100)
    monkeypatch.setattr(passes, "_SEGMENT", 300)


def check(document: dict[str, Any], out: Path, **options: Any) -> WeightStream:
    """Fail unless stream and merge agree in their tensors and in what they keep."""
    stream = check_stream(document, out, **options)
    plan = json.loads((out / "delta_revert_plan.json").read_text())
    assert stream.measured is not None
    assert (stream.measured["threshold"], stream.measured["kept"]) == (
        plan["threshold"],
        plan["kept"],
    )
    return stream


@pytest.mark.parametrize("parameters", [*ROWS, *WHOLE], ids=str)
def test_every_way_to_select(parameters: dict[str, Any], tuned: Tuned, tmp_path: Path) -> None:
    given = tuned("llama")
    stream = check(revert_recipe(given.expert, given.base, parameters), tmp_path / "merged")
    chosen = [name for name in stream.names if stream.mixes[name].rows is not None]
    is_mixed = parameters in (ROWS[0], *ROWS[4:6], ROWS[7])
    assert (len(chosen) > 10) == is_mixed
    if not is_mixed:
        assert not chosen, "what is one side's is that side's mix"


@pytest.mark.parametrize(
    "family",
    ["llama_tied", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "opt", "olmo2", "mistral3_vl"],
)
def test_every_family(family: str, tuned: Tuned, tmp_path: Path) -> None:
    given = tuned(family)
    rows = {"keep_fraction": 0.4, "top_layers": 1, "revert_modules": "norm"}
    stream = check(revert_recipe(given.expert, given.base, rows), tmp_path / "rows")
    assert any(stream.mixes[name].rows is not None for name in stream.names)
    whole = {"bottom_layers": 1, "revert_modules": "attention,non_layer"}
    check(revert_recipe(given.expert, given.base, whole), tmp_path / "whole")


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "top", [{}, {"dtype": "bfloat16"}, {"dtype": "float32", "out_dtype": "float16"}], ids=str
)
def test_every_dtype(
    dtypes: tuple[torch.dtype, torch.dtype], top: dict[str, str], tuned: Tuned, tmp_path: Path
) -> None:
    given = tuned("llama", *dtypes)
    for index, parameters in enumerate((ROWS[7], ROWS[6], WHOLE[1])):
        document = revert_recipe(given.expert, given.base, parameters, **top)
        check(document, tmp_path / str(index))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_adapter_is_compared_as_the_copy_that_mergekit_merges(
    dtype: torch.dtype, tuned: Tuned, tmp_path: Path
) -> None:
    base = tuned("llama", dtype).base
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.mlp.down_proj", 24, 16, 0.025)
    cache = {"lora_merge_cache": str(tmp_path / "cache")}
    changed = "model.layers.1.mlp.down_proj.weight"
    for index, parameters in enumerate(({"threshold": 2e-3}, {"keep_fraction": 0.02}, WHOLE[1])):
        forget_loaders()
        document = revert_recipe(f"{base}+{adapter}", base, parameters)
        stream = check(document, tmp_path / str(index), **cache)
        plain = checkpoint_stream(base)
        others = [name for name in stream.names if name != changed]
        if index < 2:
            assert stream.mixes[changed].rows is not None
            assert 0 < dict(stream.measured or {})["kept"]["kept_rows"] < 24
        assert stream.mixes[changed] != plain.mixes[changed] or index == 2
        assert all(
            torch.equal(read_mix(stream.mixes[name]), read_mix(plain.mixes[name]))
            for name in others
        )


def test_the_kernel_and_the_pass_get_the_same_bits(tuned: Tuned) -> None:
    for family in ("llama", "gpt2", "mixtral", "qwen3_vl"):
        given = tuned(family)
        pair = pair_of(given.expert, given.base)
        ours, theirs = stored(given.expert), stored(given.base)
        found = dict(row_mavs(pair, pair.names))
        assert set(found) == set(pair.names)
        for name, mav in found.items():
            whole = row_mav(ours[name], theirs[name], pair.axis(name))
            assert torch.equal(mav, whole), name
            assert mav.numel() == pair.layout(name).features


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "BLOCK", 1 << 17)
    generator = torch.Generator().manual_seed(1)
    expert, base = torch.randn(2, 700, 900, generator=generator).unbind()
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found += [row_mav(expert, base, axis) for axis in (1, 0, None)]
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(found[:3], found[3:], strict=True):
        assert torch.equal(one, other)
    exact = (expert.double() - base.double()).abs().mean(0)
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-6, atol=0)


def test_one_pass_serves_a_whole_study(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tuned("llama")
    read: list[str] = []

    def counting(pair: Any, names: Any) -> Any:
        read.extend(names)
        return magnitudes.row_mavs(pair, names)

    monkeypatch.setattr(measure, "row_mavs", counting)
    known._known.clear()
    streams = [stream_of(revert_recipe(given.expert, given.base, each)) for each in ROWS]
    assert sorted(read) == sorted(streams[0].names)
    again = stream_of(revert_recipe(given.expert, given.base, ROWS[4]))
    assert again.mixes == streams[4].mixes
    assert again.mixes != streams[5].mixes
    assert len(read) == len(streams[0].names)
    # A file that was written anew is read anew.
    (given.expert / "model.safetensors").touch()
    stream_of(revert_recipe(given.expert, given.base, ROWS[4]))
    assert len(read) == 2 * len(streams[0].names)


def test_what_is_one_sides_is_that_sides_own(tuned: Tuned) -> None:
    given = tuned("llama")
    expert, base = (checkpoint_stream(each) for each in (given.expert, given.base))
    for parameters, side in [
        ({"bottom_layers": 0}, expert),
        ({"threshold": 0.0}, expert),
        ({"keep_fraction": 1.0}, expert),
        ({"keep_fraction": 0.0}, base),
    ]:
        stream = stream_of(revert_recipe(given.expert, given.base, parameters))
        assert stream.mixes == side.mixes
        assert stream.donor == given.base


def test_rows_survive_the_way_to_another_process(tuned: Tuned) -> None:
    given = tuned("phi3")
    stream = stream_of(revert_recipe(given.expert, given.base, ROWS[7]))
    assert mixes_from_json(mixes_to_json(stream.mixes)) == stream.mixes


def test_what_is_refused(tuned: Tuned, tmp_path: Path) -> None:
    given = tuned("llama")
    stranger = make_model("llama", tmp_path / "stranger", 9)
    with pytest.raises(InputError, match="is not the base of"):
        stream_of(revert_recipe(stranger, given.base, {"threshold": 1e-3}))
    stream_of(revert_recipe(stranger, given.base, {"bottom_layers": 1}))  # nothing is compared
    with pytest.raises(InputError, match=r"7 \+ 2 = 9 is more than the model's 6 layers"):
        stream_of(revert_recipe(given.expert, given.base, {"bottom_layers": 7, "top_layers": 2}))

    def damage(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == "model.norm.weight":
            tensor[3] = torch.nan
        return tensor

    damaged = rewritten(given.expert, tmp_path / "damaged", damage)
    for parameters in ({"threshold": 1e-3}, {"keep_fraction": 0.5}):
        with pytest.raises(InputError, match=r"1 of 16 values of model\.norm\.weight are NaN"):
            stream_of(revert_recipe(damaged, given.base, parameters))
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.mlp.down_proj", 24, 16)
    with pytest.raises(InputError, match="the base has an adapter; merge it into a folder first"):
        stream_of(
            {
                **revert_recipe(given.expert, given.base, ROWS[0]),
                "base_model": f"{given.base}+{adapter}",
            }
        )
