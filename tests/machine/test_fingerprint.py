from pathlib import Path

import pytest

from ablations.machine.fingerprint import (
    fingerprint_checkpoint,
    fingerprint_folder,
)
from ablations.study.identity import Fingerprints, folder_state


def _checkpoint(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("card")
    return folder


def test_a_copy_elsewhere_is_the_same_checkpoint(tmp_path: Path) -> None:
    one, other = _checkpoint(tmp_path / "one"), _checkpoint(tmp_path / "other")
    assert fingerprint_checkpoint(one) == fingerprint_checkpoint(other)
    (other / "README.md").write_text("another card")
    assert fingerprint_checkpoint(one) == fingerprint_checkpoint(other)
    assert fingerprint_folder(one) != fingerprint_folder(other)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_what_changes_an_answer_changes_the_fingerprint(tmp_path: Path, name: str) -> None:
    folder = _checkpoint(tmp_path / "model")
    before = fingerprint_checkpoint(folder)
    (folder / name).write_bytes(b"changed")
    changed = fingerprint_checkpoint(folder)
    (folder / name).rename(folder / f"renamed_{name}")
    assert len({before, changed, fingerprint_checkpoint(folder)}) == 3


def test_the_state_of_an_expert_is_that_of_the_files_of_its_hash(tmp_path: Path) -> None:
    """A changed chat template is another model, and a report written beside it is none."""
    folder = _checkpoint(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    hashes = Fingerprints(None)
    state, found = folder_state(folder), hashes.of(folder)
    (folder / "divergence.json").write_text("{}")
    assert folder_state(folder) == state
    (folder / "chat_template.jinja").write_text("{{ messages[0] }}")
    assert folder_state(folder) != state
    assert hashes.of(folder) != found


def test_folders_count_names_and_contents_but_nothing_hidden(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("1")
    before = fingerprint_folder(tmp_path)
    (tmp_path / ".lock").write_text("x")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "y").write_text("y")
    assert fingerprint_folder(tmp_path) == before
    (tmp_path / "data" / "a.jsonl").write_text("2")
    assert fingerprint_folder(tmp_path) != before
