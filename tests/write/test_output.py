"""The output folder: whole or not there, and nothing of the user's lost, whatever fails when."""

import errno
import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from layerswap_method import output
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.output import PLAN_FILE, check_output, claim_output, output_folder
from tests.read_only import without_root
from tests.standins.experts import left_in

OLD = {
    "config.json": "old",
    "model-00001-of-00002.safetensors": "old",
    "model.safetensors.index.json": "old",
    "chat_template.jinja": "old",
    "additional_chat_templates/old.jinja": "old",
    "README.md": "old",
    PLAN_FILE: "old",
}
NEW = {"config.json": "new", "model.safetensors": "new", "tokenizer.json": "new", PLAN_FILE: "new"}


def fill(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def earlier(folder, files=OLD):
    """Fill a folder as an earlier merge did."""
    output.write_list(fill(folder, files), files)
    return folder


def texts(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in paths}
    return {name: text for name, text in files.items() if name != output.FILES}


def replace(out, files=NEW, raised=None):
    with claim_output(out) as folder:
        assert folder.name == out.name  # mergekit writes it on the card
        fill(folder, files)
        if raised is not None:
            raise raised


def test_a_new_folder_an_empty_one_and_an_earlier_merge_replaced(tmp_path, monkeypatch):
    out = tmp_path / "deep" / "out"
    replace(out)
    assert texts(out) == NEW
    replace(out, files=OLD)
    assert texts(out) == OLD
    replace(fill(tmp_path / "deep" / "empty", {}))
    monkeypatch.chdir(out.parent)
    replace(output_folder("../deep/out/."))
    assert texts(out) == NEW  # no single file beside shards, no template of another
    assert left_in(out.parent) == left_in(out) == []


STRANGERS = (
    "notes.txt",
    "README.md.before",
    "model_before.safetensors",
    "vocab.json",
    "notes/tokenizer.json",
    "additional_chat_templates/mine.jinja",
    ".hidden",
)


@pytest.mark.parametrize("name", STRANGERS)
def test_a_file_that_no_merge_has_listed_is_named_and_nothing_is_touched(name, tmp_path):
    out = fill(earlier(tmp_path / "out"), {name: "mine"})
    with pytest.raises(InputError) as caught:
        replace(out)
    shown = name.removesuffix("/tokenizer.json")  # a folder of the user is one name
    assert f"listed in .layerswap.json ({shown})" in str(caught.value)
    assert texts(out) == OLD | {name: "mine"}
    assert left_in(tmp_path) == []
    (out / name).unlink()
    if name == "notes/tokenizer.json":
        (out / "notes").rmdir()
    replace(out)
    assert texts(out) == NEW


def test_a_file_that_comes_while_the_merge_runs_is_not_lost(tmp_path):
    out = earlier(tmp_path / "out")
    claim = claim_output(out)
    folder = fill(claim.__enter__(), NEW)
    fill(out, {"notes.txt": "mine"})
    with pytest.raises(LayerSwapError, match=rf"is finished, but.*notes\.txt.*it is in {folder}"):
        claim.__exit__(None, None, None)
    assert texts(out) == OLD | {"notes.txt": "mine"}
    assert texts(folder) == NEW


def test_a_link_in_a_merge_is_listed_and_one_of_the_user_is_not_followed(tmp_path):
    out = earlier(tmp_path / "out")
    mine = fill(tmp_path / "mine", {"a": "mine"})
    (out / "link").symlink_to(mine)
    with pytest.raises(InputError, match="link"):
        replace(out)
    assert texts(mine) == {"a": "mine"}


def test_a_link_to_a_folder_on_another_disk(tmp_path):
    big = earlier(tmp_path / "big" / "merged")
    link = tmp_path / "here" / "merged"
    link.parent.mkdir()
    link.symlink_to(big)
    replace(link)
    assert link.is_symlink()
    assert texts(big) == NEW
    assert left_in(link.parent) == left_in(big.parent) == left_in(big) == []


def test_a_mount_point_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    out = earlier(tmp_path / "out")
    monkeypatch.setattr(output, "_can_be_renamed", lambda folder: False)
    with pytest.raises(InputError, match="is a mount point, or the folder above"):
        check_output(out, [])


def test_a_fault_at_every_rename_leaves_the_old_or_the_new_whole(tmp_path, monkeypatch):
    """The new one, which took hours, is never thrown away."""
    real, faults = Path.replace, 0
    for step in range(1, 40):
        out, calls = earlier(tmp_path / str(step) / "out"), []

        def faulty(self, target, calls=calls, step=step):
            calls.append(self)
            if len(calls) == step:
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            return real(self, target)

        error = None
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", faulty)
            try:
                replace(out)
            except LayerSwapError as caught:
                error = caught
        if len(calls) < step:
            break
        faults += 1
        named = next(out.parent.glob(".layerswap-*")) / "out"
        assert (texts(out), texts(named)) == (OLD, NEW), (step, calls[-1])
        assert (type(error), str(named) in error.message) == (LayerSwapError, True)
        replace(out)
        assert texts(out) == NEW
        assert left_in(out) == left_in(out.parent) == []
    assert (faults >= 2, error) == (True, None)


def in_a_process(out, more="", prefix=()):
    """Replace `out` in another process, in which `more` has run."""
    code = f"""
import os
from pathlib import Path
from layerswap_method import output
{more}
with output.claim_output(Path({str(out)!r})) as folder:
    for name, text in {NEW!r}.items():
        (folder / name).write_text(text)
"""
    command = [*prefix, sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


KILLED = """
real, steps = Path.replace, iter(range({step}))
Path.replace = lambda self, to: real(self, to) if next(steps, None) is not None else os._exit(9)
"""


def test_a_kill_at_a_rename_loses_nothing_and_the_next_run_ends_it(tmp_path):
    killed = 0
    for step in range(2):
        out = earlier(tmp_path / str(step) / "out")
        killed += in_a_process(out, KILLED.format(step=step)).returncode == 9
        found = [texts(path) for path in (out, *out.parent.glob(".layerswap-*/*")) if path.is_dir()]
        assert any(files in (OLD, NEW) for files in found)
        assert in_a_process(out).returncode == 0
        assert texts(out) == NEW, step
        assert left_in(out) == left_in(out.parent) == []
    assert killed >= 2


@pytest.mark.parametrize("locked", ["out", "parent"])
def test_folders_that_may_not_be_written(locked, tmp_path):
    out = earlier(tmp_path / "parent" / "out")
    place = out if locked == "out" else out.parent
    place.chmod(0o555)
    try:
        done = in_a_process(out, prefix=without_root())
    finally:
        place.chmod(0o755)
    why = {"out": "may not be written", "parent": "cannot be replaced as a whole"}[locked]
    assert f"{out}: the output folder {why}" in done.stderr  # before anything is computed
    assert texts(out) == OLD
    assert left_in(out) == left_in(out.parent) == []


def test_folders_that_no_merge_has_written_are_not_overwritten(tmp_path, monkeypatch):
    """`layerswap merge recipe.yml .` replaced README.md and config.json."""
    mine = {"README.md": "mine", "config.json": "mine"}
    monkeypatch.chdir(own := fill(tmp_path / "project", mine))
    with pytest.raises(InputError, match=r"listed in \.layerswap\.json \(README\.md"):
        check_output(output_folder("."), [])
    with pytest.raises(InputError, match="no earlier run has listed"):
        replace(own)
    assert texts(own) == mine


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_the_folder_that_the_command_runs_in_is_not_replaced(below, tmp_path, monkeypatch):
    """The shell was left in a folder that was gone."""
    out = earlier(tmp_path / "out")
    monkeypatch.chdir(fill(out / below, {"mine": "mine"} if below else {}))
    if below:
        output.write_list(out, [*OLD, "deep/er/mine"])
    with pytest.raises(InputError, match="this command runs in it; run it from another folder"):
        replace(out)
    assert texts(out) == OLD | ({"deep/er/mine": "mine"} if below else {})
    os.chdir(tmp_path)
    replace(out)
    assert texts(out) == NEW


def test_places_that_are_refused(trio, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "model").symlink_to(trio.task)
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    cases = {
        trio.task / "merged": "is inside",
        trio.task / ".." / trio.task.name: "one of the merge's inputs",
        tmp_path / "model": "one of the merge's inputs",
        tmp_path / "file": "is a file or",
        tmp_path / "link": "or a broken link",
        tmp_path / ("n" * 300): "too long",
        tmp_path / "ring" / "out": "cannot be used",
    }
    for out, part in cases.items():
        with pytest.raises(InputError, match=part):
            check_output(out, [trio.task, tmp_path / "absent"])
    for out in (tmp_path / "file" / "out", Path("/proc/merged/out")):
        with pytest.raises(InputError, match=str(out)), claim_output(out):
            pytest.fail("it cannot be made")
    with pytest.raises(InputError, match="empty"):
        output_folder(" ")


def test_two_merges_to_one_folder(tmp_path):
    with claim_output(tmp_path / "out") as folder:
        with pytest.raises(InputError, match=r"out: another merge to this folder is running"):
            replace(tmp_path / "out")
        replace(tmp_path / "other")
        fill(folder, NEW)
    assert texts(tmp_path / "out") == NEW
    assert left_in(tmp_path) == []


def test_a_merge_that_ends_while_the_next_one_claims_its_folder(tmp_path, monkeypatch):
    """Its temporary folder vanishes between any two steps of the other; a raw error, once."""
    out, real, vanished = tmp_path / "out", os.open, []

    def vanishing(path, *args, before, **kwargs):
        is_holder = str(path).endswith(".partial") and before not in vanished
        if is_holder and before:
            vanished.append(before)
            shutil.rmtree(path)
        opened = real(path, *args, **kwargs)
        if is_holder and not before:
            vanished.append(before)
            shutil.rmtree(path)
        return opened

    for before in (True, False):
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", functools.partial(vanishing, before=before))
            replace(out)
        assert texts(out) == NEW
    assert vanished == [True, False]
    assert left_in(tmp_path) == []


def test_what_fails_leaves_nothing(tmp_path):
    out = earlier(tmp_path / "out")
    for raised in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(raised):
            replace(out, raised=raised)
        assert texts(out) == OLD
        assert left_in(tmp_path) == []


def test_sigterm_ends_a_merge_as_ctrl_c_does(tmp_path):
    with pytest.raises(SystemExit) as caught, claim_output(tmp_path / "out"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError), claim_output(tmp_path / "deep" / "er" / "out"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []  # nor the folders above it
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_others_may_read_what_the_folder_lets_them_read(tmp_path):
    before = os.umask(0o027)
    with claim_output(tmp_path / "out") as folder:
        fill(folder, NEW)
        (folder / "model.safetensors").chmod(0o600)
    os.umask(before)
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o777 == 0o640
