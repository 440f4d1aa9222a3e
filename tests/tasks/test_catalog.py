"""The list of the shipped tasks, their files, and what a task is made of."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.engines.task_loading import load_tasks
from ablations.requests.resolve import resolve
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
from ablations.tasks.task_yaml import read_task_file
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA, POLYMATH
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
    assert len(listed) == 13
    names = tuple(task.name for task in listed)
    loaded = load_tasks(resolve(EvaluationRequest(tasks=names, data_dir=DATA, isolation="none")))
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
    shipped = (SHIPPED_TASKS / "languages.yml").read_text(encoding="utf-8")
    table.write_text(shipped + NEW, encoding="utf-8")
    files = task_files(load_languages(table))
    new = set(files) - {path.name for path in GENERATED.glob("*.yaml")}
    names = ("mgsm_qaa", "mgsm_rev2_qaa", "belebele_qaa", "mmlu_qaa", "qaa")
    pairs = ("flores_en-qaa", "flores_qaa-en")
    assert new == {f"layerswap_{name}.yaml" for name in (*names, *pairs)}
    (tmp_path / "mgsm.yaml").write_text(files["layerswap_mgsm_qaa.yaml"], encoding="utf-8")
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
