"""The header reader takes only what safetensors' own reader takes, and reads it alike."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.torch import save

from layerswap_method.checkpoint.stored import DTYPES, read_header
from layerswap_method.errors import InputError

TENSORS = {
    "b": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a": torch.arange(4, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 5),
    "number": torch.tensor(7, dtype=torch.int64),
}
GOOD = save(TENSORS, {"format": "pt"})
(LENGTH,) = struct.unpack("<Q", GOOD[:8])
HEADER: dict[str, Any] = json.loads(GOOD[8 : 8 + LENGTH])
DATA = GOOD[8 + LENGTH :]


def packed(header: Any, data: bytes = DATA) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def accepted(content: bytes, file: Path) -> bool:
    """Return whether the reader takes the file; fail unless safetensors then reads the same."""
    file.write_bytes(content)
    try:
        found = read_header(file)
    except InputError:
        return False
    theirs = dict(deserialize(content))
    assert list(found) == sorted(theirs)
    for name, tensor in found.items():
        assert (tensor.dtype, list(tensor.shape)) == (theirs[name]["dtype"], theirs[name]["shape"])
        assert content[tensor.offset : tensor.offset + tensor.nbytes] == theirs[name]["data"]
    return True


def refused_by_both(content: bytes, file: Path) -> None:
    assert not accepted(content, file)
    with pytest.raises(SafetensorError):
        deserialize(content)


def changed(name: str, **entry: Any) -> dict[str, Any]:
    return {**HEADER, name: {**HEADER[name], **entry}}


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    assert accepted(GOOD, tmp_path / "file")
    assert accepted(packed({}, b""), tmp_path / "file")
    assert accepted(packed(json.dumps(HEADER).encode() + b"   "), tmp_path / "file")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(GOOD)
    assert read_header(link) == read_header(tmp_path / "file")


@pytest.mark.parametrize("dtype", [name for name in DTYPES if DTYPES[name].bits >= 8])
def test_every_dtype_has_its_size(dtype: str, tmp_path: Path) -> None:
    size = DTYPES[dtype].bits // 8 * 3
    entry = {"dtype": dtype, "shape": [3], "data_offsets": [0, size]}
    assert accepted(packed({"x": entry}, bytes(size)), tmp_path / "file")
    torch_name = DTYPES[dtype].torch_name
    assert torch_name is not None
    assert getattr(torch, torch_name).itemsize * 8 == DTYPES[dtype].bits


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(changed("b", data_offsets=[0, 24]), id="overlap"),
        pytest.param(changed("b", shape=[2, 4]), id="shape"),
        pytest.param(changed("b", dtype="F64"), id="size"),
        pytest.param(changed("b", dtype="F31"), id="dtype"),
        pytest.param(changed("b", shape=[-2, -3]), id="negative"),
        pytest.param(changed("b", shape=[2.0, 3]), id="fraction"),
        pytest.param(changed("empty", shape=[1 << 63, 2, 0]), id="overflow"),
        pytest.param(changed("b", shape=[1 << 64, 0]), id="too many"),
        pytest.param({k: v for k, v in HEADER.items() if k != "a"}, id="gap"),
        pytest.param({**HEADER, "__metadata__": {"format": 1}}, id="metadata"),
        pytest.param([HEADER], id="list"),
        pytest.param(json.dumps({"x\ud800": HEADER["b"]}).encode(), id="half a pair"),
        pytest.param(b"[" * 200_000, id="depth"),
        pytest.param(b"\xff\xfe{\0}\0", id="UTF-16"),
        pytest.param(b'{"b": {"dtype": "F32", "dtype": "F32", "shape": []}}', id="key twice"),
    ],
)
def test_what_lies_is_refused(header: Any, tmp_path: Path) -> None:
    refused_by_both(packed(header), tmp_path / "file")
    with pytest.raises(InputError, match=r"file: is damaged \(.*\); download or copy it again"):
        read_header(tmp_path / "file")


@pytest.mark.parametrize("size", [0, 7, 8, 20, 8 + LENGTH, len(GOOD) - 1])
def test_what_is_cut_short_or_goes_on_is_refused(size: int, tmp_path: Path) -> None:
    refused_by_both(GOOD[:size], tmp_path / "file")
    refused_by_both(GOOD + b"\0", tmp_path / "file")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone: is damaged \(No such file or directory\)"):
        read_header(tmp_path / "gone")
    with pytest.raises(InputError, match="base: shard is damaged"):
        read_header(tmp_path / "gone", "base: shard")


NUMBERS = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 70]),
    st.floats(),
    st.none(),
    st.booleans(),
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPES, "F31", "f32", None]),
        "shape": st.lists(NUMBERS, max_size=3),
        "data_offsets": st.lists(NUMBERS, max_size=3),
    },
    optional={"more": NUMBERS},
)
FUZZ = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@FUZZ
@given(
    st.dictionaries(st.sampled_from([*HEADER, "new", "é", "\ud800"]), ENTRIES, max_size=3),
    st.binary(max_size=40),
)
def test_any_header_is_read_alike_or_refused(
    tmp_path: Path, entries: dict[str, Any], data: bytes
) -> None:
    accepted(packed({**HEADER, **entries}), tmp_path / "file")
    accepted(packed(entries, data), tmp_path / "file")


@FUZZ
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 3), st.binary(max_size=3))))
def test_any_damage_is_read_alike_or_refused(
    tmp_path: Path, edits: list[tuple[int, int, bytes]]
) -> None:
    content = GOOD
    for place, length, new in edits:
        content = content[:place] + new + content[place + length :]
    assert accepted(content, tmp_path / "file") or content != GOOD


@FUZZ
@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for name in DTYPES if DTYPES[name].torch_name]),
            st.lists(st.integers(0, 4), max_size=3),
        ),
        max_size=4,
    ),
    st.randoms(),
)
def test_every_true_header_is_read(tmp_path: Path, tensors: list[Any], random: Any) -> None:
    header, end = {}, 0
    for number, (dtype, shape) in enumerate(tensors):
        size = DTYPES[dtype].bits // 8 * torch.Size(shape).numel()
        entry = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        header[f"tensor {number}"] = entry
        end += size
    names = random.sample(list(header), len(header))
    content = packed({name: header[name] for name in names}, random.randbytes(end))
    assert accepted(content, tmp_path / "file")
