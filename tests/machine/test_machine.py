"""Hashes, claims, text for other places; processes end with their starter."""

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ablations.machine.fingerprint import (
    FileHashes,
    claimed_sha256,
    fingerprint_checkpoint,
    fingerprint_folder,
    hash_file,
)
from ablations.machine.locks import holder, owner, try_claim
from ablations.machine.progress import listening
from ablations.machine.untrusted import spreadsheet_text
from ablations.study.identity import Fingerprints, folder_state
from layerswap_method.errors import LayerSwapError, printable
from tests.waiting import wait_for_end, wait_until

ROOT = Path(__file__).parents[2]


def checkpoint(folder):
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    for name in ("config.json", "tokenizer.json", "README.md"):
        (folder / name).write_text("{}")
    return folder


def test_a_checkpoint_is_its_weights_config_and_tokenizer_wherever_they_are(tmp_path):
    one, other = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "other")
    (other / "README.md").write_text("another card")
    assert fingerprint_checkpoint(one) == fingerprint_checkpoint(other)
    assert fingerprint_folder(one) != fingerprint_folder(other)
    seen = {fingerprint_checkpoint(one)}
    for number, name in enumerate(("model.safetensors", "config.json", "tokenizer.json"), 1):
        (one / name).write_bytes(b"changed")
        seen.add(fingerprint_checkpoint(one))
        (one / name).rename(one / f"renamed_{name}")
        seen.add(fingerprint_checkpoint(one))
        assert len(seen) == 1 + 2 * number


def test_the_state_of_an_expert_is_that_of_the_files_of_its_hash(tmp_path):
    """A changed chat template is another model, and a report written beside it is none."""
    folder = checkpoint(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    hashes = Fingerprints()
    state, found = folder_state(folder), hashes.of(folder)
    (folder / "divergence.json").write_text("{}")
    assert folder_state(folder) == state
    (folder / "chat_template.jinja").write_text("{{ messages[0] }}")
    assert folder_state(folder) != state
    assert hashes.of(folder) != found


def write_large(path, seed, size=60_000_000):
    """Write a file of which hashes are remembered: a few values, and a hole."""
    with path.open("wb") as file:
        file.write(bytes([seed]) * 99)
        file.truncate(size)
    return path


def test_large_files_are_read_once_for_all_runs_by_threads_that_show_how_far_they_are(tmp_path):
    files = [write_large(tmp_path / f"{seed}.safetensors", seed) for seed in range(3)]
    cache, steps = tmp_path / "answers" / ".sha256.jsonl", []
    with listening(steps.append):
        first = FileHashes(cache).of(files)
    for file in files:
        assert first[file] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert {(step.total, step.unit) for step in steps} == {(180_000_000, "bytes")}
    assert all(0 <= step.done <= step.total for step in steps)
    with cache.open("a") as opened:
        opened.write('\n{"file": "cut sho')  # by a run that was killed
    again = FileHashes(cache)
    assert again.unread_bytes(files) == 0
    assert again.of(files) == first
    cache.write_text(cache.read_text().replace(first[files[1]], "f" * 64))
    assert FileHashes(cache).of(files)[files[1]] == "f" * 64  # so it is not read
    times = files[0].stat()
    with files[0].open("r+b") as opened:
        opened.write(b"another")
    os.utime(files[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert FileHashes(cache).unread_bytes(files) == 60_000_000
    assert FileHashes(cache).of(files)[files[0]] == hash_file(files[0]) != first[files[0]]
    assert FileHashes(cache).unread_bytes(files) == 0
    small, larger = (write_large(tmp_path / f"{n}", 9, n) for n in (999_999, 1_000_000))
    assert FileHashes(cache).unread_bytes([small, larger]) == 1_000_000
    FileHashes(cache).of([small, larger])
    assert FileHashes(cache).unread_bytes([small, larger]) == 0
    assert cache.read_text().count(str(larger)) == 1
    assert str(small) not in cache.read_text()


def test_an_error_or_an_interrupt_ends_the_threads_that_read(tmp_path):
    files = [write_large(tmp_path / f"{seed}.safetensors", seed, 10**12) for seed in range(2)]

    def interrupt(step):
        if step.done:
            raise KeyboardInterrupt

    started = time.monotonic()
    with listening(interrupt), pytest.raises(KeyboardInterrupt):
        FileHashes().of(files)
    assert time.monotonic() - started < 60  # all of it would take many minutes


def test_only_the_one_link_of_the_hubs_cache_is_a_claim(tmp_path):
    model = tmp_path / "models--org--model"
    snapshot, digest = model / "snapshots" / "c0ffee", "ab" * 32
    for folder in (snapshot / "part", model / "blobs", tmp_path / "blobs" / "xx"):
        folder.mkdir(parents=True)
    blob = model / "blobs" / digest
    blob.write_bytes(b"weights")

    def link(name, target):
        (snapshot / name).symlink_to(target)
        return claimed_sha256(snapshot / name)

    assert link("model.safetensors", f"../../blobs/{digest}") == digest
    assert link("part/model.safetensors", f"../../../blobs/{digest}") == digest
    assert link("absolute.safetensors", blob) == digest
    assert FileHashes().of([snapshot / "model.safetensors"]) == {
        snapshot / "model.safetensors": digest
    }
    # huggingface_hub 2: a blob may be a link to a name of 64 digits that is no SHA-256.
    xet = tmp_path / "blobs" / "xx" / ("cd" * 32)
    xet.write_bytes(b"weights")
    (model / "blobs" / ("ef" * 32)).symlink_to(xet)
    assert link("linked.safetensors", f"../../blobs/{'ef' * 32}") == "ef" * 32
    assert link("straight.safetensors", xet) is None
    small = model / "blobs" / ("1" * 40)
    small.write_text("{}")
    assert link("config.json", f"../../blobs/{small.name}") is None  # a git blob's id
    assert link("gone.safetensors", f"../../blobs/{'9' * 64}") is None
    assert link("elsewhere.safetensors", tmp_path / "blobs" / "xx" / "none") is None
    (snapshot / "copied.safetensors").write_bytes(b"weights")
    assert claimed_sha256(snapshot / "copied.safetensors") is None
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model.safetensors").symlink_to(blob)
    assert claimed_sha256(tmp_path / "own" / "model.safetensors") is None


def test_nothing_hidden_in_a_folder_counts(tmp_path):
    (tmp_path / "a.jsonl").write_text("1")
    before = fingerprint_folder(tmp_path)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "y").write_text("y")
    assert fingerprint_folder(tmp_path) == before


def test_a_claim_is_held_against_everyone_until_released(tmp_path):
    claim = try_claim(tmp_path, "w000", "note")
    assert claim.abandoned is None
    assert try_claim(tmp_path, "w000") is None
    assert holder(tmp_path, "w000").startswith(f"process {os.getpid()} on ")
    assert owner(tmp_path, "w000") == (holder(tmp_path, "w000"), "note")
    claim.release()
    assert owner(tmp_path, "w000") is None
    try_claim(tmp_path, "w000").release()


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOLCK, LayerSwapError),
        (errno.ENOSPC, OSError),  # another error stays what it is
    ],
)
def test_a_file_system_without_locks_is_refused_in_one_message(
    tmp_path, monkeypatch, number, error
):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    message = "choose an --out on a local disk" if error is LayerSwapError else "No space left"
    for _ in range(2):  # nothing that outlives its owner is left behind
        with pytest.raises(error, match=message):
            try_claim(tmp_path, "w000")
    monkeypatch.undo()
    try_claim(tmp_path, "w000").release()


