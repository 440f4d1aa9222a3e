"""Stage folders: whole or absent, and trusted only while every byte is as written."""

import pytest

from ablations.machine.stages import Stage
from layerswap_method.errors import InputError

MANIFEST = "stage.json"


def fill(folder):
    (folder / "data").mkdir()
    (folder / "data" / "rows.jsonl").write_text("{}\n")
    return {"seed": 3}


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path / "base", "key", MANIFEST)
    stage.write(fill)
    return stage


def test_written_stage_is_done_and_records_what_fill_returned(stage):
    assert stage.is_done()
    assert not Stage(stage.folder, "other", MANIFEST).is_done()
    manifest = stage.read()
    assert manifest["seed"] == 3
    assert manifest["cpu_s"] >= 0
    assert list(manifest["files"]) == ["data/rows.jsonl"]
    assert [path.name for path in stage.folder.parent.iterdir()] == ["base"]


@pytest.mark.parametrize("harm", ["change", "remove", "add", "manifest", "list"])
def test_damage_is_noticed_and_rebuilt(stage, harm):
    rows = stage.folder / "data" / "rows.jsonl"
    if harm == "change":
        rows.write_text("{ }\n")
    elif harm == "remove":
        rows.unlink()
    elif harm == "add":
        (stage.folder / "more.txt").write_text("")
    else:
        (stage.folder / MANIFEST).write_text("{" if harm == "manifest" else "[]")
    assert not stage.is_done()
    stage.prepare()
    stage.write(fill)
    assert stage.is_done()


def test_interrupted_writing_leaves_the_old_stage(stage):
    def fail(folder):
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stage(stage.folder, "new", MANIFEST).write(fail)
    assert stage.is_done()
    assert [path.name for path in stage.folder.parent.iterdir()] == ["base"]


def test_a_folder_of_something_else_is_refused(stage):
    with pytest.raises(InputError, match=r"base exists and was not written by a build \(it has no"):
        Stage(stage.folder, "key", "other.json").prepare()


def test_only_what_a_build_left_of_this_stage_is_removed(stage):
    root = stage.folder.parent
    names = (".base.x1.partial", ".rsync.partial", ".layerswap-x.partial", ".baseline.x.partial")
    for name in names:
        (root / name).mkdir()
    stage.prepare()
    assert sorted(path.name for path in root.iterdir()) == sorted(["base", *names[1:]])
