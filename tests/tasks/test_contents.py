"""What a task is made of: its YAML, what that includes, functions beside it, its data."""

import shutil
from pathlib import Path

import pytest
import yaml

from ablations.tasks.catalog import SHIPPED_TASKS
from ablations.tasks.contents import TaskContents, with_placed_data
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA
from tests.standins.tasks import write_rows, write_task


def test_functions_beside_a_task_are_a_part_of_it(tmp_path):
    included = tmp_path / "_shared.yaml"
    included.write_text("doc_to_text: !function own.text\nnum_fewshot: 1\n")
    (tmp_path / "one.yaml").write_text("task: one\ninclude: _shared.yaml\n")
    (tmp_path / "two.yaml").write_text("task: two\nnum_fewshot: 1\n")
    (tmp_path / "own.py").write_text("def text(doc): return 'x'\n")

    def hashes():
        contents = TaskContents([tmp_path])
        return [contents.fingerprint(name) for name in ("one", "two")]

    one, two = hashes()
    (tmp_path / "own.py").write_text("def text(doc): return 'y'\n")
    changed, same = hashes()
    assert (changed != one, same == two) == (True, True)
    included.write_text(included.read_text().replace("1", "2"))
    assert hashes()[0] not in (one, changed)
    assert hashes()[1] == two


def test_data_beside_a_task_counts(tmp_path, monkeypatch):
    folder, here = tmp_path / "tasks", tmp_path / "here"
    here.mkdir()
    data = write_rows(folder, [{"prompt": "a", "answer": "b"}])
    write_task(folder, "own", Path("data.jsonl"))
    monkeypatch.chdir(here)
    config = yaml.safe_load((folder / "own.yaml").read_text())
    placed = with_placed_data(config, folder)["dataset_kwargs"]["data_files"]
    assert placed == {"test": str(data)}

    def key():
        return TaskContents([folder]).fingerprint("own")

    first = key()
    write_task(folder, "own", data)
    assert key() == first  # the place does not count
    write_task(folder, "own", Path("data.jsonl"))
    data.write_text('{"prompt": "a", "answer": "c"}\n')
    assert key() != first
    # The working directory goes first, as lm-eval has it.
    (here / "data.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    assert with_placed_data(config, folder) == config
    assert key() == first
    # What a hub's data set holds is no file here.
    (here / "data.jsonl").unlink()
    hub = {**config, "dataset_path": "org/name"}
    assert with_placed_data(hub, folder) == hub


def test_a_folder_that_is_no_data_set_is_refused_and_not_hashed(tmp_path, monkeypatch):
    monkeypatch.setattr("ablations.tasks.contents._MOST_FILES", 20)
    for number in range(30):
        (tmp_path / "data" / str(number)).mkdir(parents=True)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "t.yaml").write_text(f"task: t\ndataset_path: {tmp_path / 'data'}\n")
    with pytest.raises(InputError, match="holds over 20 files: no data set"):
        TaskContents((tmp_path / "tasks",)).fingerprint("t")


@pytest.mark.parametrize(
    ("task", "changed", "is_read"),
    [
        ("mgsm_sw", "mgsm/sw_test.jsonl", True),
        ("mgsm_sw", "mgsm/xx_test.jsonl", False),
        ("mgsm_rev2_sw", "mgsm_rev2/mgsm_sw.tsv", True),
        ("mgsm_rev2_sw", "mgsm/sw_train.jsonl", True),
        ("mgsm_rev2_sw", "mgsm_rev2/mgsm_de.tsv", False),
    ],
)
def test_of_a_data_folder_the_files_of_the_task_count(tmp_path, task, changed, is_read):
    data = shutil.copytree(DATA, tmp_path / "data")

    def key():
        return TaskContents((SHIPPED_TASKS,), data).fingerprint(f"layerswap_{task}")

    before = key()
    with (data / changed).open("a") as file:
        file.write("\n")
    assert (key() != before) == is_read
