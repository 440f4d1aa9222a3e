"""What fails leaves nothing that looks whole, inputs as they were, and one clear message."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.merge import FileMerge, read_merge, write_merge
from layerswap_method.recipe.document import checkpoint_stream
from layerswap_method.recipe.references import StreamInput
from layerswap_method.write.files import verify_files, write_files
from layerswap_method.write.layout import SHARD_BYTES, lay_out
from tests.merge.conftest import content, run_merge
from tests.standins.merging import recipe, roles
from tests.standins.oracle import assert_same, stored
from tests.standins.streams import stream_of
from tests.standins.tuned import tune
from tests.standins.zoo import make_model

KILLS = int(os.environ.get("KILLS", "20"))
SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".layerswap-*"))


@pytest.mark.parametrize("resume", [False, True])
def test_a_disk_that_is_full(resume: bool, trio: SimpleNamespace, tmp_path: Path) -> None:
    document, out = recipe(roles(trio), SWAP, trio.base), tmp_path / "out"
    options = ["--shard-size", "3K", "--threads", "1", *(["--resume"] if resume else [])]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_800, limits[1]))
    try:
        done = run_merge(document, out, *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.exit_code == 1
    assert "cannot be written: File too large" in done.output
    assert not out.exists()
    assert bool(left_in(tmp_path)) == resume
    again = run_merge(document, out, *options)
    assert again.exit_code == 0, again.output
    assert_same(stored(out), dict(stream_of(document).tensors()))
    assert left_in(tmp_path) == []


def test_only_what_is_not_finished_is_written_again(trio: SimpleNamespace, tmp_path: Path) -> None:
    files = lay_out(checkpoint_stream(trio.task), tmp_path, 6_000)
    write_files(files, threads=2)
    first, second, third = (file.path for file in files[:3])
    places = {path: path.stat().st_ino for path in (first, second, third)}
    first.rename(tmp_path / "kept")  # its place on the disk cannot be given to another file
    second.write_bytes(second.read_bytes()[:-1])
    before = third.stat().st_mtime_ns
    told: list[int] = []
    write_files(files, resume=True, advance=told.append)
    (tmp_path / "kept").unlink()
    assert third.stat().st_ino == places[third]
    assert third.stat().st_mtime_ns == before
    assert first.stat().st_ino != places[first]
    assert sum(told) == sum(file.nbytes for file in files)
    assert_same(stored(tmp_path), stored(trio.task))


def test_a_flipped_bit_is_found(trio: SimpleNamespace, tmp_path: Path) -> None:
    document = recipe(roles(trio), SWAP, trio.base)
    files = lay_out(stream_of(document), tmp_path, 10_000)
    write_files(files)
    told: list[int] = []
    verify_files(files, threads=2, advance=told.append)
    assert sum(told) == sum(file.nbytes for file in files)
    for place, tensor in (files[0].tensors[0], files[-1].tensors[-1]):
        file = next(each.path for each in files if (place, tensor) in each.tensors)
        whole = file.read_bytes()
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(LayerSwapError, match=f"{tensor.name} is not what was written"):
            verify_files(files)
        file.write_bytes(whole)
    files[0].path.write_bytes(b" " + files[0].path.read_bytes()[1:])
    with pytest.raises(LayerSwapError, match="its header is not"):
        verify_files(files)


def test_a_disk_that_is_too_small(tmp_path: Path) -> None:
    folder, out = make_model("llama", tmp_path / "model", 1), tmp_path / "out"
    out.mkdir()
    values = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    entry = {"dtype": "BF16", "shape": [values], "data_offsets": [0, 2 * values]}
    head = json.dumps({"model.embed_tokens.weight": entry}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + 2 * values)  # a hole: it takes no room
    with pytest.raises(LayerSwapError, match=r"the merge needs .* GB and the disk has .* GB free"):
        write_files(lay_out(checkpoint_stream(folder), out, SHARD_BYTES))
    assert list(out.iterdir()) == []


def test_a_truncated_shard(own_trio: SimpleNamespace, tmp_path: Path) -> None:
    file = own_trio.task / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    done = run_merge(recipe(roles(own_trio), SWAP, own_trio.base), tmp_path / "out")
    assert done.exit_code == 2
    assert "model.safetensors is damaged (its header places" in done.output
    assert not (tmp_path / "out").exists()
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (-8, "begins at byte"),  # overlaps the one before
        (8, "begins at byte"),
        ({"data_offsets": [0, 4]}, "which is not its shape's size"),
        ({"data_offsets": [1 << 40, (1 << 40) + 4]}, "begins at byte"),
        ({"shape": [1 << 20, 1 << 20]}, "which is not its shape's size"),
        ({"dtype": "F64"}, "which is not its shape's size"),
        ({"dtype": "Q4"}, "has the unknown dtype"),
    ],
    ids=str,
)
def test_a_header_that_lies(
    lie: dict[str, Any] | int, reason: str, own_trio: SimpleNamespace, tmp_path: Path
) -> None:
    file = own_trio.language / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    entry = header["model.layers.1.mlp.up_proj.weight"]
    if isinstance(lie, int):
        lie = {"data_offsets": [place + lie for place in entry["data_offsets"]]}
    entry |= lie
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    before = {folder: content(folder) for folder in vars(own_trio).values()}
    done = run_merge(recipe(roles(own_trio), SWAP, own_trio.base), tmp_path / "out")
    assert done.exit_code == 2
    assert "model.safetensors is damaged (" in done.output
    assert reason in done.output
    assert not (tmp_path / "out").exists()
    assert left_in(tmp_path) == []
    assert {folder: content(folder) for folder in before} == before


@pytest.mark.parametrize("forbidden", ["out", "input"])
def test_no_permission(forbidden: str, own_trio: SimpleNamespace, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    document = recipe(roles(own_trio), SWAP, own_trio.base)
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    before = {folder: content(folder) for folder in vars(own_trio).values()}
    weights = own_trio.task / "model.safetensors"
    locked = place if forbidden == "out" else weights
    mode = locked.stat().st_mode
    locked.chmod(0o555 if forbidden == "out" else 0)
    try:
        code = "import sys; from ablations.cli import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code, "merge", str(tmp_path / "recipe.yml")]
        done = subprocess.run(
            [*without_root(), *command, str(place / "out")],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        locked.chmod(mode)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(place.iterdir()) == []
    assert {folder: content(folder) for folder in before} == before


def without_root() -> list[str]:
    """Return what a command begins with so that permissions hold for it, or skip the test."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("permissions do not hold for root, and setpriv is not here to change that")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def test_an_input_that_changes_meanwhile(own_trio: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yml"
    document = recipe(roles(own_trio), SWAP, own_trio.base)
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    given = read_merge(file, lambda name: StreamInput(name, Path(name)))
    assert isinstance(given, FileMerge)
    lines = write_merge(given, str(tmp_path / "out"))
    assert "task expert" in next(lines)
    weights = own_trio.language / "model.safetensors"
    weights.write_bytes(weights.read_bytes())
    os.utime(weights, ns=(0, 10**18))
    with pytest.raises(InputError, match="rewritten while they were in use"):
        list(lines)
    assert not (tmp_path / "out").exists()
    assert left_in(tmp_path) == []


