"""The language of a task: from its metadata to the primary task and the order of a report."""

import json

import pytest

from ablations.report.compare_models import compare_models
from ablations.report.write import make_report
from ablations.runs.records import read_run_file
from ablations.runs.run import load_run
from tests.standins.command import output_of
from tests.standins.studies import study_document, write_expert, write_yaml
from tests.standins.tasks import write_rows, write_task

pytestmark = pytest.mark.filterwarnings("ignore")
ENGLISH, ITALIAN = "does_it", "quiz"
"""Tasks of which the English one is the first, and Italian by its name."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run that the command wrote, of random experts on tasks of a user."""
    folder = tmp_path_factory.mktemp("languages")
    tasks = folder / "tasks"
    data = write_rows(tasks, [{"prompt": f"w{n} w2", "answer": f"w{n}"} for n in range(6)])
    for name, language in ((ENGLISH, "en"), (ITALIAN, "it")):
        write_task(tasks, name, data, metadata={"version": 1.0, "language": language})
    names = ("base", "math", "italian")
    for seed, name in enumerate(names):
        write_expert(folder / name, seed)
    experts = {name: str(folder / name) for name in names}
    study = study_document(
        vary=None,
        experts={"base": "base", "task": ["math"], "language": {"it": ["italian"]}},
        evaluate={"tasks": [ENGLISH, ITALIAN]},
        report={"tables": ["pairs"]},
    )
    write_yaml(folder / "study.yml", study)
    write_yaml(folder / "experts.yml", {"experts": experts, "include_path": str(tasks)})
    words = ("run", folder / "study.yml", "--experts", folder / "experts.yml", "--backend", "hf")
    output_of(*words, "--out", folder / "run")
    return folder / "run"


def shown(path):
    """Return the primary tasks of a run's report, its tasks in order, and those with an average."""
    report = make_report(load_run(path), draw=False)
    comparisons = report.comparisons
    tables = {table.attrs["key"]: table for table in report.tables}
    order = [name.partition(",")[0] for name in tables["scores"].columns[1:]]
    ends = [name.split(", exact match ") for name in tables["pairs"]["over pairs"][:-1]]
    whole = {name for name, end in ends if end == "max"}
    return {*comparisons[comparisons["family"] == "primary"]["task"]}, order, whole


def test_the_metadata_choose_the_primary_task_and_put_english_last(run):
    assert read_run_file(run).task_languages == {ENGLISH: "en", ITALIAN: "it"}
    assert shown(run) == ({ITALIAN}, ["quiz", "does"], {"quiz"})


def test_models_that_are_compared_have_english_last(run):
    scores = compare_models([f"{run}:base", f"{run}:task expert"]).scores
    tasks = [task.removesuffix("_right_language") for task in scores["task"]]
    assert [*dict.fromkeys(tasks)] == [ITALIAN, ENGLISH]


def test_a_run_from_before_goes_by_the_names(run, tmp_path):
    document = json.loads((run / "run.json").read_text(encoding="utf-8"))
    del document["task_languages"]
    old = tmp_path / "old"
    old.mkdir()
    for name in ("records.jsonl", "observations.parquet"):
        (old / name).write_bytes((run / name).read_bytes())
    (old / "run.json").write_text(json.dumps(document), encoding="utf-8")
    assert shown(old)[0] == {ENGLISH}
