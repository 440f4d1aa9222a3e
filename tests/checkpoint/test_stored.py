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
    assert accepted(packed({}, b""), file)
    assert accepted(packed(json.dumps(HEADER).encode() + b"   "), file)
    assert accepted(GOOD, file)
    link.symlink_to(file)
    found = read_header(link)
    assert found == read_header(file)
    for name, tensor in TENSORS.items():
        assert torch.equal(read_tensor(found[name]), tensor)
    assert read_rows(found["b"], slice(1, 2)).tolist() == [[3, 4, 5]]
    for dtype, torch_name in TORCH_NAMES.items():
        size = getattr(torch, torch_name).itemsize
        entry = {"dtype": dtype, "shape": [3], "data_offsets": [0, 3 * size]}
        assert accepted(packed({"x": entry}, bytes(3 * size)), file)
        assert read_header(file)["x"].itemsize == size


@pytest.mark.parametrize(
    "content",
    [
        packed(changed("b", data_offsets=[0, 24])),
        packed(changed("b", shape=[2, 4])),
        packed(changed("b", dtype="F31")),
        packed({k: v for k, v in HEADER.items() if k != "a"}),
        packed([HEADER]),
        packed(b"[" * 200_000),
        *(GOOD[:size] for size in (0, 20, len(GOOD) - 1)),
        GOOD + b"\0",
    ],
    ids=range(10),
)
def test_what_lies_or_is_cut_short_is_refused(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(SafetensorError):
        deserialize(content)
    with pytest.raises(InputError, match=r"file: is damaged.*download or copy it again"):
        read_header(tmp_path / "file")
    with pytest.raises(InputError, match="base: shard is damaged.*No such file"):  # noqa: RUF043
        read_header(tmp_path / "gone", "base: shard")


NUMBERS = st.one_of(st.integers(-2, 40), st.sampled_from([1 << 31, 1 << 64]), st.floats())
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
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(GOOD)
    stamp, at, times = file_stamp(file), read_header(file)["b"], file.stat()
    check_unchanged(file, stamp)
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


def test_content_is_compared_byte_for_byte(tmp_path):
    same, long = torch.randn(700, 600), torch.randn(700, 600)
    long[:-1] = same[:-1]
    held = {"a": same, "b": same.clone(), "c": long, "d": same.clone().view(600, 700)}
    save_file(held, tmp_path / "file")
    at = read_header(tmp_path / "file")
    assert [same_content(at["a"], at[name]) for name in "bcd"] == [True, False, False]
