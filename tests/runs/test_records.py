"""Run folders: read back, what is wrong with their evaluations, and what they were made of."""

import csv
import hashlib
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from ablations.runs import records
from ablations.runs.changed_tasks import changed_tasks
from ablations.runs.collect import collect
from ablations.runs.evaluation_problems import evaluation_problems
from ablations.runs.results import csv_text
from ablations.runs.run import load_run
from ablations.runs.score_table import SCORES
from ablations.scoring.evaluation import Evaluation
from ablations.study.schema import Study
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.recipe.document import Recipe
from tests.report.runs import edit_record, study_of, write_run
from tests.runner.fakes import RAISES, FakeEngine, make_cells, run
from tests.standins.command import layerswap, told
from tests.standins.experts import content
from tests.standins.studies import study_document

EXPERTS = {"task": ["math"], "language": {"sw": ["swahili"]}}
STUDY = Study.model_validate(study_document(experts=EXPERTS, vary={"bottom_layers": [0, 1, 2]}))


def write_head(out, cells):
    facts = {"experts": {}, "versions": {}, "protocol": "", "created": ""}
    records.write_run_file(out, records.RunFile.of_cells(STUDY, cells, 8, **facts))


@pytest.fixture
def folder(tmp_path):
    cells = make_cells(3)
    write_head(tmp_path, cells)
    run(tmp_path, list(reversed(cells)), FakeEngine(raising={"bottom_layers=1": RAISES}))
    return tmp_path


def test_a_run_reads_back_in_the_order_of_the_study(folder):
    found = load_run(folder)
    assert found.study == STUDY
    assert [cell.label for cell in found.cells] == ["bottom_layers=0", "bottom_layers=2"]
    assert [*found.errors] == ["bottom_layers=1"]
    assert [cell.label for cell in found.unfinished] == ["bottom_layers=1"]
    write_head(folder, make_cells(1))  # records that are not of the plan stay out
    assert [cell.label for cell in load_run(folder).cells] == ["bottom_layers=0"]


@pytest.mark.parametrize("text", [None, "[" * 100_000, "{", "[1]"])
def test_a_run_file_that_cannot_be_read_is_one_message(tmp_path, text):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    message = r"no run\.json in it" if text is None else r"run\.json is damaged"
    with pytest.raises(LayerSwapError, match=message):
        load_run(tmp_path)


def test_the_table_has_every_cell(folder):
    cells = make_cells(3, tasks=("fake_math", "more"))
    run(folder, cells[:1])
    write_head(folder, cells)
    collect(load_run(folder))
    with (folder / "scores.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["cell"], row["task"], row["state"]) for row in rows] == [
        ("bottom_layers=0", "fake_math", "done"),
        ("bottom_layers=0", "more", "done"),
        ("bottom_layers=1", "fake_math", "failed"),
        ("bottom_layers=1", "more", "missing"),
        ("bottom_layers=2", "fake_math", "done"),
        ("bottom_layers=2", "more", "missing"),
    ]
    cells = {cell.weights_key: cell for cell in cells}
    for row in rows:
        if row["state"] == "done":
            key = cells[row["weights"]].record_keys[row["task"]]
            head, *_ = records.record_file(folder, key).read_text().splitlines()
            assert f'"value":{row["value"]}' in head
            assert float(row["low"]) < float(row["value"]) < float(row["high"])


@pytest.mark.parametrize("done", [slice(0, 1), slice(1, 2), slice(0, 0)])
def test_the_table_has_the_same_columns_whichever_cell_is_missing(tmp_path, done):
    cells = make_cells(2)
    run(tmp_path, cells[done])
    write_head(tmp_path, cells)
    collect(load_run(tmp_path))
    head, *rows = (tmp_path / "scores.csv").read_text().splitlines()
    assert head.split(",") == [*SCORES]
    assert len(rows) == 2