@pytest.mark.parametrize(
    ("convert", "text", "shown"),
    [
        (printable, "soup\tb=1\nünïcode ▒", "soup\tb=1\nünïcode ▒"),
        (printable, "\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        (printable, "a\rb\x9b", "a\\x0db\\x9b"),
        (spreadsheet_text, "=HYPERLINK(1)", "'=HYPERLINK(1)"),
        *((spreadsheet_text, text, f"'{text}") for text in ("@x", "+1", "-1+2")),
        *((spreadsheet_text, text, text) for text in ("soup", "")),
    ],
)
def test_a_terminal_obeys_nothing_and_a_spreadsheet_computes_nothing(convert, text, shown):
    assert convert(text) == shown


WORKER = """
import os, subprocess, sys, time
from ablations.machine.lifetime import take_descendants_along
take_descendants_along()
subprocess.Popen([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"])
if not os.fork():  # as vLLM starts its engine
    time.sleep(600)
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
os._exit(0)
"""


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_descendants_end_with_the_worker(end):
    def family():
        """Return the four descendants of the worker once all are there, the warden among them."""
        below = psutil.Process(worker.pid).children(recursive=True)
        return below if len(below) >= 4 else []

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WORKER], cwd=ROOT, text=True, **pipes) as worker:
        assert worker.stdout.readline() == "ready\n"
        below = wait_until(family)
        warden = next(each for each in below if "-S" in each.cmdline())
        looks = warden.num_ctx_switches().voluntary  # it sleeps after each
        wait_until(lambda: warden.num_ctx_switches().voluntary >= looks + 3)
        if end == "kill":
            worker.kill()
        else:
            worker.stdin.write("\n")
            worker.stdin.flush()
        wait_until(lambda: worker.poll() is not None)
        wait_for_end(below)


def test_a_process_ends_without_a_warning_of_its_warden():
    code = "from ablations.machine.lifetime import take_descendants_along as take; take(); take()"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stderr == ""
