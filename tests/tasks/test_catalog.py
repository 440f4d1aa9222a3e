"""The list of the shipped tasks, their files, and what a task is made of."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.engines.task_loading import load_tasks
from ablations.scoring.evaluation import EvaluationRequest
from ablations.tasks.catalog import (
    PAPER_BENCHMARKS,
    PAPER_LANGUAGES,
    SHIPPED_TASKS,
    TITLES,
    choose,
    list_tasks,
    may_be_published,
)
from ablations.tasks.task_fingerprint import TaskContents
from ablations.tasks.task_yaml import read_task_file
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA, POLYMATH
from tests.standins.tasks import write_rows, write_task
from tools import task_files as generate
from tools.task_files import find_differences, task_files
from tools.task_languages import load_languages

TASKS = list_tasks()
GENERATED = SHIPPED_TASKS / "generated"

NEW = """
qaa: {name: Invented, flores: qaa_Latn, bleu: 13a, belebele: qaa_Latn, mmlu: qaa, mgsm: {
  config: qaa, question: "Domanda: ", answer: "Passo dopo passo:", phrase: "La risposta è"}}
"""
"""A language of a code that no language has, so that nobody's entry is this one."""


def test_every_benchmark_has_the_papers_languages_in_the_papers_order_and_then_others():
    assert list(dict.fromkeys(task.benchmark for task in TASKS)) == list(TITLES)
    assert PAPER_LANGUAGES == ("en", "ja", "bn", "sw", "te")
    table = load_languages()
    order = [*dict.fromkeys([*PAPER_LANGUAGES, *table])]
    fields = dict.fromkeys(TITLES) | {"flores": "bleu", "mgsm_rev2": "mgsm"}
    fields |= dict.fromkeys(POLYMATH, "polymath")
    for benchmark in TITLES:
        languages = [*dict.fromkeys(t.language for t in TASKS if t.benchmark == benchmark)]
        wanted = [code for code in order if getattr(table[code], fields[benchmark] or benchmark)]
        if benchmark == "flores":  # of translations between English and another language
            wanted.remove("en")
        assert languages == wanted
        if benchmark in PAPER_BENCHMARKS:
            assert {*PAPER_LANGUAGES} - {*languages} <= {"en"}


def test_the_list_says_what_lm_eval_reads():
    listed = [task for task in TASKS if task.language == "sw"]
    assert len(listed) == 12
    names = tuple(task.name for task in listed)
    loaded = load_tasks(EvaluationRequest(tasks=names, data_dir=DATA, isolation="none"))[0]
    for task, theirs in zip(listed, loaded, strict=True):
        config = theirs.config
        metrics = [getattr(m["metric"], "__name__", m["metric"]) for m in config.metric_list]
        assert (task.name, task.num_fewshot) == (config.task, config.num_fewshot)
        assert task.max_gen_toks == (config.generation_kwargs or {}).get("max_gen_toks")
        assert (list(task.metrics), task.source) == (metrics, config.dataset_path)
        assert task.executes_code == bool(config.unsafe_code)


def test_the_page_lists_the_languages_of_the_newer_benchmarks():
    page = " ".join((Path(__file__).parents[2] / "docs/evaluate.md").read_text("utf-8").split())
    for benchmark, words in (
        ("global_mgsm", "Global-MGSM's languages: "),
        *((benchmark, "PolyMath's: ") for benchmark in POLYMATH),
    ):
        codes = sorted(task.language for task in TASKS if task.benchmark == benchmark)
        assert f"{words}{', '.join(codes)}." in page
        assert f"({len(codes)} languages, below)" in page


def test_languages_and_benchmarks_choose():
    assert choose(TASKS) == TASKS
    names = [task.name for task in choose(TASKS, ["te", "sw"], ["belebele", "mgsm"])]
    assert names == [f"layerswap_{b}_{code}" for b in ("mgsm", "belebele") for code in ("sw", "te")]
    with pytest.raises(InputError) as caught:
        choose(TASKS, ["sw", "tee"], ["mgms", "mmlu"])
    assert "no language 'tee'; did you mean 'te'? Valid are en, ja, bn" in caught.value.message
    assert "\nno benchmark 'mgms'; did you mean 'mgsm'? Valid are mgsm" in caught.value.message
    # Codes of two letters are near to each other, and no slip of the pen.
    with pytest.raises(InputError, match=r"^no language 'fi'; valid are en, ja, bn, sw, "):
        choose(TASKS, ["fi"])
    with pytest.raises(InputError, match=r"^no language 'SW'; did you mean 'sw'\? Valid are "):
        choose(TASKS, ["SW"])
    with pytest.raises(InputError, match="no task of flores in en"):
        choose(TASKS, ["en"], ["flores"])


