"""What fails leaves nothing that looks whole, inputs as they were, and one clear message."""

import errno
import functools
import glob
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml

from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.write import donor_files
from tests.kills import kill_when, start
from tests.merge.test_merge import SWAP, run_merge
from tests.standins.experts import content, left_in
from tests.standins.fine_tunes import restored, tune
from tests.standins.merging import recipe, roles, tensors_of, write
from tests.standins.model_families import make_model
from tests.standins.oracle import assert_same, stored

KILLS = int(os.environ.get("KILLS", "20"))


def test_a_disk_that_is_full(trio, tmp_path):
    document, out = recipe(roles(trio), SWAP, trio.base), tmp_path / "out"
    options = ["--shard-size", "3K", "--threads", "1"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_800, limits[1]))
    done = run_merge(document, out, *options)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (done.exit_code, out.exists()) == (1, False)
    assert "cannot be written: File too large" in done.output
    assert left_in(tmp_path) == []
    assert run_merge(document, out, *options).exit_code == 0
    assert_same(stored(out), tensors_of(document))
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("full", ["copyfile", "write_json"])
def test_a_disk_that_is_full_after_the_weights(full, trio, tmp_path, monkeypatch):
    """A traceback, where one message says which folder cannot be written."""

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(donor_files.shutil if full == "copyfile" else donor_files, full, fail)
    done = run_merge(recipe(roles(trio), SWAP, trio.base), tmp_path / "out")
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert f"{tmp_path / 'out'}: cannot be written: No space left" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yml"]


def test_a_file_of_the_donor_that_cannot_be_read(trio_copy, tmp_path):
    """The message was that the output cannot be written."""
    file = trio_copy.base / "tokenizer.json"

    def bar(what, size):
        file.unlink(missing_ok=True)
        return nullcontext(lambda count: None)

    with pytest.raises(LayerSwapError) as caught:
        write(recipe(roles(trio_copy), SWAP, trio_copy.base), tmp_path / "out", bar=bar)
    out = tmp_path / "out"
    assert caught.value.message == f"{file}: No such file or directory; nothing is written to {out}"
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_folder_that_cannot_be_synced(trio, tmp_path, monkeypatch):
    """FUSE, SMB and others sync files and no folders; a finished merge was thrown away."""
    real, refused = os.fsync, []

    def refuse(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            refused.append(descriptor)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    document = recipe(roles(trio), SWAP, trio.base)
    write(document, tmp_path / "out")
    assert refused
    assert_same(stored(tmp_path / "out"), tensors_of(document))


def rewrite(file):
    """Give a file other content, of the size and time that it had."""
    times, whole = file.stat(), file.read_bytes()
    file.write_bytes(whole[:-8] + b"12345678")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (len(whole), times.st_mtime_ns)


@pytest.mark.parametrize("when", ["before it is read", "after it was read"])
def test_an_input_that_changes_meanwhile(when, trio_copy, tmp_path):
    """With size and time as they were, other content was taken."""
    weights, left = trio_copy.language / "model.safetensors", []

    def bar(what, size):
        left.append(size)
        return nullcontext(advance)

    def advance(count):
        left[0] -= count
        if left[0] == 0 and when == "after it was read":
            rewrite(weights)

    document = recipe(roles(trio_copy), SWAP, trio_copy.base)

    def log(line):
        if when == "before it is read" and "task expert" in line:
            rewrite(weights)

    with pytest.raises(InputError, match=r"model\.safetensors.*rewritten"):
        write(document, tmp_path / "out", bar=bar, log=log)
    assert not (tmp_path / "out").exists()
    assert left_in(tmp_path) == []


def test_a_disk_that_holds_other_bytes_is_found_by_verify(trio, tmp_path):
    def bar(what, size):
        if what == "verifying":
            (file,) = tmp_path.glob(".layerswap-*/out/model.safetensors")
            whole = file.read_bytes()
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        return nullcontext(lambda count: None)

    with pytest.raises(LayerSwapError, match="is not what was written"):
        write(recipe(roles(trio), SWAP, trio.base), tmp_path / "out", bar=bar, verify=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_verify_warns_of_copied_values_that_are_not_finite(trio, tmp_path, caplog, value, dtype):
    copied = "model.layers.3.mlp.up_proj.weight"  # of the task expert

    def edit(tensors):
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        tensors[copied].view(-1)[-1] = value
        return tensors

    models = {role: restored(path, tmp_path / role, edit) for role, path in roles(trio).items()}
    document = recipe(models, SWAP, restored(trio.base, tmp_path / "base", edit))
    write(document, tmp_path / "out", verify=True)
    warned = [text for text in caplog.messages if "copied from its source" in text]
    assert warned == [f"{copied}: values that are copied from its source are NaN or infinite"]


PROGRAMS = {
    "layerswap": (["layerswap", "merge"], ["--shard-size", "2M"]),
    "mergekit-yaml": (["mergekit-yaml"], ["--out-shard-size", "2M", "--quiet"]),
}


def is_written(out, pattern):
    """Return whether a merge to `out` has begun a file that the pattern fits."""
    # Path.glob raises where the folder goes away meanwhile.
    return bool(glob.glob(f"{out.parent}/.layerswap-*/out/{pattern}"))  # noqa: PTH207 - as above


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_at_any_moment(program, tmp_path):
    """SIGKILL ($KILLS times in all): no output, the earlier one, or the new one whole."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 32_000}
    base = make_model("llama", tmp_path / "base", 0, shard="20MB", **sizes)
    both = {
        role: tune(base, tmp_path / role, seed, 0.01, torch.bfloat16)
        for seed, role in enumerate(("task", "language"))
    }
    document, earlier = recipe(both, SWAP, base), recipe(both, {"top_layers": 0}, base)
    inputs, wanted = [content(each) for each in (base, *both.values())], tensors_of(document)
    file, out = tmp_path / "recipe.yml", tmp_path / "place" / "out"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    (name, *words), options = PROGRAMS[program]
    command = [Path(sys.executable).with_name(name), *words, file, out, *options]
    write(earlier, out)
    before, old = content(out), stored(out)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    chance, killed, partly = random.Random(13), 0, 0
    for turn in range(KILLS // 2):
        # While Python starts, from the first byte on, or from the first finished file on.
        awaited = (None, "*", "*", "*.safetensors", "*.safetensors")[turn % 5]
        moment = functools.partial(is_written, out, awaited) if awaited else None
        running = start(command, **quiet)
        code = kill_when(running, moment, after_s=chance.uniform(0, 0.15))
        killed += code == -signal.SIGKILL
        partly += any(out.parent.glob(".layerswap-*/out/*.safetensors"))
        if out.exists():
            found = stored(out)
            same_as_old = all(torch.equal(found[name], old[name]) for name in old)
            assert_same(found, old if same_as_old else wanted)
            if not same_as_old or turn % 2:
                shutil.rmtree(out)
        elif turn % 3 == 0:
            write(earlier, out)
            assert content(out) == before
    assert killed > KILLS // 8
    assert partly > 0
    subprocess.run(command, check=True, **quiet)
    assert_same(stored(out), wanted)
    assert left_in(out.parent) == []
    assert [content(each) for each in (base, *both.values())] == inputs