def test_a_copy_needs_no_records(folder, tmp_path_factory):
    collect(load_run(folder))
    copy = tmp_path_factory.mktemp("copy")
    for name in ("run.json", "records.jsonl", "observations.parquet"):
        (copy / name).write_bytes((folder / name).read_bytes())
    found, copied = load_run(folder), load_run(copy)
    assert copied.is_copy
    assert [c.scores for c in copied.cells] == [c.scores for c in found.cells]


def test_a_record_that_is_damaged_or_lost_items_is_not_used(folder):
    file = folder / "records" / "s000.jsonl"
    text, record = file.read_text(), load_run(folder).cells[0].task_records[0]
    lines = text.split("\n")
    for changed, message in (
        ([lines[0], lines[1], lines[2][:-5], *lines[3:]], r"s000\.jsonl:3 is damaged"),
        (lines[:3], rf"damaged \(it has 2 of {len(lines) - 2} items\); remove it"),
    ):
        file.write_text("\n".join(changed))
        with pytest.raises(LayerSwapError, match=message):
            list(record.samples())
    file.unlink()
    with pytest.raises(LayerSwapError, match=r"s000\.jsonl is damaged \(.*No such file"):
        list(record.samples())
    assert records.find_record(folder, "s000") is None


def test_a_flipped_bit_is_damage_or_changes_nothing(tmp_path):
    run_folder, copy = tmp_path / "run", tmp_path / "copy"
    write_run(run_folder, study_of(baseline=["soup"]), lambda *_: 0.4, items=12)
    collect(load_run(run_folder))
    copy.mkdir()
    for name in ("run.json", "records.jsonl", "observations.parquet"):
        shutil.copy(run_folder / name, copy / name)

    def tables(folder):
        results = load_run(folder).results
        return csv_text(results.scores) + csv_text(results.observations)

    rng, noticed = np.random.default_rng(0), 0
    files = [*sorted(run_folder.glob("records/*.jsonl"))[:2], *sorted(copy.glob("[or]*.*"))]
    files.remove(copy / "run.json")
    for name in ("records.jsonl", "observations.parquet"):
        (run_folder / name).unlink()  # else its records are not read
    assert len(files) == 4
    for file in files:
        content, expected = file.read_bytes(), tables(file.parents[file.parent.name == "records"])
        for place in rng.integers(0, len(content), 40):
            flipped = bytearray(content)
            flipped[place] ^= 1 << rng.integers(8)
            file.write_bytes(flipped)
            try:
                assert tables(file.parents[file.parent.name == "records"]) == expected
            except LayerSwapError:
                noticed += 1
        file.write_bytes(content)
    assert noticed > 100


def test_records_and_observations_of_two_moments_are_no_copy(folder, tmp_path):
    run_folder = tmp_path / "run"
    study = study_of(baseline=["soup"])
    whole = write_run(run_folder, study, lambda *_: 0.4, items=12)
    collect(whole)
    lines = (run_folder / "records.jsonl").read_bytes()
    first, *_ = whole.cells
    records.record_file(run_folder, next(iter(first.record_keys.values()))).unlink()
    collect(load_run(run_folder))
    (run_folder / "records.jsonl").write_bytes(lines)
    shutil.rmtree(run_folder / "records")
    with pytest.raises(LayerSwapError, match=r"parquet is damaged .*not of the same moment"):
        _ = load_run(run_folder).observations


def test_tables_that_are_older_than_a_record_are_not_read(tmp_path):
    run = write_run(tmp_path, study_of(baseline=["soup"]), lambda *_: 0.4, items=12)
    expected = csv_text(run.observations)
    collect(run)
    for file in run.path.glob("records/*.jsonl"):
        head, *items = file.read_text().splitlines(keepends=True)
        file.write_text("".join([head, *reversed(items)]))  # which is damage
    assert csv_text(load_run(tmp_path).observations) == expected  # that no reader of tables meets
    other = write_run(tmp_path, study_of(baseline=["soup"]), lambda *_: 0.9, items=12)
    assert csv_text(other.observations) != expected
    collect(other)
    for name in ("observations.parquet", "records.jsonl"):
        (tmp_path / name).write_bytes(b"")
        assert csv_text(load_run(tmp_path).observations) == csv_text(other.observations)