def test_the_files_are_in_step_with_the_table(tmp_path, monkeypatch):
    files = task_files(load_languages())
    assert len(files) > 30
    assert find_differences(GENERATED, files) == []
    monkeypatch.setattr(generate, "SHIPPED_TASKS", tmp_path)
    (folder := tmp_path / "generated").mkdir()
    (folder / "layerswap_mgsm_te.yaml").write_text("task: other\n")
    (folder / "layerswap_mgsm_xx.yaml").write_text("task: layerswap_mgsm_xx\n")
    found = CliRunner().invoke(generate.main, ["--check"])
    assert found.exit_code == 1
    for line in ("sw.yaml is missing", "mgsm_xx.yaml is not from the table", "te.yaml differs"):
        assert line in found.output
    assert len([*folder.iterdir()]) == 2
    assert CliRunner().invoke(generate.main, []).exit_code == 0
    assert find_differences(folder, files) == []


def test_a_language_is_one_entry(tmp_path):
    table = tmp_path / "languages.yml"
    table.write_text((SHIPPED_TASKS / "languages.yml").read_text(encoding="utf-8") + NEW)
    files = task_files(load_languages(table))
    new = set(files) - {path.name for path in GENERATED.glob("*.yaml")}
    names = ("mgsm_qaa", "mgsm_rev2_qaa", "belebele_qaa", "mmlu_qaa", "qaa")
    pairs = ("flores_en-qaa", "flores_qaa-en")
    assert new == {f"layerswap_{name}.yaml" for name in (*names, *pairs)}
    (tmp_path / "mgsm.yaml").write_text(files["layerswap_mgsm_qaa.yaml"])
    mgsm = read_task_file(tmp_path / "mgsm.yaml").content
    assert mgsm["doc_to_text"] == "Domanda: {{question}}\nPasso dopo passo:"
    assert mgsm["generation_kwargs"]["until"][0] == "Domanda:"
    assert mgsm["filter_list"][0]["filter"][0]["phrases"] == ["La risposta è"]
    pair = files["layerswap_flores_en-qaa.yaml"]
    assert "aggregation: !function 'ablations.tasks.translation.bleu_13a'" in pair


def test_an_entry_that_is_wrong_is_named(tmp_path):
    table = tmp_path / "languages.yml"
    table.write_text(
        "xx: {name: X, flores: xx, bleu: moses}\nyy: {flores: yyy_Yyyy, bleu: 13a, mqsm: 1}\n"
    )
    with pytest.raises(InputError) as caught:
        load_languages(table)
    for part in ("xx.flores", "xx.bleu", "yy.name", "yy.mqsm", "4 problems"):
        assert part in caught.value.message


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
        contents = TaskContents([tmp_path])
        return [contents.fingerprint(name) for name in ("one", "two")]

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
    return folder, lambda: TaskContents([folder]).fingerprint("own")


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
        return TaskContents([folder]).fingerprint("own")

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
    monkeypatch.setattr("ablations.tasks.task_fingerprint._MOST_FILES", 20)
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
        ("global_mgsm_sw", "global_mgsm/sw_test.jsonl", True),
        ("global_mgsm_sw", "mgsm/sw_test.jsonl", False),
        ("polymath_low_sw", "polymath_low/sw_test.jsonl", True),
        ("polymath_low_sw", "polymath_top/sw_test.jsonl", False),
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


def test_only_items_of_flores_are_not_for_publication():
    contents = [read_task_file(path).content for path in sorted(GENERATED.glob("*.yaml"))]
    metadata = [content["metadata"] for content in contents if "group" not in content]
    closed = {entry["benchmark"] for entry in metadata if not may_be_published(entry)}
    assert closed == {"flores"}
    assert {entry["benchmark"] for entry in metadata if may_be_published(entry)} == (
        {*TITLES} - closed
    )
    assert not may_be_published({"publish": "false"})  # in doubt it is kept back
    assert may_be_published(None)


def test_whether_items_may_be_published_changes_no_score(tmp_path):
    data = write_rows(tmp_path / "tasks", [{"prompt": "w1", "answer": "w2"}])
    hashes = []
    for more in ({}, {"publish": False}, {"publish": True}, {"public": True}):
        write_task(tmp_path / "tasks", "words", data, metadata={"version": 1.0, **more})
        hashes.append(TaskContents([tmp_path / "tasks"]).fingerprint("words"))
    assert len({*hashes[:3]}) == 1
    assert hashes[3] != hashes[0]
