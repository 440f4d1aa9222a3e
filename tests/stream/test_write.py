"""What is written is what mergekit writes, bit for bit, and what lies or fails is said."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.recipe.document import WeightStream, checkpoint_stream
from layerswap_method.tensors import mixes_to_json
from layerswap_method.write.files import write_files
from layerswap_method.write.layout import SHARD_BYTES, lay_out
from tests.standins.merging import merge, recipe, revert_recipe, roles
from tests.standins.oracle import assert_same, stored
from tests.standins.streams import stream_of
from tests.standins.zoo import make_model

SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}


def write_weights(stream: WeightStream, folder: Path, most: int = SHARD_BYTES) -> tuple[Path, ...]:
    """Write every tensor of a stream; return the files."""
    files = lay_out(stream, folder, most)
    write_files(files)
    return tuple(file.path for file in files)


@pytest.mark.parametrize("more", [{}, {"dtype": "float16"}], ids=["copied", "cast"])
@pytest.mark.parametrize("shard_bytes", [1 << 40, 20_000], ids=["one", "shards"])
def test_it_is_what_mergekit_writes(
    more: dict[str, str], shard_bytes: int, experts: Any, tmp_path: Path
) -> None:
    document = recipe(roles(given := experts("llama")), SWAP, given.base) | more
    merged = stored(merge(document, tmp_path / "merged"))
    out = tmp_path / "out"
    out.mkdir()
    files = write_weights(stream_of(document), out, shard_bytes)
    assert_same(stored(out), merged)
    assert (len(files) > 1) == (shard_bytes == 20_000)
    listed: dict[str, str] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
            listed |= dict.fromkeys(opened.keys(), file.name)
    index = out / "model.safetensors.index.json"
    assert index.is_file() == (len(files) > 1)
    if index.is_file():
        document = json.loads(index.read_text(encoding="utf-8"))
        assert document["weight_map"] == listed
        assert document["metadata"]["total_size"] == sum(t.nbytes for t in merged.values())
        sizes = {
            f: sum(merged[n].nbytes for n, at in listed.items() if at == f.name) for f in files
        }
        assert all(size <= shard_bytes for size in sizes.values())
    else:
        assert files == (out / "model.safetensors",)


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "mistral3_vl"])
def test_other_shapes_and_rows(family: str, experts: Any, tmp_path: Path) -> None:
    given = experts(family, dtype=torch.float32)
    parameters = {"bottom_layers": 2}
    document = revert_recipe(given.task, given.base, parameters, out_dtype="bfloat16")
    stream = stream_of(document)
    write_weights(stream, tmp_path, 10_000)
    assert_same(stored(tmp_path), dict(stream.tensors()))


@pytest.mark.parametrize("after", [0, 1], ids=["at once", "later"])
@pytest.mark.parametrize("number", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, None])
def test_a_kernel_that_cannot_copy(
    number: int | None, after: int, experts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = os.copy_file_range

    def refuse(source: int, out: int, count: int, *places: int) -> int:
        calls.append(1)
        if len(calls) <= after:
            return real(source, out, 5, *places)  # a part only
        if number is None:
            return 0
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    folder = experts("llama").base
    write_weights(checkpoint_stream(folder), tmp_path)
    assert len(calls) > after
    assert_same(stored(tmp_path), stored(folder))


def test_a_system_without_the_call(
    experts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    folder = experts("llama").base
    write_weights(checkpoint_stream(folder), tmp_path)
    assert_same(stored(tmp_path), stored(folder))


def test_copies_need_no_torch(experts: Any, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from layerswap_method.recipe.document import checkpoint_stream; "
        "from layerswap_method.write.layout import lay_out; "
        "from layerswap_method.write.files import write_files; "
        "stream = checkpoint_stream(Path(sys.argv[1])); "
        "write_files(lay_out(stream, Path(sys.argv[2]), 1 << 40)); "
        "assert not {'torch', 'transformers', 'numpy', 'mergekit'} & set(sys.modules)"
    )
    folder = experts("llama").base
    subprocess.run([sys.executable, "-c", code, str(folder), str(tmp_path)], check=True)
    assert_same(stored(tmp_path), stored(folder))


def test_plain_averages_and_casts_need_no_torch(experts: Any, tmp_path: Path) -> None:
    document = recipe(roles(given := experts("llama")), SWAP, given.base, dtype="bfloat16")
    document["out_dtype"] = "float16"
    mixes = stream_of(document).mixes
    assert sum(len(mix.terms) > 1 for mix in mixes.values()) > 5
    (tmp_path / "mixes.json").write_text(mixes_to_json(mixes), encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; "
        "from layerswap_method.tensors import mixes_from_json; "
        "from layerswap_method.recipe.document import WeightStream; "
        "from layerswap_method.write.layout import lay_out; "
        "from layerswap_method.write.files import write_files; "
        "mixes = mixes_from_json(Path(sys.argv[1]).read_text()); "
        "stream = WeightStream(mixes, Path(), None, ''); "
        "write_files(lay_out(stream, Path(sys.argv[2]), 1 << 40)); "
        "assert not {'torch', 'transformers', 'mergekit'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "mixes.json"), str(tmp_path)]
    subprocess.run(command, check=True)
    assert_same(stored(tmp_path), dict(stream_of(document).tensors()))


def test_an_input_that_changes(tmp_path: Path) -> None:
    folder, out = make_model("llama", tmp_path / "model", 1), tmp_path / "out"
    out.mkdir()
    stream = checkpoint_stream(folder)
    file = folder / "model.safetensors"
    stamp = file.stat().st_mtime_ns
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    with pytest.raises(InputError, match="rewritten"):
        write_weights(stream, out)
    os.utime(file, ns=(stamp, stamp))
    with pytest.raises(InputError, match=r"is damaged \(its header places 29600 bytes"):
        write_weights(stream, out)
    file.unlink()
    with pytest.raises(InputError, match="gone"):
        write_weights(stream, out)


def test_a_place_that_takes_no_more(experts: Any, tmp_path: Path) -> None:
    stream = checkpoint_stream(experts("llama").base)
    with pytest.raises(LayerSwapError, match="cannot be written: No such file or directory"):
        write_weights(stream, tmp_path / "absent")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(LayerSwapError, match="cannot be written: File too large"):
            write_weights(stream, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