def test_a_damaged_record_is_said_and_made_again(folder, caplog):
    file = records.record_file(folder, "s000")
    text = file.read_text()
    records.remove_damaged(folder, ["s000", "s001", "s002"])
    assert (file.read_text(), caplog.text) == (text, "")
    file.write_text(text.replace('"doc_id":0', '"doc_id":3', 1))
    with pytest.raises(LayerSwapError, match="an item is not what was written"):
        _ = load_run(folder).results
    records.remove_damaged(folder, ["s000", "s001", "s002"])
    assert "s000.jsonl is damaged, so it is removed and scored again" in caplog.text
    assert [cell.label for cell in load_run(folder).cells] == ["bottom_layers=2"]


def test_nothing_of_a_strangers_names_is_obeyed(tmp_path):
    run = write_run(tmp_path, study_of(baseline=["soup"]), lambda *_: 0.4, items=20)
    file, hostile = run.path / "run.json", "\x1b[31m\u202e\x00\x9b"
    document = json.loads(file.read_text(encoding="utf-8"))
    document["study"]["question"] += hostile
    for model in document["models"]:
        model["label"] += hostile
        model["cells"] = [label + hostile for label in model["cells"]]
    for cell in document["cells"]:
        cell["label"] += hostile
    file.write_text(json.dumps(document), encoding="utf-8")
    result = layerswap("report", run.path)
    assert result.exit_code == 0, result.output
    texts = [file.read_text("utf-8") for file in result_files(run.path)]
    assert len(texts) > 4
    assert not OBEYED.search("".join([*texts, result.output]))
    assert "soup\\x1b[31m" in texts[0]
    names = [f"{run.path}:{model.label}" for model in load_run(run.path).models]
    result = layerswap("compare", *names)
    assert result.exit_code == 0, result.output
    assert not OBEYED.search(result.output)


OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def result_files(path):
    kinds = ("csv", "md", "tex", "html", "svg")
    return [file for kind in kinds for file in sorted(path.rglob(f"report/**/*.{kind}"))]


@pytest.mark.parametrize("where", ["task", "metric", "filter", "label"])
def test_a_name_that_no_table_holds_is_refused(tmp_path, where):
    run = write_run(tmp_path, study_of(baseline=["soup"]), lambda *_: 0.4, items=3)
    long = "x" * 5_000
    if where == "label":
        file = run.path / "run.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        document["models"][0]["label"] = long
        file.write_text(json.dumps(document), encoding="utf-8")
    for file in run.path.glob("records/*.jsonl") if where != "label" else ():
        edit_record(file, lambda text: re.sub(f'"{where}":"[^"]*"', f'"{where}":"{long}"', text))
    code, output = told("report", run.path)
    assert (code, "has a name of 5,000 characters" in output) == (2, True)


def test_a_copy_of_too_many_rows_is_refused(folder):
    collect(load_run(folder))
    shutil.rmtree(folder / "records")
    indices = pa.array(np.zeros(20_000_001, dtype="int32"))
    rows = pa.DictionaryArray.from_arrays(indices, pa.array(["x"]))
    file = folder / "observations.parquet"
    pyarrow.parquet.write_table(pa.table({"model": rows}), file)
    assert file.stat().st_size < 1_000_000
    *records_before, _ = (folder / "records.jsonl").read_text().splitlines()
    line = json.dumps({"observations": hashlib.sha256(file.read_bytes()).hexdigest()})
    line = line.replace(" ", "")
    (folder / "records.jsonl").write_text("\n".join([*records_before, line]) + "\n")
    with pytest.raises(LayerSwapError, match=r"it holds 20,000,001 rows, over 20,000,000"):
        _ = load_run(folder).observations


