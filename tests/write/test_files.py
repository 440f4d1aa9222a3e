"""Files as they are laid out, written and verified; what lies or fails is one error."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from layerswap_method.checkpoint import stored as stored_module
from layerswap_method.checkpoint.low_rank import LowRankChange
from layerswap_method.checkpoint.stored import read_header
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.file_names import WEIGHTS_INDEX
from layerswap_method.merge import check_device
from layerswap_method.methods.passthrough import merge_of_one
from layerswap_method.mix_reader import MixReader
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import MIXES, TensorMix, Term
from layerswap_method.write.files import verify_files, write_files
from layerswap_method.write.layout import lay_out_files
from tests.standins.merging import merge_of, recipe, roles, tensors_of
from tests.standins.model_families import make_model
from tests.standins.oracle import assert_same, stored

SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}


def one(folder):
    return merge_of_one(Model("model", folder))


def write_weights(merge, folder, most=1 << 40, **options):
    folder.mkdir(exist_ok=True)
    layout = lay_out_files(merge, folder, most)
    write_files(layout, **options)
    return layout


@pytest.mark.parametrize("top", [{}, {"dtype": "float16"}], ids=["copied", "cast"])
@pytest.mark.parametrize("most", [1 << 40, 20_000], ids=["one", "shards"])
def test_what_is_written_is_what_safetensors_reads(top, most, experts, tmp_path):
    merge = merge_of(recipe(roles(given := experts("llama")), SWAP, given.base, **top))
    wanted = tensors_of(merge)
    layout = write_weights(merge, tmp_path, most, threads=2)
    assert_same(stored(tmp_path), wanted)
    listed = {}
    for file in layout.files:
        assert file.nbytes == file.path.stat().st_size
        with safe_open(file.path, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
            names = list(opened.keys())
        assert sum(wanted[name].nbytes for name in names) <= most
        listed |= dict.fromkeys(names, file.path.name)
    assert (tmp_path / WEIGHTS_INDEX).is_file() == (most == 20_000) == (len(layout.files) > 1)
    if most == 20_000:
        total = {"total_size": sum(tensor.nbytes for tensor in wanted.values())}
        index = json.loads((tmp_path / WEIGHTS_INDEX).read_text())
        assert index == {"metadata": total, "weight_map": listed}


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, None])
def test_a_kernel_that_cannot_copy(number, trio, tmp_path, monkeypatch):
    calls, real = [], os.copy_file_range

    def refuse(source, out, count, *places):
        calls.append(1)
        if len(calls) == 1:
            return real(source, out, 5, *places)  # a part only
        if number is None:
            return 0
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    write_weights(one(trio.base), tmp_path / "first")
    monkeypatch.delattr(os, "copy_file_range")
    write_weights(one(trio.base), tmp_path / "second")
    assert len(calls) > 1
    for name in ("first", "second"):
        assert_same(stored(tmp_path / name), stored(trio.base))


def test_a_flipped_bit_is_found(trio, tmp_path):
    merge = merge_of(recipe(roles(trio), SWAP, trio.base))
    layout, done = write_weights(merge, tmp_path, 10_000), []
    verify_files(layout, threads=2, advance=done.append)
    assert sum(done) == layout.nbytes
    first, last = layout.files[0], layout.files[-1]
    places = [(file, *file.tensors[index]) for file, index in ((first, 0), (last, -1))]
    for file, place, said in (*((f, at, t.name) for f, at, t in places), (first, 0, "its header")):
        whole = file.path.read_bytes()
        file.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(LayerSwapError, match=said):
            verify_files(layout)
        file.path.write_bytes(whole)


def test_a_file_has_its_name_only_when_it_is_on_the_disk(trio, tmp_path, monkeypatch):
    """A crash of the machine leaves no file that looks whole: written, synced, then renamed."""
    real, steps = {"fsync": os.fsync, "rename": Path.rename}, []

    def fsync(descriptor):
        steps.append(("synced", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        real["fsync"](descriptor)

    def rename(self, target):
        steps.append(("named", target.name))
        return real["rename"](self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    layout = write_weights(one(trio.task), tmp_path, 20_000)
    for file in layout.files:
        synced = steps.index(("synced", f"{file.path.name}.part"))
        assert synced < steps.index(("named", file.path.name))


def test_a_disk_that_is_too_small_is_told_before(tmp_path):
    folder = make_model("llama", tmp_path / "model", 1)
    values = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    entry = {"dtype": "BF16", "shape": [values], "data_offsets": [0, 2 * values]}
    head = json.dumps({"model.embed_tokens.weight": entry}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + 2 * values)  # a hole: it takes no room
    with pytest.raises(LayerSwapError, match=r"needs .* GB and the disk has .* [GM]B free"):
        write_weights(one(folder), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


COPIES = """
import sys, json
from pathlib import Path
from layerswap_method.tensors import MIXES, Merge
from layerswap_method.write.files import verify_files, write_files
from layerswap_method.write.layout import lay_out_files
merge = Merge(MIXES.validate_json(Path(sys.argv[1]).read_text()), Path(), None)
layout = lay_out_files(merge, Path(sys.argv[2]))
write_files(layout)
verify_files(layout)
peak = [l for l in open("/proc/self/status") if l.startswith("VmHWM")][0].split()[1]
print(json.dumps({"kib": int(peak), "torch": "torch" in sys.modules, "bytes": layout.nbytes}))
"""


@pytest.mark.parametrize("kind", ["copies", pytest.param("averages", marks=pytest.mark.slow)])
def test_copies_need_neither_torch_nor_memory_and_averages_little(kind, tmp_path):
    """Of a model of 120 MB: below 100 MiB to copy, and little more than torch itself to average."""
    folder, out = make_model("llama", tmp_path / "model", 1), tmp_path / "out"
    held = stored(folder)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        held[name] = torch.arange(30_000_000, dtype=torch.int16).view(torch.bfloat16).view(-1, 16)
    save_file({n: t.clone() for n, t in held.items()}, folder / "model.safetensors")
    merged = one(folder)
    if kind == "averages":
        other = shutil.copytree(folder, tmp_path / "other")
        merged = merge_of(recipe({"task": folder, "language": other}, {"placement": "soup"}))
    out.mkdir()
    (tmp_path / "mixes.json").write_text(MIXES.dump_json(dict(merged.tensors)).decode())
    command = [sys.executable, "-c", COPIES, str(tmp_path / "mixes.json"), str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    used = json.loads(done.stdout)
    assert used["bytes"] > 120e6
    assert used["torch"] == (kind == "averages")
    assert used["kib"] < (400 if used["torch"] else 100) * 1024
    if kind == "copies":
        assert_same(stored(out), stored(folder))


SHAPES = [(), (7,), (0, 5), (131, 3), (65, 2, 9), (129, 64)]
WAYS = {
    "copy": ((1.0,), {}),
    "cast": ((1.0,), {"load_dtype": "float16"}),
    "average": ((1.0, 1.0), {}),
    "soup": ((3.0, 7.0, 10.0), {"dtype": "bfloat16"}),
    "rounded": ((0.3, 0.7), {"load_dtype": "bfloat16", "dtype": "float16"}),
    "scaled": ((1.0,), {"factor": 0.5}),
}


@pytest.fixture
def make_mix(tmp_path, monkeypatch):
    """Return a function: shape, kind of `WAYS` -> mix of random tensors; blocks have 64 rows."""
    monkeypatch.setattr(stored_module, "_BLOCK", 1)

    def made(shape, kind, dtype=torch.float32):
        coefficients, settings = WAYS[kind]
        torch.manual_seed(len(shape))
        file = tmp_path / "stored.safetensors"
        save_file({str(i): torch.randn(shape).to(dtype) for i in range(len(coefficients))}, file)
        at = read_header(file)
        terms = [Term(stored=at[str(i)], coefficient=c) for i, c in enumerate(coefficients)]
        return TensorMix(terms=tuple(terms), **settings)

    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_are_parts_of_the_whole(shape, kind, dtype, make_mix):
    mix = make_mix(shape, kind, dtype)
    reader, whole = MixReader(mix), MixReader(mix).read()
    assert (whole.shape, whole.dtype, whole.nbytes) == (shape, reader.dtype, reader.nbytes)
    blocks = [block for _, block in reader.blocks()]
    if whole.numel():
        assert torch.equal(torch.cat(blocks).view(shape), whole)
    target = torch.full(shape, torch.nan, dtype=torch.float64)
    reader.fill(target.view(-1))
    assert torch.equal(target, whole.double())
    if shape == (131, 3):
        assert len(blocks) > 1


@pytest.mark.parametrize("transposed", [False, True])
def test_an_adapters_change_is_the_same_in_blocks(transposed, make_mix, tmp_path):
    mix, file = make_mix((200, 31), "copy", torch.bfloat16), tmp_path / "adapter.safetensors"
    inputs, outputs = (200, 31) if transposed else (31, 200)
    save_file({"down": torch.randn(5, inputs), "up": torch.randn(outputs, 5)}, file)
    at = read_header(file)
    change = LowRankChange(
        down=at["down"], up=at["up"], scaling=1.75, transposed=transposed, module="m"
    )
    changed = TensorMix(terms=(mix.terms[0].model_copy(update={"change": change}),))
    blocks, whole = [block for _, block in MixReader(changed).blocks()], MixReader(changed).read()
    assert len(blocks) > 1
    assert torch.equal(torch.cat(blocks), whole)
    held = load_file(file)
    delta = 1.75 * (held["up"].double() @ held["down"].double())
    wanted = MixReader(mix).read().double() + (delta.T if transposed else delta)
    torch.testing.assert_close(whole.double(), wanted, rtol=2**-7, atol=2**-6)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["average", "soup", "rounded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_gpu_gives_the_same_bits(kind, dtype, make_mix):
    mix = make_mix((200, 17), kind, dtype)
    check_device("cuda")
    found = MixReader(mix, "cuda").read()
    assert found.device.type == "cpu"
    assert torch.equal(found, MixReader(mix).read())


def test_threads_are_those_that_were_asked_for(tmp_path):
    """On 16 cores each of them had 16 threads of torch's, which cost four times the time."""
    for seed, name in enumerate(("task", "language")):
        sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2}
        make_model("llama", tmp_path / name, seed, **sizes)
    models = {name: tmp_path / name for name in ("task", "language")}
    merge = merge_of(recipe(models, {"placement": "soup"}))
    assert max(math.prod(mix.shape) for mix in merge.tensors.values()) > 1 << 18
    seen, before = [], torch.get_num_threads()

    def running():
        return len([*Path("/proc/self/task").iterdir()])

    def count(_):
        seen.append(running())

    try:
        torch.set_num_threads(8)
        idle = running()
        layout = write_weights(merge, tmp_path / "out", threads=2, advance=count)
        verify_files(layout, threads=2, advance=count)
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 20
    assert max(seen) == idle + 2


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(InputError, match=r"device cuda:x: torch knows no such device; write cpu"):
        check_device("cuda:x")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for other in ("mps", "xpu", "meta"):  # with a GPU, mps passed
        with pytest.raises(InputError, match=f"device {other}: averages are computed on the proc"):
            check_device(other)
    check_device("cuda:1")
    with pytest.raises(InputError, match="device cuda:7: there is no such GPU; the last is cuda:1"):
        check_device("cuda:7")
