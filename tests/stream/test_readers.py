"""What is read in blocks is what is read whole, and a lazy tensor is the tensor, only later."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from layerswap_method.stream import blocks
from safetensors.torch import save_file

from ablations.engines.lazy import LazyTensor
from layerswap_method.checkpoint.lora import LowRankChange
from layerswap_method.checkpoint.stored import file_stamp
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.tensors import MixReader, TensorMix, TensorOrigin, read_mix

SHAPES = [(), (1,), (7,), (0, 5), (131, 3), (200, 17), (65, 2, 9), (129, 64)]
MIXES: dict[str, dict[str, Any]] = {
    "copy": {"count": 1},
    "cast": {"count": 1, "load_dtype": "float16"},
    "average": {"count": 2, "divisor": 2.0},
    "soup": {"count": 3, "coefficients": (3.0, 7.0, 10.0), "divisor": 20.0, "dtype": "bfloat16"},
    "rounded": {"count": 2, "divisor": 2.0, "out_dtype": "float16"},
    "linear": {"count": 3, "coefficients": (0.3, 0.7, 0.1), "rule": "linear"},
}
Make = Callable[..., TensorMix]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function: shape, kind of `MIXES` -> mix of random tensors."""

    def made(shape: tuple[int, ...], kind: str, stored: torch.dtype = torch.float32) -> TensorMix:
        settings = dict(MIXES[kind])
        count = settings.pop("count")
        coefficients = settings.pop("coefficients", (1.0,) * count)
        torch.manual_seed(len(shape))
        file = tmp_path / "stored.safetensors"
        save_file({str(index): torch.randn(shape).to(stored) for index in range(count)}, file)
        origins = [
            TensorOrigin(file=file, stamp=file_stamp(file), name=str(index))
            for index in range(count)
        ]
        return TensorMix(terms=tuple(zip(origins, coefficients, strict=True)), **settings)

    return made


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_VALUES", 1)  # then a block has 64 rows


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", MIXES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_are_parts_of_the_whole(
    shape: tuple[int, ...], kind: str, stored: torch.dtype, make: Make
) -> None:
    mix = make(shape, kind, stored)
    reader, whole = MixReader(mix), read_mix(mix)
    assert (whole.shape, whole.dtype, whole.nbytes) == (shape, reader.dtype, reader.nbytes)
    blocks = [block for _, block in reader.blocks()]
    rows = shape[0] if shape else 1
    assert len(blocks) == math.ceil(rows / 64)
    if rows:
        assert torch.equal(torch.cat(blocks).view(shape), whole)
    target = torch.full(shape, math.nan, dtype=torch.float64)
    reader.copy_to(target)
    assert torch.equal(target, whole.double())


@pytest.mark.parametrize("transposed", [False, True])
def test_a_change_is_the_same_in_blocks(transposed: bool, make: Make, tmp_path: Path) -> None:
    (origin, _), *_ = make((200, 31), "copy", torch.bfloat16).terms
    inputs, outputs = (200, 31) if transposed else (31, 200)
    file = tmp_path / "adapter.safetensors"
    save_file({"down": torch.randn(5, inputs), "up": torch.randn(outputs, 5)}, file)
    change = LowRankChange(
        file=file,
        stamp=file_stamp(file),
        down="down",
        up="up",
        scaling=1.75,
        transposed=transposed,
    )
    mix = TensorMix(terms=((origin.model_copy(update={"change": change}), 1.0),))
    blocks = [block for _, block in MixReader(mix).blocks()]
    assert len(blocks) == 4
    assert torch.equal(torch.cat(blocks), read_mix(mix))
    plain = read_mix(TensorMix(terms=((origin, 1.0),)))
    assert not torch.equal(read_mix(mix), plain)


def test_a_lazy_tensor_is_narrowed_and_copied_without_being_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mix = make((200, 17), "average")
    whole, lazy = read_mix(mix), LazyTensor(MixReader(mix))
    monkeypatch.setattr(LazyTensor, "read", lambda self: pytest.fail("it was read whole"))
    assert (lazy.shape, lazy.dtype, lazy.device.type) == (whole.shape, whole.dtype, "cpu")
    assert (lazy.numel(), lazy.nbytes, lazy.ndim) == (3400, 13600, 2)
    for window in [
        (slice(None), slice(None)),
        (slice(3, 150), slice(None)),
        (slice(64, 199), slice(5, 9)),
        (slice(0, 0), slice(None)),
    ]:
        narrowed = lazy[window].data.detach()
        assert narrowed.shape == whole[window].shape
        target = torch.zeros(narrowed.shape, dtype=torch.float16)
        target.copy_(narrowed)
        assert torch.equal(target, whole[window].half())
    chained = lazy.narrow(0, 10, 120).narrow(1, 2, 8).narrow(0, 70, 40)
    target = torch.zeros(300, 30)
    target[5:45, 1:9].copy_(chained)
    assert torch.equal(target[5:45, 1:9], whole[80:120, 2:10])
    assert target.count_nonzero() == 320
    meta = torch.empty(200, 17, device="meta")
    assert meta.copy_(lazy) is meta


def test_whatever_else_is_done_with_a_lazy_tensor_reads_it(make: Make) -> None:
    mix = make((131, 3), "average")
    whole, lazy = read_mix(mix), LazyTensor(MixReader(mix))
    operations: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t + 1,
        lambda t: t.T.contiguous(),
        lambda t: t.reshape(3, 131),
        lambda t: t[::2],
        lambda t: t[4],
        lambda t: torch.cat([t, t]),
        lambda t: t.to(torch.float64),
        lambda t: torch.zeros(2, 131, 3).copy_(t),  # broadcast
        lambda t: t[5:60].clone(),
    ]
    for operation in operations:
        found = operation(lazy)
        assert not isinstance(found, LazyTensor)
        assert torch.equal(found, operation(whole))


def test_a_single_number(make: Make) -> None:
    mix = make((), "average")
    lazy, target = LazyTensor(MixReader(mix)), torch.zeros(())
    assert lazy.item() == read_mix(mix).item()
    target.copy_(lazy)
    assert target == read_mix(mix)


def test_what_cannot_be_read(make: Make, tmp_path: Path) -> None:
    mix = make((200, 17), "average")
    reader = MixReader(mix)
    (origin, _), *_ = mix.terms
    absent = TensorMix(terms=((origin.model_copy(update={"name": "other"}), 1.0),))
    with pytest.raises(LayerSwapError, match="other cannot be read: it is not in the file"):
        MixReader(absent)
    file = tmp_path / "stored.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="rewritten"):
        reader.read()
    with pytest.raises(InputError, match="rewritten"):
        MixReader(mix)
    file.unlink()
    with pytest.raises(InputError, match="the weights are gone"):
        reader.copy_to(torch.zeros(200, 17))
