from pathlib import Path

import pytest

from ablations.atomic import replaced_folder, write_text


def test_a_folder_is_replaced_when_the_body_ends(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"
    for content in ("old", "new"):
        with replaced_folder(target) as fresh:
            assert not (target / "only_here").exists() or content == "new"
            (fresh / "file").write_text(content)
            assert fresh.name == target.name
        assert (target / "file").read_text() == content
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
