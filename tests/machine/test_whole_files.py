import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ablations.machine.whole_files import (
    check_place,
    replaced_folder,
    told_if_unwritable,
    write_text,
)
from layerswap_method.errors import InputError, LayerSwapError


def test_a_folder_is_replaced_when_the_body_ends(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"
    for content in ("old", "new"):
        with replaced_folder(target) as fresh:
            assert list(fresh.iterdir()) == []
            (fresh / content).write_text(content)
            assert fresh.name == target.name
        assert [path.name for path in target.iterdir()] == [content]
    assert list((tmp_path / "deep").iterdir()) == [target]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with replaced_folder(target) as fresh:
        (fresh / "file").write_text("old")

    def fail() -> None:
        with replaced_folder(target) as fresh:
            (fresh / "file").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert (target / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_text_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.json"
    write_text(path, "1")
    write_text(path, "2")
    assert path.read_text() == "2"
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "2"
    assert list(path.parent.iterdir()) == [path]


@pytest.fixture(params=[0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield int(request.param)
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_who_may_read_is_the_umask_s_to_say(tmp_path: Path, umask: int) -> None:
    write_text(tmp_path / "results.json", "1")
    assert mode(tmp_path / "results.json") == 0o666 & ~umask
    write_text(tmp_path / "results.json", "2")
    assert mode(tmp_path / "results.json") == 0o666 & ~umask
    with replaced_folder(tmp_path / "folder") as fresh:
        (fresh / "deep").mkdir()
        write_text(fresh / "deep" / "text", "1")
        # safetensors hides its files from everybody else: that is what has to be undone.
        save_file({"tensor": torch.zeros(1)}, fresh / "model.safetensors")
        (fresh / "run.sh").write_text("")
        (fresh / "run.sh").chmod(0o700)
    found = {path.name: mode(path) for path in (tmp_path / "folder").rglob("*")}
    assert found == {
        "deep": 0o777 & ~umask,
        "text": 0o666 & ~umask,
        "model.safetensors": 0o666 & ~umask,
        "run.sh": 0o700 | (0o666 & ~umask),
    }
    assert mode(tmp_path / "folder") == 0o777 & ~umask


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
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
    assert list(tmp_path.iterdir()) == []


def test_a_place_is_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    check_place(tmp_path / "new" / "deep" / "file")
    check_place(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "a check makes nothing"
    with pytest.raises(InputError, match="File name too long"):
        check_place(tmp_path / ("x" * 300) / "file")
    with pytest.raises(InputError, match=r"file is not a folder"):
        check_place(tmp_path / "file" / "below")


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    with (
        pytest.raises(LayerSwapError, match=r"out: cannot be written: No space left on device"),
        told_if_unwritable(tmp_path / "out"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_fault_between_both_moves_loses_neither_folder(tmp_path, monkeypatch):
    """Found by attack: the old folder had gone with the new one's holder."""
    path = tmp_path / "kept"
    path.mkdir()
    (path / "old.txt").write_text("old")
    moves = iter((True, False, True))
    move = Path.replace

    def fail(self, target):
        if not next(moves):
            raise OSError("the disk is gone")
        return move(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="gone"), replaced_folder(path) as fresh:
        (fresh / "new.txt").write_text("new")
    assert [file.name for file in path.iterdir()] == ["old.txt"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
