"""lm-eval's own tasks by name, from a file in the user's cache folder that is never out of date."""

import os
import subprocess
import sys

import pytest
from lm_eval.tasks import TaskManager

from ablations.requests import lm_eval_index as module
from ablations.requests.lm_eval_index import lm_eval_folder, lm_eval_index


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return an empty cache folder; the index that this process has is set aside."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lm_eval_index.cache_clear()
    yield tmp_path / "layerswap"
    lm_eval_index.cache_clear()


def fresh():
    lm_eval_index.cache_clear()
    return lm_eval_index()


@pytest.mark.slow
def test_the_index_is_that_of_lm_eval():
    folder, index = lm_eval_folder(), lm_eval_index()
    entries = TaskManager().task_index
    assert index.keys() == entries.keys()
    for name, entry in entries.items():
        assert index[name].kind == entry.kind.name
        place = index[name].file
        assert (None if place is None else folder / place) == entry.yaml_path
        assert entry.kind.name != "TAG" or {*index[name].members} == entry.tags
    assert index["gsm8k"].file == "gsm8k/gsm8k.yaml"


def test_it_is_read_once_and_again_when_lm_eval_has_changed(cache, monkeypatch):
    reads = []
    entry = module.IndexedTask("TASK", "a/b.yaml")
    monkeypatch.setattr(module, "_read", lambda folder: reads.append(folder) or {"b": entry})
    assert fresh() == fresh() == {"b": entry}
    (file,) = cache.iterdir()
    assert (len(reads), file.suffix) == (1, ".json")
    for text in (
        "",
        "[",
        "[1, {}]",
        file.read_text().replace('["', '["0', 1),
    ):  # the last: another state
        file.write_text(text)
        assert fresh() == {"b": entry}
    assert len(reads) == 5
    assert fresh() == {"b": entry}
    assert len(reads) == 5
    file.unlink()
    file.symlink_to("/dev/zero")
    assert fresh() == {"b": entry}


def test_a_machine_without_a_cache_folder_reads_it_every_time(cache, monkeypatch):
    monkeypatch.setattr(module, "_read", lambda _: {})
    cache.write_text("a file, where the folder should be")
    assert fresh() == fresh() == {}


@pytest.mark.parametrize("change", ["edit", "add", "remove", "old time"])
def test_a_change_of_a_task_file_changes_the_state(tmp_path, change):
    folder = tmp_path / "tasks"
    (folder / "own").mkdir(parents=True)
    file = folder / "own" / "a.yaml"
    file.write_text("task: a")
    before, times = module._state(folder), file.stat()
    assert module._state(folder) == before
    if change == "add":
        (folder / "own" / "_template").write_text("")
    elif change == "remove":
        file.unlink()
    else:
        file.write_text("task: b")
    if change == "old time":
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert module._state(folder) != before


@pytest.mark.slow
def test_two_processes_write_one_whole_file(cache):
    code = "from ablations.requests.lm_eval_index import lm_eval_index; print(len(lm_eval_index()))"
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in "12"]
    counts = {run.communicate()[0].split()[-1] for run in runs}
    assert counts == {str(len(fresh())).encode()}
    assert len([*cache.iterdir()]) == 1