def test_a_copy_without_its_records_says_so(folder):
    collect(load_run(folder))
    shutil.rmtree(folder / "records")
    (folder / "records.jsonl").unlink()
    with pytest.raises(InputError, match=r"no records\.jsonl, which a copy of a run needs"):
        load_run(folder)


@pytest.mark.parametrize("name", ["run.json", "records/s000.jsonl", "failures/s001.json"])
@pytest.mark.parametrize("kind", ["link", "endless", "pipe", "folder"])
def test_what_is_no_file_in_a_run_of_a_stranger_is_not_read(folder, tmp_path_factory, name, kind):
    path, elsewhere = folder / name, tmp_path_factory.mktemp("elsewhere") / "file"
    path.rename(elsewhere)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(elsewhere if kind == "link" else "/dev/zero")
    with pytest.raises(LayerSwapError, match=r"damaged .*it is a link, a pipe or a folder, not a"):
        load_run(folder)


@pytest.mark.parametrize("name", ["records", "failures"])
def test_links_inside_a_run_are_not_followed_and_a_run_may_be_one(folder, tmp_path_factory, name):
    place = tmp_path_factory.mktemp("scratch")
    (place / "link").symlink_to(folder)
    assert load_run(place / "link").cells == load_run(place / "link").cells
    (folder / name).rename(place / name)
    (folder / name).symlink_to(place / name)
    with pytest.raises(InputError, match=f"{name}: is a link, and those inside a run folder"):
        load_run(folder)


def test_a_number_of_an_item_that_no_table_holds_is_damage(folder):
    file = folder / "records" / "s000.jsonl"
    file.write_text(file.read_text().replace('"doc_id":0', f'"doc_id":{10**30}', 1))
    code, output = told("report", folder)
    assert (code, "s000.jsonl:2 is damaged" in output) == (2, True)


def test_a_report_does_not_read_every_file_of_the_machine(problems, tmp_path):
    head = records.read_run_file(tmp_path)
    for evaluate in (
        {"include_path": (Path("/"),)},
        {"include_path": (tmp_path,), "data_dir": Path("/")},
    ):
        study = head.study.model_copy(
            update={"evaluate": head.study.evaluate.model_copy(update=evaluate)}
        )
        records.write_run_file(tmp_path, head.model_copy(update={"study": study}))
        found = [*changed_tasks(load_run(tmp_path))]
        assert "Whether tasks have changed since this run cannot be said: /: holds over" in found[0]


def test_a_folder_of_another_schema_is_left_as_it_is(tmp_path):
    (tmp_path / "run.json").write_text('{"schema_version": 3}')
    with pytest.raises(InputError, match=r"by another layerswap .*left as it is.* another folder"):
        load_run(tmp_path)


TASK = "pocket_math_sw"


@pytest.fixture
def problems(tmp_path):
    """Return a function that edits records of some of three cells: what is wrong then."""
    study = study_of(baseline=["soup"], vary={"bottom_layers": [0, 1]})
    found = write_run(tmp_path, study, lambda _, __: 0.0, items=20)

    def call(edit, cells):
        for cell in found.cells[:cells]:
            record = next(each for each in cell.task_records if each.task == TASK)
            scores = [score.model_dump(mode="json") for score in record.evaluation.scores]
            rows = [sample.model_dump(mode="json") for sample in record.samples()]
            edit(scores, rows)
            document = {**dict(record.evaluation), "scores": scores, "samples": rows}
            evaluation = Evaluation.model_validate(document)
            records.write_record(found.path, record.model_copy(update={"evaluation": evaluation}))
        return evaluation_problems(load_run(found.path))

    return call


