"""`layerswap push`: what is sent to a hub on this machine, and what is refused before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.cli import main
from tests.hub.server import TOKEN, serve_uploads


@pytest.fixture
def ready(model: Path) -> Path:
    """A merge with a finished card without scores, and files that are no part of a model."""
    done = CliRunner().invoke(main, ["card", str(model), "--offline"])
    assert done.exit_code == 0
    (model / "pytorch_model.bin").write_bytes(b"pickle")
    (model / ".cache").mkdir()
    (model / ".cache" / "notes.txt").write_text("mine")
    (model / "logs" / ".mine").mkdir(parents=True)
    (model / "logs" / ".mine" / "secret.json").write_text("{}")
    (model / ".eval_results").mkdir()
    (model / ".eval_results" / "a--b.yaml").write_text("[]\n")
    return model


def push(endpoint: str, *arguments: str | Path, token: str = TOKEN) -> tuple[int, str]:
    """Run the command in a process of its own, whose hub is `endpoint`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_TOKEN": token, "HF_HOME": "/nowhere"}
    words = [str(each) for each in arguments]
    done = subprocess.run(
        [sys.executable, "-c", "from ablations.cli import main; main()", "push", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    said = done.stdout + done.stderr
    assert TOKEN not in said
    return done.returncode, said


def test_a_model_with_its_card_arrives(ready: Path) -> None:
    with serve_uploads() as hub:
        code, said = push(hub.endpoint, ready, "me/merged", "--private", "--without-results")
    assert code == 0, said
    assert hub.repositories == {"me/merged": True}
    assert set(hub.validated) == {(ready / "README.md").read_text()}
    left = {"pytorch_model.bin", ".cache/notes.txt", "logs/.mine/secret.json"}
    there = {p.relative_to(ready).as_posix() for p in ready.rglob("*") if p.is_file()}
    assert set(hub.files) == there - left
    assert {".eval_results/a--b.yaml", "layer_plan.png", "README.md"} <= set(hub.files)
    assert all(hub.files[name] == (ready / name).read_bytes() for name in hub.files)
    assert "not uploaded, since they are no part of a model: .cache/notes.txt" in said
    assert f"{hub.endpoint}/me/merged" in said


def test_a_dry_run_sends_nothing(ready: Path) -> None:
    with serve_uploads() as hub:
        code, said = push(hub.endpoint, ready, "me/merged", "--dry-run", "--without-results")
        assert (hub.repositories, hub.files) == ({}, {})
    assert code == 0
    assert "dry run:" in said
    assert "model.safetensors (" in said
    assert "pytorch_model.bin (" not in said


def test_the_token_is_never_shown(ready: Path) -> None:
    with serve_uploads() as hub:
        hub.refuses = True
        code, said = push(hub.endpoint, ready, "me/merged", "--without-results")
    assert code == 1
    assert "the hub did not take it" in said
    assert "Traceback" not in said


def test_what_is_refused_before_anything_is_sent(ready: Path, merged: Path) -> None:
    with serve_uploads() as hub:
        for arguments, message in (
            ((ready, "me/merged"), "its card has no evaluation; run layerswap evaluate"),
            ((merged, "me/merged"), "its card is not complete; run layerswap card"),
            ((ready, "merged", "--without-results"), "names no owner; write OWNER/NAME"),
            ((ready, "me//x", "--without-results"), "is not a hub id"),
        ):
            code, said = push(hub.endpoint, *arguments)
            assert code == 2
            assert message in said
        code, said = push(hub.endpoint, ready, "me/merged", "--without-results", token="")
        assert code == 2
        assert "there is no token for the hub; run hf auth login" in said
        assert (hub.repositories, hub.files) == ({}, {})
