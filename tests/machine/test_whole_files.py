"""Files, folders and stages of a build: whole or absent."""

import errno
import os
import stat

import pytest

from ablations.machine.whole_files import Stage, check_place, write_errors, write_text
from layerswap_method.errors import InputError, LayerSwapError

MANIFEST = "stage.json"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("umask", [0o022, 0o077], ids=oct)
def test_a_text_is_written_whole_or_not_at_all_with_the_mode_of_the_umask(tmp_path, umask):
    path, before = tmp_path / "deep" / "results.json", os.umask(umask)
    try:
        for text in "12":
            write_text(path, text)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "2"
    assert names(path.parent) == ["results.json"]


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
        write_errors(tmp_path / "out"),
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
    [("data/rows.jsonl", "{ }\n"), ("data/rows.jsonl", None)],
)
def test_damage_is_noticed_and_rebuilt(stage, file, text):
    path = stage.folder / file
    path.unlink() if text is None else path.write_text(text)
    assert not stage.is_done()
    stage.check()
    stage.write(fill)
    assert stage.is_done()


def test_files_of_the_user_in_a_stage_are_no_damage_and_are_not_replaced(stage):
    mine = {"notes.txt": "mine", "data/extra.jsonl": "mine"}
    for name, text in mine.items():
        write_text(stage.folder / name, text)
    assert stage.is_done()
    with pytest.raises(InputError, match=r"data/extra\.jsonl, notes\.txt"):
        Stage(stage.folder, "other", MANIFEST).write(fill)
    assert {name: (stage.folder / name).read_text() for name in mine} == mine
    assert names(stage.folder.parent) == ["base"]


def test_a_folder_of_something_else_is_refused(stage):
    with pytest.raises(InputError, match=r"no earlier run has listed in other\.json \(data"):
        Stage(stage.folder, "key", "other.json").check()
