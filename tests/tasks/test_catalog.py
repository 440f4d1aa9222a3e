"""The list of the shipped tasks, and the files that are written from the table of languages."""

import pytest
import yaml
from click.testing import CliRunner

from ablations.engines.task_loading import load_tasks
from ablations.scoring.records import EvaluationRequest
from ablations.tasks.catalog import SHIPPED_TASKS, TITLES, choose, list_tasks
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA
from tools import task_files as generate
from tools.task_files import find_differences, task_files
from tools.task_languages import load_languages

TASKS = list_tasks()
CODES = ["en", "ja", "bn", "sw", "te"]
GENERATED = SHIPPED_TASKS / "generated"

ITALIAN = """
it: {name: Italian, flores: ita_Latn, bleu: 13a, belebele: ita_Latn, mmlu: it, mgsm: {config: it,
  question: "Domanda: ", answer: "Risposta passo dopo passo:", phrase: "La risposta è"}}
"""


def test_every_benchmark_has_the_papers_languages_in_the_papers_order():
    assert list(dict.fromkeys(task.benchmark for task in TASKS)) == list(TITLES)
    for benchmark in TITLES:
        languages = [task.language for task in TASKS if task.benchmark == benchmark]
        others = ["de", "es", "fr", "ru", "th", "zh"] if benchmark.startswith("mgsm") else []
        both_ways = [code for code in CODES if code != "en" for _ in range(2)]
        assert languages == (both_ways if benchmark == "flores" else [*CODES, *others])
    labels = [task.label for task in TASKS if task.benchmark == "flores"]
    assert labels[:4] == ["Eng-Jpn", "Jpn-Eng", "Eng-Ben", "Ben-Eng"]


def test_the_list_says_what_lm_eval_reads():
    listed = [task for task in TASKS if task.language == "sw"]
    assert len(listed) == 7
    names = tuple(task.name for task in listed)
    leave = {"isolation": "none"}
    loaded = load_tasks(EvaluationRequest(tasks=names, data_dir=DATA, **leave))[0]
    for task, theirs in zip(listed, loaded, strict=True):
        config = theirs.config
        metrics = [getattr(m["metric"], "__name__", m["metric"]) for m in config.metric_list]
        assert (task.name, task.num_fewshot) == (config.task, config.num_fewshot)
        assert task.max_gen_toks == (config.generation_kwargs or {}).get("max_gen_toks")
        assert (list(task.metrics), task.source) == (metrics, config.dataset_path)
        assert task.executes_code == bool(config.unsafe_code)


def test_languages_and_benchmarks_choose():
    assert choose(TASKS) == TASKS
    names = [task.name for task in choose(TASKS, ["te", "sw"], ["belebele", "mgsm"])]
    assert names == [f"layerswap_{b}_{code}" for b in ("mgsm", "belebele") for code in ("sw", "te")]
    with pytest.raises(InputError) as caught:
        choose(TASKS, ["sw", "tee"], ["mgms", "mmlu"])
    assert caught.value.message.splitlines() == [
        "no language 'tee'; did you mean 'te'? Valid are en, ja, bn, sw, te, "
        "de, es, fr, ru, th, zh",
        "no benchmark 'mgms'; did you mean 'mgsm'? Valid are mgsm, belebele, flores, mbpp, "
        "mmlu, mgsm_rev2",
    ]
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
    table.write_text((SHIPPED_TASKS / "languages.yml").read_text(encoding="utf-8") + ITALIAN)
    files = task_files(load_languages(table))
    new = set(files) - {path.name for path in GENERATED.glob("*.yaml")}
    names = ("mgsm_it", "mgsm_rev2_it", "belebele_it", "mmlu_it", "flores_en-it", "flores_it-en")
    assert new == {f"layerswap_{name}.yaml" for name in (*names, "it")}
    mgsm = yaml.safe_load(files["layerswap_mgsm_it.yaml"])
    assert mgsm["doc_to_text"] == "Domanda: {{question}}\nRisposta passo dopo passo:"
    assert mgsm["generation_kwargs"]["until"][0] == "Domanda:"
    assert "La\\ risposta\\ è" in mgsm["filter_list"][0]["filter"][0]["regex_pattern"]
    pair = files["layerswap_flores_en-it.yaml"]
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
