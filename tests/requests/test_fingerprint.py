"""What a task reads is in its hash, and nothing else."""

import json
import shutil
from pathlib import Path

import pytest

from ablations.requests.fingerprint import fingerprints_of
from ablations.scoring.evaluation import EvaluationSettings
from ablations.tasks.catalog import SHIPPED_TASKS
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA
from tests.standins.tasks import write_rows, write_task


def fingerprints(folder, data_dir=None):
    return fingerprints_of(EvaluationSettings(include_path=folder, data_dir=data_dir))


FILES = {
    "a.yaml": """task: a
include: shared/_s.yaml
tag: [t1, t2]
metadata: {version: 1, language: sw}
""",
    "shared/_s.yaml": """doc_to_text: !function own.text
x: !function pkg.m.f
dataset_path: json
dataset_kwargs: {data_files: {test: d.jsonl}}
""",
    "shared/own.py": "def text(d): return 'x'\n",
    "pkg/m.py": "def f(d): return 1\n",
    "b.yaml": """task: b
tag: t1
metadata: {version: 1, language: sw, publish: false}
dataset_path: json
dataset_kwargs: {data_files: {test: d.jsonl}}
""",
    "d.jsonl": '{"a":1}\n',
    "g.yaml": "group: g\ntask: [t1, b]\naggregate_metric_list: [{metric: acc}]\n",
    "g2.yaml": "group: g2\ntask: [g, a]\n",
    "notes.txt": "n",
}
KEYS = json.loads((Path(__file__).parent / "keys.json").read_text())


