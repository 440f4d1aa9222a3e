"""Stage folders: whole or absent, and trusted only while every byte is as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablations.pocket.stages import (
    MANIFEST,
    Stage,
    check_replaceable,
    is_done,
    read_manifest,
    write_stage,
)


def fill(folder: Path) -> dict[str, Any]:
    (folder / "data").mkdir()
    (folder / "data" / "rows.jsonl").write_text("{}\n")
    return {"seed": 3}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path / "base", "key")
    write_stage(stage, fill)
    return stage


def test_written_stage_is_done_and_records_what_fill_returned(stage: Stage) -> None:
    assert is_done(stage)
    assert not is_done(Stage(stage.folder, "other"))
    manifest = read_manifest(stage.folder)
    assert manifest["seed"] == 3
    assert manifest["cpu_s"] >= 0
    assert list(manifest["files"]) == ["data/rows.jsonl"]
    assert [path.name for path in stage.folder.parent.iterdir()] == ["base"]


@pytest.mark.parametrize("harm", ["change", "remove", "add", "manifest", "list"])
def test_damage_is_noticed_and_rebuilt(stage: Stage, harm: str) -> None:
    rows = stage.folder / "data" / "rows.jsonl"
    if harm == "change":
        rows.write_text("{ }\n")
    elif harm == "remove":
        rows.unlink()
    elif harm == "add":
        (stage.folder / "more.txt").write_text("")
    else:
        (stage.folder / MANIFEST).write_text("{" if harm == "manifest" else "[]")
    assert not is_done(stage)
    check_replaceable(stage)
    write_stage(stage, fill)
    assert is_done(stage)


def test_interrupted_writing_leaves_the_old_stage(stage: Stage) -> None:
    def fail(folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_stage(Stage(stage.folder, "new"), fail)
    assert is_done(stage)
    assert [path.name for path in stage.folder.parent.iterdir()] == ["base"]
