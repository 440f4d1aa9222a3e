"""Headers are read as safetensors reads them, or refused; and bytes from their places."""

import json
import os
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.torch import save, save_file

from layerswap_method.checkpoint.stored import (
    TORCH_NAMES,
    check_unchanged,
    file_stamp,
    read_header,
    read_rows,
    read_tensor,
    row_blocks,
    same_content,
)
from layerswap_method.errors import InputError

TENSORS = {
    "b": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a": torch.arange(4, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 5),
    "number": torch.tensor(7, dtype=torch.int64),
}
GOOD = save(TENSORS, {"format": "pt"})
(LENGTH,) = struct.unpack("<Q", GOOD[:8])
HEADER = json.loads(GOOD[8 : 8 + LENGTH])
DATA = GOOD[8 + LENGTH :]


def packed(header, data=DATA):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def accepted(content, file):
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


def changed(name, **entry):
    return {**HEADER, name: {**HEADER[name], **entry}}


def test_what_is_whole_is_read(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    assert accepted(GOOD, file)
    assert accepted(packed({}, b""), file)
    assert accepted(packed(json.dumps(HEADER).encode() + b"   "), file)
    file.write_bytes(GOOD)
    link.symlink_to(file)
    found = read_header(link)
    assert found == read_header(file)
    for name, tensor in TENSORS.items():
        assert torch.equal(read_tensor(found[name]), tensor)
    assert read_rows(found["b"], slice(1, 2)).tolist() == [[3, 4, 5]]


@pytest.mark.parametrize("dtype", TORCH_NAMES)
def test_every_dtype_is_what_torch_calls_it(dtype, tmp_path):
    size = getattr(torch, TORCH_NAMES[dtype]).itemsize
    entry = {"dtype": dtype, "shape": [3], "data_offsets": [0, 3 * size]}
    assert accepted(packed({"x": entry}, bytes(3 * size)), tmp_path / "file")
    assert read_header(tmp_path / "file")["x"].itemsize == size


@pytest.mark.parametrize(
    "header",
    [
        changed("b", data_offsets=[0, 24]),
        changed("b", shape=[2, 4]),
        changed("b", dtype="F64"),
        changed("b", dtype="F31"),
        changed("b", shape=[-2, -3]),
        changed("b", shape=[2.0, 3]),
        changed("empty", shape=[1 << 63, 2, 0]),
        {k: v for k, v in HEADER.items() if k != "a"},
        {**HEADER, "__metadata__": {"format": 1}},
        [HEADER],
        b"[" * 200_000,
        b"\xff\xfe{\0}\0",
    ],
    ids=lambda header: str(header)[:30],
)
def test_what_lies_is_refused(header, tmp_path):
    assert not accepted(packed(header), tmp_path / "file")
    with pytest.raises(SafetensorError):
        deserialize(packed(header))
    with pytest.raises(InputError, match=r"file: is damaged.*download or copy it again"):
        read_header(tmp_path / "file")


@pytest.mark.parametrize("size", [0, 7, 8, 20, 8 + LENGTH, len(GOOD) - 1])
def test_what_is_cut_short_or_goes_on_is_refused(size, tmp_path):
    assert not accepted(GOOD[:size], tmp_path / "file")
    assert not accepted(GOOD + b"\0", tmp_path / "file")
    with pytest.raises(InputError, match="base: shard is damaged.*No such file"):  # noqa: RUF043
        read_header(tmp_path / "gone", "base: shard")


NUMBERS = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([1 << 31, 1 << 63, (1 << 64) - 1, 1 << 64]),
    st.floats(),
    st.none(),
    st.booleans(),
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*TORCH_NAMES, "F31", "f32", None]),
        "shape": st.lists(NUMBERS, max_size=3),
        "data_offsets": st.lists(NUMBERS, max_size=3),
    }
)
EDITS = st.tuples(st.integers(0, len(GOOD)), st.integers(0, 3), st.binary(max_size=3))
FUZZ = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@FUZZ
@given(st.dictionaries(st.sampled_from([*HEADER, "new", "é"]), ENTRIES), st.lists(EDITS))
def test_any_header_and_any_damage_is_read_alike_or_refused(tmp_path, entries, edits):
    accepted(packed({**HEADER, **entries}), tmp_path / "file")
    content = GOOD
    for place, length, new in edits:
        content = content[:place] + new + content[place + length :]
    assert accepted(content, tmp_path / "file") or content != GOOD


def test_a_file_with_other_content_of_the_same_size_and_time_is_noticed(tmp_path):
    """H4c: experts of one architecture have one size, and archives restore times."""
    file = tmp_path / "file"
    file.write_bytes(GOOD)
    stamp, at, times = file_stamp(file), read_header(file)["b"], file.stat()
    check_unchanged(file, stamp)
    other = tmp_path / "other"
    other.write_bytes(GOOD[:-1] + b"x")
    for write in (lambda: file.write_bytes(GOOD[:-1] + b"x"), lambda: other.replace(file)):
        write()
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (len(GOOD), times.st_mtime_ns)
        for read in (lambda: check_unchanged(file, stamp), lambda: read_tensor(at)):
            with pytest.raises(InputError, match="rewritten"):
                read()
    file.unlink()
    with pytest.raises(InputError, match="gone"):
        read_tensor(at)


@given(st.lists(st.integers(0, 300), max_size=3), st.integers(0, 300), st.integers(0, 300))
def test_blocks_cover_the_rows_once(shape, start, stop):
    wanted = range(shape[0] if shape else 1)[start:stop]
    blocks = list(row_blocks(shape, slice(start, stop)))
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(wanted)


def test_content_is_compared_byte_for_byte(tmp_path):
    same, long = torch.randn(700, 600), torch.randn(700, 600)
    long[:-1] = same[:-1]
    held = {"a": same, "b": same.clone(), "c": long, "d": same.clone().view(600, 700)}
    save_file(held, tmp_path / "file")
    at = read_header(tmp_path / "file")
    assert same_content(at["a"], at["b"])
    assert not same_content(at["a"], at["c"])
    assert not same_content(at["a"], at["d"])