def test_keys_are_those_of_the_versions_before(tmp_path):
    """Else every score of a user's tasks is made again: say so in the changelog."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = fingerprints(tmp_path)
    assert {name: found.fingerprint(name) for name in KEYS} == KEYS
    assert {found.language(name) for name in KEYS} == {"sw"}


def test_what_is_beside_a_task_counts_where_the_task_names_it(tmp_path):
    included, code = tmp_path / "shared/_shared.yaml", tmp_path / "shared/own.py"
    inner = tmp_path / "shared/inner/deep.py"
    inner.parent.mkdir(parents=True)
    inner.write_text("x = 'x'\n")
    included.write_text("a: !function own.text\nb: !function inner.deep.x\nnum_fewshot: 1\n")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints/one-checkpoint.yaml").write_text("task: one\n")  # a copy
    (tmp_path / "one.yaml").write_text("task: one\ninclude: shared/_shared.yaml\n")
    (tmp_path / "two.yaml").write_text("task: two\nnum_fewshot: 1\n")
    code.write_text("def text(doc): return 'x'\n")

    def hashes():
        hashes_of = fingerprints(tmp_path)
        return [hashes_of.fingerprint(name) for name in ("one", "two")]

    seen = [hashes()]
    for path, old, new in ((code, "'x'", "'y'"), (inner, "'x'", "'y'"), (included, "1", "2")):
        path.write_text(path.read_text().replace(old, new))
        seen.append(hashes())
    ones, twos = zip(*seen, strict=True)
    assert (len({*ones}), len({*twos})) == (4, 1)


@pytest.fixture
def reader(tmp_path):
    """Return a folder of a task whose function reads files, and a function that gives its key."""
    folder = tmp_path / "tasks"
    write_task(folder, "own", write_rows(folder, [{"prompt": "a"}]))
    text = (folder / "own.yaml").read_text().replace("'{{answer}}'", "!function u.target")
    (folder / "own.yaml").write_text(text)
    (folder / "u.py").write_text("def target(doc): return open('labels.json').read()\n")
    return folder, lambda: fingerprints(folder).fingerprint("own")


@pytest.mark.parametrize("name", ["labels.json", "labels.yaml", "u2.py", "u/deep/part.py"])
def test_what_a_function_may_read_counts(reader, name):
    folder, key = reader
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("1")
    before = key()
    path.write_text("2")
    assert key() != before


def test_a_function_of_an_installed_package_may_read_it_too(reader):
    folder, key = reader
    text = (folder / "own.yaml").read_text().replace("u.target", "tests.standins.tasks.write_rows")
    (folder / "own.yaml").write_text(text)
    before = key()
    (folder / "labels.json").write_text("{}")
    assert key() != before


@pytest.mark.parametrize(
    "name", [".labels.json.swp", "other.yaml", "out/run.json", "model/a.bin", "answers/prompts/own"]
)
def test_what_comes_and_goes_beside_a_task_does_not_count(reader, name):
    folder, key = reader
    before, path = key(), folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("task: other\n")
    assert key() == before


def test_data_beside_a_task_counts(tmp_path, monkeypatch):
    folder, here = tmp_path / "tasks", tmp_path / "here"
    here.mkdir()
    data = write_rows(folder, [{"prompt": "a", "answer": "b"}])
    write_task(folder, "own", Path("data.jsonl"))
    monkeypatch.chdir(here)

    def key():
        return fingerprints(folder).fingerprint("own")

    first = key()
    write_task(folder, "own", data)
    assert key() == first  # the place does not count
    write_task(folder, "own", Path("data.jsonl"))
    data.write_text('{"prompt": "a", "answer": "c"}\n')
    assert key() != first
    # The working directory goes first, as lm-eval has it.
    (here / "data.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    assert key() == first
    write_task(folder, "own", folder / "*.jsonl")
    several = key()
    data.write_text('{"prompt": "a", "answer": "d"}\n')
    assert key() not in (first, several)


def test_a_folder_that_is_no_data_set_is_refused_and_not_hashed(tmp_path, monkeypatch):
    monkeypatch.setattr("ablations.requests.fingerprint._MOST_FILES", 20)
    for number in range(30):
        (tmp_path / "data" / str(number)).mkdir(parents=True)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "t.yaml").write_text(f"task: t\ndataset_path: {tmp_path / 'data'}\n")
    with pytest.raises(InputError, match="holds over 20 files: no data set"):
        fingerprints(tmp_path / "tasks").fingerprint("t")


@pytest.mark.parametrize(
    ("task", "changed", "is_read"),
    [
        ("mgsm_sw", "mgsm/sw_test.jsonl", True),
        ("mgsm_sw", "mgsm/xx_test.jsonl", False),
        ("mgsm_rev2_sw", "mgsm_rev2/mgsm_sw.tsv", True),
        ("mgsm_rev2_sw", "mgsm/sw_train.jsonl", True),
        ("mgsm_rev2_sw", "sw_train.jsonl", True),
        ("mgsm_rev2_sw", "mgsm_rev2/mgsm_de.tsv", False),
        ("msvamp_sw", "msvamp/sw_test.jsonl", True),
        ("msvamp_sw", "mgsm/sw_train.jsonl", True),
        ("msvamp_sw", "sw_train.jsonl", True),
        ("msvamp_sw", "msvamp/de_test.jsonl", False),
        ("global_mgsm_sw", "global_mgsm/sw_test.jsonl", True),
        ("global_mgsm_sw", "mgsm/sw_test.jsonl", False),
        ("polymath_low_sw", "polymath_low/sw_test.jsonl", True),
        ("polymath_low_sw", "polymath_top/sw_test.jsonl", False),
    ],
)
def test_of_a_data_folder_the_files_of_the_task_count(tmp_path, task, changed, is_read):
    data = shutil.copytree(DATA, tmp_path / "data")

    def key():
        return fingerprints(SHIPPED_TASKS, data).fingerprint(f"layerswap_{task}")

    before = key()
    (data / changed).parent.mkdir(exist_ok=True)
    with (data / changed).open("a") as file:
        file.write("\n")
    assert (key() != before) == is_read


def test_whether_items_may_be_published_changes_no_score(tmp_path):
    data = write_rows(tmp_path / "tasks", [{"prompt": "w1", "answer": "w2"}])
    hashes = []
    for more in ({}, {"publish": False}, {"publish": True}, {"public": True}):
        write_task(tmp_path / "tasks", "words", data, metadata={"version": 1.0, **more})
        hashes.append(fingerprints(tmp_path / "tasks").fingerprint("words"))
    assert len({*hashes[:3]}) == 1
    assert hashes[3] != hashes[0]