def test_places_that_are_refused(trio: SimpleNamespace, tmp_path: Path) -> None:
    document = recipe(roles(trio), SWAP, trio.base)
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    before = {folder: content(folder) for folder in vars(trio).values()}
    (tmp_path / "file").write_text("x", encoding="utf-8")
    cases = {
        trio.task / "merged": "is inside",
        trio.task: "is one of the merge's inputs",
        tmp_path / "file": "the output path is a file",
        tmp_path / "file" / "out": "the output folder cannot be made",
        Path("/proc/merged/out"): "the output folder cannot be made",
    }
    given = read_merge(tmp_path / "recipe.yml", lambda name: StreamInput(name, Path(name)))
    assert isinstance(given, FileMerge)
    for out, message in cases.items():
        with pytest.raises(InputError, match=message):
            list(write_merge(given, str(out)))
    assert {folder: content(folder) for folder in before} == before


def test_the_same_merge_twice_at_once(trio: SimpleNamespace, tmp_path: Path) -> None:
    document, out = recipe(roles(trio), SWAP, trio.base), tmp_path / "out"
    resource_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, resource_limits[1]))
    try:
        run_merge(document, out, "--resume")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, resource_limits)
    (left,) = left_in(tmp_path)
    opened = os.open(tmp_path / left, os.O_RDONLY)
    fcntl.flock(opened, fcntl.LOCK_EX)
    done = run_merge(document, out)
    assert done.exit_code == 2
    assert "the same merge is running" in done.output
    os.close(opened)
    assert run_merge(document, out).exit_code == 0
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """SIGKILL ($KILLS times), with and without --resume: there is no output, or a whole one."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 32_000}
    base = make_model("llama", tmp_path / "base", 0, shard="20MB", **sizes)
    task = tune(base, tmp_path / "task", 1, 0.01, torch.bfloat16)
    language = tune(base, tmp_path / "language", 2, 0.01, torch.bfloat16)
    document = recipe({"task": task, "language": language}, SWAP, base)
    wanted = dict(stream_of(document).tensors())
    inputs = {folder: content(folder) for folder in (base, task, language)}
    file, out = tmp_path / "recipe.yml", tmp_path / "place" / "out"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    out.parent.mkdir()
    code = "import sys; from ablations.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "merge", str(file), str(out), "--shard-size", "2M"]
    chance = random.Random(13)
    killed = partly = 0
    for turn in range(KILLS):
        more = ["--resume"] if turn % 2 else []
        running = subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL)
        # While Python starts, from the first byte on, or from the first finished file on.
        waits_for = (None, "*", "*", "*.safetensors", "*.safetensors")[turn % 5]
        while waits_for is not None and running.poll() is None:
            if list(out.parent.glob(f".layerswap-*/out/{waits_for}")):
                break
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.15))
        running.send_signal(signal.SIGKILL)
        killed += running.wait() == -signal.SIGKILL
        partly += bool(list(out.parent.glob(".layerswap-*/out/*.safetensors")))
        if out.exists():
            assert_same(stored(out), wanted)
            for path in sorted(out.iterdir()):
                path.unlink()
            out.rmdir()
    assert killed > KILLS // 4
    assert partly > 0
    subprocess.run([*command, "--resume", "--verify"], check=True, stdout=subprocess.DEVNULL)
    assert_same(stored(out), wanted)
    assert left_in(out.parent) == []
    assert {folder: content(folder) for folder in inputs} == inputs
