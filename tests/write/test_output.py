"""The output folder: whole or not there, and nothing of the user's lost, whatever fails when."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from layerswap_method import output
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.output import PLAN_FILE, check_output, output_folder, temporary_output
from tests.read_only import without_root
from tests.standins.experts import content, left_in

OLD = {
    "config.json": "old",
    "model-00001-of-00002.safetensors": "old",
    "model.safetensors.index.json": "old",
    "tokenizer.json": "old",
    "special_tokens_map.json": "old",
    "vocab.json": "old",
    "chat_template.jinja": "old",
    "README.md": "old",
    "mergekit_config.yml": "old",
    PLAN_FILE: "old",
    "notes.txt": "of the user",
}
NEW = {"config.json": "new", "model.safetensors": "new", "tokenizer.json": "new", PLAN_FILE: "new"}
STAYS = {"notes.txt": "of the user"}
"""What no merge writes stays beside the new files."""


def fill(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def texts(folder):
    return {name: each.decode() for name, each in content(folder).items() if name[0] != "."}


def replace(out, key="k", files=NEW, raised=None, **options):
    with temporary_output(out, key, **options) as folder:
        assert folder.name == out.name  # mergekit writes it on the card
        fill(folder, files)
        if raised is not None:
            raise raised


def test_a_new_folder_and_an_earlier_merge_replaced(tmp_path, monkeypatch):
    out = tmp_path / "deep" / "out"
    replace(out)
    assert texts(out) == NEW
    single, shards = {**OLD, "model.safetensors": "old"}, {"model-00001-of-00001.safetensors": "x"}
    for earlier, files in ((OLD, NEW), (single, shards | NEW)):
        shutil.rmtree(out)
        fill(out, earlier)
        replace(out, files=files)
        assert texts(out) == files | STAYS
    shutil.rmtree(out)
    fill(out, single)
    shards |= {"config.json": "new"}
    monkeypatch.chdir(out)
    replace(output_folder("../out/."), files=shards)
    names = ("tokenizer.json", "special_tokens_map.json", "vocab.json")  # the new one has none
    wanted = shards | STAYS | dict.fromkeys(names, "old")
    assert texts(out) == wanted  # no single file beside shards
    assert left_in(out.parent) == left_in(out) == []


MINE = (
    "model_before.safetensors",
    "vocabulary.csv",
    "tokenizer_notes.md",
    "llama.model",
    "chat_template_old.jinja",
    "adapter_model_v1.safetensors",
    "notes/tokenizer.json",
)
"""Files of a user whose names begin or end as those of a merge do."""


@pytest.mark.parametrize("earlier", [OLD, {}], ids=["without a list", "with a list"])
def test_files_of_the_user_stay_whatever_their_names(earlier, tmp_path):
    out = fill(tmp_path / "out", earlier)
    if not earlier:
        replace(out, files={**NEW, "additional_chat_templates/old.jinja": "old"})
    mine = dict.fromkeys((*MINE, "additional_chat_templates/mine.jinja", "empty/.file"), "mine")
    fill(out, mine)
    replace(out)
    paths = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    del paths[output.FILES]
    wanted = {**NEW, **mine, **(STAYS if earlier else {})}
    assert {name: path.read_text() for name, path in paths.items()} == wanted
    replace(out, "other")
    assert all((out / name).read_text() == "mine" for name in mine)


def test_a_file_of_the_user_in_the_way_gets_another_name(tmp_path, caplog):
    """Where the merge has a file of its name, or a loader would take it for one of the merge's."""
    out = tmp_path / "out"
    replace(out)
    mine = {"README.md": "mine", "model.safetensors.index.json": "mine", "vocab.json": "mine"}
    for expected in ("before", "before-2"):
        fill(out, mine)
        replace(out, files=NEW | {"README.md": "new"})
        assert texts(out).items() >= {f"{name}.{expected}": "mine" for name in mine}.items()
        assert {name: texts(out).get(name) for name in mine} == {
            **dict.fromkeys(mine),
            "README.md": "new",
        }
        moved = f"{out}/README.md: is not of the run before; it is now README.md.{expected}"
        assert moved in caplog.text
        (out / "README.md").unlink()
        replace(out)


def test_a_tokenizer_that_stayed_is_replaced_by_the_next_one(tmp_path):
    out = tmp_path / "out"
    replace(out, files={**NEW, "vocab.json": "old"})
    replace(out, files={"config.json": "new", PLAN_FILE: "new"})
    assert texts(out)["vocab.json"] == "old"
    replace(out)
    assert texts(out) == NEW