@pytest.mark.parametrize(
    ("say", "answer", "cells", "message"),
    [
        (None, None, 0, None),  # a sound run has no problem
        (lambda *_: "5", None, 1, None),  # a zero of one model is none
        (lambda *_: "5", None, 3, "every answer is wrong (exact_match is 0 on all"),
        (
            lambda _, place: f"It is {place}.",
            "[invalid]",
            1,
            "the filter strict-match finds no answer in any of the 20 responses (it gives",
        ),
        (lambda *_: " ", None, 3, "all 20 answers are empty, in 3 of 3 cells. "),
        (
            lambda target, place: f" {target}" if place < 15 else f"not {place}",
            None,
            1,
            "15 of 20 answers differ from their targets only in white space",
        ),
    ],
)
def test_broken_evaluations_are_named(tmp_path, problems, say, answer, cells, message):
    def edit(scores, rows):
        scores[0]["value"] = 0.0
        for place, row in enumerate(rows):
            text = say(row["target"], place)
            row["values"]["exact_match"] = 0.0
            row |= {"responses": [text], "answers": [answer or text]}

    found = problems(edit, cells)
    assert len(found) == (message is not None)
    for text in found:
        assert text.startswith(f"{TASK}: {message}")
        words = shlex.split(text.partition("with the task file: layerswap ")[2])
        assert (words[0], words[-1]) == ("answers", "--wrong")
        # The texts of this made-up run are not stored; model, task and wrong items are there.
        assert f"{TASK} was scored without a folder of answers" in told(*words)[1]


def test_models_without_answers_are_not_counted_with_those_that_answer_wrong(problems):
    texts = iter((" ", "5", "5"))

    def edit(scores, rows):
        scores[0]["value"], text = 0.0, next(texts)
        for row in rows:
            row["values"]["exact_match"] = 0.0
            row |= {"responses": [text], "answers": [text]}

    empty, wrong = problems(edit, 3)
    assert empty.startswith(f"{TASK}: all 20 answers are empty, in 1 of 3 cells (the first is soup")
    assert wrong.startswith(
        f"{TASK}: every answer is wrong (exact_match is 0 on all 20 items), in 2"
    )


@pytest.mark.parametrize(("share", "count"), [(0.6, 1), (0.1, 0)])
def test_prompts_that_did_not_fit_are_a_problem_where_they_are_most(problems, share, count):
    def cut(scores, rows):
        extra = {"metric": "prompt_truncated", "value": share, "higher_is_better": False}
        scores.append({**scores[0], **extra})

    found = problems(cut, 3)
    assert len(found) == count
    assert all("up to 60.0 % of the prompts were too long for the model" in t for t in found)


def test_a_copy_for_readers_is_not_written_over(tmp_path):
    folder = Path(__file__).parents[2] / "ablations/results/keep_fraction"
    copy = shutil.copytree(folder, tmp_path / "copy")
    before = content(copy)
    for words in (["report", copy], ["run", "keep_fraction"]):
        assert layerswap(*words, "--out", copy).exit_code == 2
    assert content(copy) == before


RESULTS = sorted((Path(__file__).parents[2] / "ablations" / "results").rglob("run.json"))


def test_there_are_shipped_results():
    assert len(RESULTS) > 40


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.parent.name)
def test_a_shipped_run_is_written_back_as_it_was(file, tmp_path):
    """The recipes of its cells are typed values when read, and the same text when written."""
    head = records.read_run_file(file.parent)
    assert all(isinstance(cell.recipe, Recipe) for cell in head.cells)
    records.write_run_file(tmp_path, head)
    written = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    stored = json.loads(file.read_text(encoding="utf-8"))
    assert written == stored


def test_a_recipe_that_is_wrong_makes_a_run_file_damaged(tmp_path):
    document = json.loads(RESULTS[0].read_text(encoding="utf-8"))
    document["cells"][0]["merge"] = {"merge_method": "layer_swap", "models": "none"}
    (tmp_path / "run.json").write_text(json.dumps(document))
    with pytest.raises(LayerSwapError, match=r"run.json is damaged .*restore it"):
        load_run(tmp_path)
