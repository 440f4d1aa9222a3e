"""Files, folders and stages of a build: whole or absent, with the modes that the umask gives."""

import errno
import os
import resource
import signal
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ablations.machine.whole_files import (
    Stage,
    check_place,
    replaced_folder,
    told_if_unwritable,
    write_text,
)
from layerswap_method.errors import InputError, LayerSwapError

MANIFEST = "stage.json"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_replaced_when_the_body_ends_and_stays_when_it_fails(tmp_path):
    target = tmp_path / "deep" / "folder"
    for content in ("old", "new"):
        with replaced_folder(target) as fresh:
            assert names(fresh) == []
            (fresh / content).write_text(content)
            assert fresh.name == target.name
        assert names(target) == [content]

    def fail():
        with replaced_folder(target) as fresh:
            (fresh / "file").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert names(target) == ["new"]
    assert names(tmp_path / "deep") == ["folder"]


def test_a_fault_between_both_moves_loses_neither_folder(tmp_path, monkeypatch):
    """Found by attack: the old folder had gone with the new one's holder."""
    path = tmp_path / "kept"
    path.mkdir()
    (path / "old.txt").write_text("old")
    moves, move = iter((True, False, True)), Path.replace

    def fail(self, target):
        if not next(moves):
            raise OSError("the disk is gone")
        return move(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="gone"), replaced_folder(path) as fresh:
        (fresh / "new.txt").write_text("new")
    assert names(path) == ["old.txt"]
    assert names(tmp_path) == ["kept"]


def test_a_text_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "results.json"
    write_text(path, "1")
    write_text(path, "2")
    assert path.read_text() == "2"
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "2"
    assert names(path.parent) == ["results.json"]


@pytest.mark.parametrize("umask", [0o022, 0o077], ids=oct)
def test_who_may_read_is_the_umask_s_to_say(tmp_path, umask):
    before = os.umask(umask)
    try:
        for text in "12":
            write_text(tmp_path / "results.json", text)
        with replaced_folder(tmp_path / "folder") as fresh:
            (fresh / "deep").mkdir()
            # safetensors hides its files from everybody else: that is what has to be undone.
            save_file({"tensor": torch.zeros(1)}, fresh / "model.safetensors")
            (fresh / "run.sh").write_text("")
            (fresh / "run.sh").chmod(0o700)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {
        "results.json": 0o666 & ~umask,
        "folder": 0o777 & ~umask,
        "deep": 0o777 & ~umask,
        "model.safetensors": 0o666 & ~umask,
        "run.sh": 0o700 | (0o666 & ~umask),
    }


def test_a_disk_that_fills_up_leaves_nothing(tmp_path):
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(OSError, match="File too large") as raised:
            write_text(tmp_path / "results.json", "x" * 2000)  # noticed when it is closed
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert raised.value.errno == errno.EFBIG
    assert names(tmp_path) == []


def test_a_place_is_checked_before_the_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    check_place(tmp_path / "new" / "deep" / "file")
    check_place(tmp_path / "file")
    assert names(tmp_path) == ["file"], "a check makes nothing"
    with pytest.raises(InputError, match="File name too long"):
        check_place(tmp_path / ("x" * 300) / "file")
    with pytest.raises(InputError, match=r"file is not a folder"):
        check_place(tmp_path / "file" / "below")


def test_a_full_disk_is_one_message(tmp_path):
    with (
        pytest.raises(LayerSwapError, match=r"out: cannot be written: No space left on device"),
        told_if_unwritable(tmp_path / "out"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill(folder):
    (folder / "data").mkdir()
    (folder / "data" / "rows.jsonl").write_text("{}\n")
    return {"seed": 3}


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path / "base", "key", MANIFEST)
    stage.write(fill)
    return stage


def test_a_written_stage_is_done_and_records_what_fill_returned(stage):
    assert stage.is_done()
    assert not Stage(stage.folder, "other", MANIFEST).is_done()
    manifest = stage.read()
    assert manifest["seed"] == 3
    assert list(manifest["files"]) == ["data/rows.jsonl"]
    assert names(stage.folder.parent) == ["base"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("data/rows.jsonl", "{ }\n"),
        ("data/rows.jsonl", None),
        ("more.txt", ""),
        (MANIFEST, "{"),
        (MANIFEST, "[]"),
    ],
)
def test_damage_is_noticed_and_rebuilt(stage, file, text):
    path = stage.folder / file
    path.unlink() if text is None else path.write_text(text)
    assert not stage.is_done()
    stage.prepare()
    stage.write(fill)
    assert stage.is_done()


def test_a_folder_of_something_else_is_refused(stage):
    with pytest.raises(InputError, match=r"base exists and was not written by a build \(it has no"):
        Stage(stage.folder, "key", "other.json").prepare()


def test_only_what_a_build_left_of_this_stage_is_removed(stage):
    root, others = stage.folder.parent, (".rsync.partial", ".layerswap-x.partial", ".baseline.x")
    for name in (".base.x1.partial", *others):
        (root / name).mkdir()
    stage.prepare()
    assert names(root) == sorted(["base", *others])