def test_a_link_to_a_folder_on_another_disk(tmp_path):
    big = fill(tmp_path / "big" / "merged", OLD)
    link = tmp_path / "here" / "merged"
    link.parent.mkdir()
    link.symlink_to(big)
    replace(link)
    assert link.is_symlink()
    assert texts(big) == NEW | STAYS
    assert left_in(link.parent) == left_in(big.parent) == left_in(big) == []


def test_a_mount_point_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    out = fill(tmp_path / "out", OLD)
    monkeypatch.setattr(output, "_can_be_renamed", lambda folder: False)
    with pytest.raises(InputError, match="is a mount point, or the folder above"):
        check_output(out, [])


def test_a_fault_at_every_rename_leaves_the_old_or_the_new_whole(tmp_path, monkeypatch):
    """The new one, which took hours, is never thrown away."""
    real, faults = Path.replace, 0
    for step in range(1, 40):
        out, calls = fill(tmp_path / str(step) / "out", OLD), []

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
        holder = next(out.parent.glob(".layerswap-*"))
        named = holder / ("out" if (holder / "out").exists() else "replaced")
        if named.name == "out":
            assert (texts(out), texts(named)) == (OLD, NEW), (step, calls[-1])
        else:  # the new one is in its place, and what is the user's aside
            assert texts(out) == NEW
            assert (named / "notes.txt").is_file()
        assert (type(error), str(named) in error.message) == (LayerSwapError, True)
        replace(out)
        assert texts(out) == NEW | STAYS
        assert left_in(out) == left_in(out.parent) == []
    assert (faults >= 2, error) == (True, None)


def in_a_process(out, more="", prefix=()):
    """Replace `out` in another process, in which `more` has run."""
    code = f"""
import os
from pathlib import Path
from layerswap_method import output
{more}
with output.temporary_output(Path({str(out)!r}), "k") as folder:
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
    for step in range(3):
        out = fill(tmp_path / str(step) / "out", OLD)
        killed += in_a_process(out, KILLED.format(step=step)).returncode == 9
        found = [texts(path) for path in (out, *out.parent.glob(".layerswap-*/*")) if path.is_dir()]
        assert any(files in (OLD, NEW, NEW | STAYS) for files in found)
        assert in_a_process(out).returncode == 0
        assert texts(out) == NEW | STAYS, step
        assert left_in(out) == left_in(out.parent) == []
    assert killed >= 2


@pytest.mark.parametrize("locked", ["out", "parent"])
def test_folders_that_may_not_be_written(locked, tmp_path):
    out = fill(tmp_path / "parent" / "out", OLD)
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
    with pytest.raises(InputError, match=r"no merge has written.*README\.md"):
        check_output(output_folder("."), [])
    with pytest.raises(InputError, match="no merge has written"):
        replace(own)
    assert texts(own) == mine
    check_output(fill(tmp_path / "earlier", {"mergekit_config.yml": "x", "README.md": "y"}), [])
    check_output(fill(tmp_path / "empty", {}), [])


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
        with pytest.raises(InputError, match=str(out)), temporary_output(out):
            pytest.fail("it cannot be made")
    with pytest.raises(InputError, match="empty"):
        output_folder(" ")


def test_the_same_merge_twice_at_once(tmp_path):
    (tmp_path / ".layerswap-k.partial").mkdir()
    opened = os.open(tmp_path / ".layerswap-k.partial", os.O_RDONLY)
    fcntl.flock(opened, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="is running"):
        replace(tmp_path / "out")
    os.close(opened)
    replace(tmp_path / "out")
    assert left_in(tmp_path) == []


def test_what_fails_leaves_nothing_unless_it_is_to_be_resumed(tmp_path, caplog):
    out = fill(tmp_path / "out", OLD)
    for raised in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(raised):
            replace(out, raised=raised)
        assert left_in(tmp_path) == []
    half = {"model.safetensors": "half"}
    with pytest.raises(KeyboardInterrupt):
        replace(out, files=half, raised=KeyboardInterrupt, resume=True)
    replace(tmp_path / "elsewhere", "other")
    assert not caplog.text
    replace(out, "other")
    assert ".layerswap-k.partial belongs to a merge; if none is running" in caplog.text
    with temporary_output(out, "k", resume=True) as folder:
        assert texts(folder) == half
        fill(folder, NEW)
    assert texts(out) == NEW | STAYS


def test_sigterm_ends_a_merge_as_ctrl_c_does(tmp_path):
    with pytest.raises(SystemExit) as caught, temporary_output(tmp_path / "out"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_others_may_read_what_the_folder_lets_them_read(tmp_path):
    before = os.umask(0o027)
    with temporary_output(tmp_path / "out") as folder:
        fill(folder, NEW)
        (folder / "model.safetensors").chmod(0o600)
    os.umask(before)
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o777 == 0o640
