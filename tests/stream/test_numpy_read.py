"""What numpy computes is what torch computes, bit for bit, whatever the values are."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layerswap_method.stream import blocks
from layerswap_method.stream.numpy_read import NeedsTorchError, NumpyReader
from layerswap_method.stream.pieces import check_device, form, pieces
from safetensors.torch import save_file

from layerswap_method.checkpoint.stored import file_stamp
from layerswap_method.errors import InputError
from layerswap_method.tensors import (
    MixReader,
    RowChoice,
    TensorMix,
    TensorOrigin,
    as_bytes,
    read_mix,
)

DTYPES = ["float32", "bfloat16", "float16"]
SHAPES = [(), (1,), (0, 5), (5, 0), (7,), (131, 3), (65, 2, 9), (129, 64)]
WITH_NONE = st.sampled_from([None, *DTYPES])


def draw(shape: tuple[int, ...], dtype: str, seed: int, odd: float) -> torch.Tensor:
    """Return values of any size, a share of which are the odd ones of floats."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=random, dtype=torch.float64)
    values *= torch.exp2(torch.randint(-30, 18, shape, generator=random).double())
    strange = [0.0, -0.0, math.inf, -math.inf, math.nan, 65504.0, 65520.0, 3.4e38, 1e-45, 6e-8]
    chosen = torch.tensor(strange)[torch.randint(len(strange), shape, generator=random)].double()
    is_odd = torch.rand(shape, generator=random) < odd
    return torch.where(is_odd, chosen, values).to(getattr(torch, dtype))


def mix_of(folder: Path, tensors: list[torch.Tensor], **settings: Any) -> TensorMix:
    file = folder / "stored.safetensors"
    save_file({str(index): tensor.clone() for index, tensor in enumerate(tensors)}, file)
    origins = [TensorOrigin(file=file, stamp=file_stamp(file), name=str(i)) for i in range(9)]
    weights = settings.pop("weights", [1.0] * len(tensors))
    return TensorMix(terms=tuple(zip(origins, weights, strict=False)), **settings)


def found_bytes(mix: TensorMix) -> bytes:
    return b"".join(map(bytes, NumpyReader(mix).pieces()))


@settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_every_bit_is_torchs(data: st.DataObject, tmp_path: Path) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    stored = data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3))
    odd = data.draw(st.sampled_from([0.0, 0.3]))
    weights = [float(data.draw(st.integers(1, 4096))) for _ in stored]
    plain = data.draw(st.booleans())
    mix = mix_of(
        tmp_path,
        [draw(shape, dtype, seed, odd) for seed, dtype in enumerate(stored)],
        weights=[1.0] * len(stored) if plain else weights,
        divisor=float(len(stored) if plain else sum(weights)),
        load_dtype=data.draw(WITH_NONE),
        dtype=data.draw(WITH_NONE),
        out_dtype=data.draw(WITH_NONE),
    )
    whole = read_mix(mix)
    wanted = bytes(as_bytes(whole))
    assert b"".join(map(bytes, pieces(mix))) == wanted
    assert form(mix) == (str(whole.dtype).removeprefix("torch."), shape)
    try:
        reader = NumpyReader(mix)
    except NeedsTorchError:
        assert len(stored) > 1  # of float32 values that do not add up exactly
        assert {mix.load_dtype, *stored} - {"float16"}
        return
    assert (reader.dtype, reader.shape) == (str(whole.dtype).removeprefix("torch."), shape)
    assert b"".join(map(bytes, reader.pieces())) == wanted


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_every_16_bit_value(stored: str, tmp_path: Path) -> None:
    """Each of them with a neighbour, itself and its opposite; the last gives NaN of infinities."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
    values = bits.view(getattr(torch, stored))
    for other in (values.roll(1), values, -values, values.roll(12345)):
        for out in (None, *DTYPES):
            mix = mix_of(tmp_path, [values, other], divisor=2.0, dtype=out)
            assert found_bytes(mix) == bytes(as_bytes(read_mix(mix)))
    for out in DTYPES:
        mix = mix_of(tmp_path, [values], dtype=out)
        assert found_bytes(mix) == bytes(as_bytes(read_mix(mix)))


def test_nan_in_one_block_leaves_the_others_to_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_VALUES", 1)
    values = draw((200, 3), "bfloat16", 1, 0.0)
    values[70, 1] = math.nan
    mix = mix_of(tmp_path, [values, values], divisor=2.0)
    asked: list[slice] = []
    real = NumpyReader._by_torch

    def noted(self: NumpyReader, rows: slice) -> memoryview:
        asked.append(rows)
        return real(self, rows)

    monkeypatch.setattr(NumpyReader, "_by_torch", noted)
    assert found_bytes(mix) == bytes(as_bytes(read_mix(mix)))
    assert asked == [slice(64, 128)]


@pytest.mark.parametrize(
    "more",
    [
        {"rule": "linear"},
        {"weights": [0.3, 0.7], "divisor": 1.0},
        {"dtype": "float64"},
        {"rows": RowChoice(first="ff", axis=0)},
    ],
    ids=str,
)
def test_what_only_torch_computes(more: dict[str, Any], tmp_path: Path) -> None:
    tensors = [draw((8, 4), "bfloat16", seed, 0.0) for seed in (1, 2)]
    mix = mix_of(tmp_path, tensors, **{"divisor": 2.0, **more})
    with pytest.raises(NeedsTorchError):
        NumpyReader(mix)
    assert b"".join(map(bytes, pieces(mix))) == bytes(as_bytes(read_mix(mix)))


def test_a_file_that_is_cut_short_meanwhile(tmp_path: Path) -> None:
    mix = mix_of(tmp_path, [draw((8, 4), "bfloat16", seed, 0.0) for seed in (1, 2)], divisor=2.0)
    reader = NumpyReader(mix)
    file = tmp_path / "stored.safetensors"
    stamp = file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes()[:-60])
    with pytest.raises(InputError, match="rewritten while"):
        list(reader.pieces())
    os.utime(file, ns=(stamp, stamp))
    with pytest.raises(InputError, match="is incomplete; download or copy it again"):
        list(reader.pieces())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there() -> None:
    check_device("cpu")
    with pytest.raises(InputError, match="device cuda: there is no GPU here that torch can use"):
        check_device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "more",
    [
        {"divisor": 2.0},
        {"weights": [3.0, 7.0], "divisor": 10.0},
        {"weights": [0.3, 0.7], "divisor": 1.0, "out_dtype": "float16"},
        {"rule": "linear", "weights": [0.3, 0.7]},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_gives_the_same_bits(dtype: str, more: dict[str, Any], tmp_path: Path) -> None:
    mix = mix_of(tmp_path, [draw((200, 33), dtype, seed, 0.0) for seed in (1, 2)], **more)
    check_device("cuda")
    assert b"".join(map(bytes, pieces(mix, "cuda"))) == b"".join(map(bytes, pieces(mix)))
    assert MixReader(mix, "cuda").read().device.type == "cpu"
