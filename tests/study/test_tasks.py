"""What the models of a study are asked, and how: benchmarks, own tasks, chat, repeats, engines."""

import shutil
from types import SimpleNamespace

import pytest
import yaml

from ablations import sandbox
from ablations.study.checks import language_notes
from ablations.tasks.catalog import SHIPPED_TASKS
from layerswap_method.errors import InputError
from tests.report.runs import study_of
from tests.standins.scripted import DATA
from tests.standins.studies import write_expert, write_yaml

POOLS = {"base": "base", "task": ["math"], "language": {"sw": ["swahili"], "te": ["telugu"]}}
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


@pytest.fixture
def shipped(experts):
    """Return an experts file that names no task folder."""
    document = yaml.safe_load(experts.read_text())
    del document["include_path"]
    return write_yaml(experts.with_name("shipped.yml"), document)


def small(evaluate, *, dry=False, isolation=None, **options):
    """Return the changes of a small study in two languages; without `dry` its data is read."""
    settings = {"limit": 2, "data_dir": str(DATA), **evaluate, **options}
    return {
        "experts": POOLS,
        "baseline": ["base"],
        "vary": None,
        "evaluate": {name: value for name, value in settings.items() if value is not None},
        "how": {"dry": dry, "isolation": isolation},
        "reads": not dry,
    }


def test_benchmarks_become_tasks_in_the_language_of_the_expert(plan, shipped):
    found = plan(shipped, **small({"benchmarks": ["mgsm", "belebele"]}))
    asked = {cell.label: cell.resolved for cell in found.cells}
    assert asked["math+swahili layer swap"].chosen == ("layerswap_mgsm_sw", "layerswap_belebele_sw")
    assert asked["math+telugu layer swap"].chosen == ("layerswap_mgsm_te", "layerswap_belebele_te")
    # The base has no language: it is asked everything.
    swaps = [tasks for label, tasks in asked.items() if label != "base"]
    assert set(asked["base"].chosen) == {task for tasks in swaps for task in tasks.chosen}
    assert {tasks.request.task_folders for tasks in asked.values()} == {(SHIPPED_TASKS,)}
    assert {tasks.request.data_dir for tasks in asked.values()} == {DATA}
    evaluate = {"tasks": ["layerswap_mgsm_en"], "languages": {"sw": ["layerswap_mgsm_sw"]}}
    found = plan(shipped, **small(evaluate))
    asked = {cell.label: cell.resolved.chosen for cell in found.cells}
    assert asked["math+swahili layer swap"] == ("layerswap_mgsm_en", "layerswap_mgsm_sw")
    assert asked["math+telugu layer swap"] == ("layerswap_mgsm_en",)


def test_own_tasks_and_benchmarks_go_together(plan, experts, models):
    found = plan(experts, **small({"tasks": ["words"], "benchmarks": ["mgsm"]}))
    cells = {cell.label: cell for cell in found.cells}
    assert cells["math+swahili layer swap"].resolved.chosen == ("words", "layerswap_mgsm_sw")
    for cell in plan(
        experts, **small({"tasks": ["words"]})
    ).cells:  # with the key that it has alone
        assert cell.record_keys.items() <= cells[cell.label].record_keys.items()


@pytest.mark.parametrize("by", ["study", "experts file", "command line"])
def test_a_name_with_lang_is_a_task_of_each_language(plan, experts, shipped, by):
    names = ["words_{lang}"]
    study, file, settings = {"tasks": ["words"]}, experts, None
    if by == "experts file":
        file = write_yaml(experts, {**yaml.safe_load(experts.read_text()), "tasks": names})
    elif by == "command line":
        settings = {"evaluate.tasks": names}
    else:
        study = {"tasks": names, "languages": {"te": ["words", "words_{lang}"]}}
    found = plan(file, settings, **small(study, dry=True))
    asked = {cell.label: cell.resolved.chosen for cell in found.cells}
    assert asked["math+swahili layer swap"] == ("words_sw",)
    telugu = ("words", "words_te") if by == "study" else ("words_te",)
    assert asked["math+telugu layer swap"] == telugu
    assert {"words_sw", "words_te"} <= {*asked["base"]}


def test_a_language_that_a_suite_lacks_is_one_problem(problem, plan, shipped):
    told = problem(shipped, **small({"tasks": ["xcopa_{lang}"]}, dry=True))
    assert told.endswith(
        "study.yml: xcopa_{lang}: there is no 'te'; valid are et, eu, ht, id, it, qu, sw, ta, th, "
        "tr, vi, zh"
    )

    def with_languages(language, **evaluate):
        return {**small(evaluate, dry=True), "experts": {**POOLS, "language": language}}

    found = plan(shipped, **with_languages({"sw": ["swahili"]}, tasks=["belebele_{lang}"]))
    assert {cell.resolved.chosen for cell in found.cells} == {("belebele_swh_Latn",)}
    told = problem(shipped, **with_languages(["swahili"], tasks=["belebele_{lang}"]))
    needs = "needs experts.language by language: {sw: [NAME, ...]}"
    assert told.endswith(f"study.yml: {{lang}} in a task's name {needs}")
    told = problem(shipped, **with_languages({"de": ["swahili"]}, benchmarks=["belebele"]))
    assert "study.yml: no task of belebele in de; belebele is in en, ja, bn, sw, te" in told
    assert "lm-eval's own tasks in it: belebele_{lang} (--tasks)" in told


def test_a_task_in_a_language_without_an_expert_is_noted(problem, plan, shipped):
    def planned(language, *tasks):
        pools = {**POOLS, "language": language}
        return {**small({"tasks": [*tasks]}), "experts": pools}

    note = "layerswap_mgsm_sw: in Swahili (sw), and the language experts are of Telugu (te)"
    assert note in plan(shipped, **planned({"te": ["telugu"]}, "layerswap_mgsm_sw")).notes
    for language in ({"sw": ["swahili"]}, ["swahili"]):
        notes = plan(shipped, **planned(language, "layerswap_mgsm_sw")).notes
        assert not any("the language experts are of" in note for note in notes)


def test_a_task_of_a_suite_has_its_language_in_its_name():
    """lm-eval's suites state none; another name, such as that of my_task, says nothing."""
    study = study_of(experts={"language": {"te": ["telugu"]}})
    records = dict.fromkeys(["belebele_swh_Latn", "belebele_tel_Telu", "my_task", "en_task"], "key")
    cell = SimpleNamespace(record_keys=records)
    assert [*language_notes(study, [cell], {"en_task": "en"})] == [
        "belebele_swh_Latn: in Swahili (sw), and the language experts are of Telugu (te)"
    ]


def test_a_language_may_be_written_by_its_name(problem, plan, experts):
    languages = {"Swahili": ["words_sw"], "telugu": ["words_te"]}
    pools = {**POOLS, "language": {"swahili": ["swahili"], "telugu": ["telugu"]}}
    found = plan(experts, evaluate={"languages": languages}, experts=pools)
    assert found.study.experts.languages() == {"swahili": "sw", "telugu": "te"}
    assert found.study.evaluate.languages == {"sw": ("words_sw",), "te": ("words_te",)}
    pools["language"] = {"swahili": ["swahili"], "sw": ["telugu"]}
    told = problem(experts, experts=pools)
    assert "experts.language: sw is named twice, once by its name; write it once" in told


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ({"wrods": [0]}, "evaluate.items: 'wrods' is not evaluated; did you mean 'words'"),
        ({"words": [1, 2, 1]}, "evaluate.items: words has item 1 more than once"),
    ],
)
def test_items_of_a_task_that_is_not_asked_are_refused(problem, experts, items, text):
    assert text in problem(experts, evaluate={"tasks": ["words"], "items": items})


def test_primary_tasks_may_have_lang(plan, experts):
    report = {"primary": {"tasks": ["words_{lang}"]}}
    evaluate = {"tasks": ["words_{lang}", "words"]}
    found = plan(experts, **small(evaluate, dry=True), report=report)
    assert found.study.report.primary.tasks == ("words_sw", "words_te")


def test_arguments_of_tasks_are_part_of_a_scores_key(plan, experts, models, tmp_path):
    def keys(metadata):
        evaluate = {"tasks": ["words"], "metadata": metadata}
        found = plan(experts, **small(evaluate, dry=True))
        return found, [cell.record_keys for cell in found.cells]

    (_, plain), (_, none), (_, some) = keys(None), keys({}), keys({"words": ["w1"]})
    assert plain == none != some
    # A place is what is in it, from the folder of the study.
    folder = shutil.copytree(models / "base", tmp_path / "place" / "tokenizer")
    found, first = keys({"tokenizer": "place/tokenizer"})
    assert found.study.evaluate.metadata == {"tokenizer": str(folder)}
    (folder / "model.safetensors").write_bytes(b"")  # no part of a tokenizer
    assert keys({"tokenizer": "place/tokenizer"})[1] == first
    (folder / "tokenizer_config.json").write_text("{}")
    assert keys({"tokenizer": "place/tokenizer"})[1] != first
    assert keys({"tokenizer": "place"})[0].study.evaluate.metadata == {"tokenizer": "place"}


@pytest.mark.skipif(sandbox.probe() is not None, reason=f"no sandbox here: {sandbox.probe()}")
def test_code_is_run_only_when_the_command_line_allows_it(plan, problem, shipped):
    evaluate = {"benchmarks": ["mgsm", "mbpp"]}
    found = plan(shipped, **small(evaluate))
    skipped = "layerswap_mbpp_sw: skipped: needs --allow-code-execution"
    assert skipped in found.notes
    assert {cell.resolved.request.isolation for cell in found.cells} == {None}
    keys = []
    for isolation in ("bwrap", "none"):  # how programs are held is no part of a score's key
        allowed = plan(shipped, **small(evaluate, isolation=isolation))
        assert skipped not in allowed.notes
        assert {cell.resolved.request.isolation for cell in allowed.cells} == {isolation}
        keys.append([cell.record_keys for cell in allowed.cells])
    assert keys[0] == keys[1]
    for key in ("allow_code_execution", "code_isolation"):  # a study does not decide that
        told = problem(shipped, **small({**evaluate, key: "none"}))
        assert f"evaluate.{key}: unknown key" in told
    told = problem(shipped, **small({"benchmarks": ["mbpp"]}))
    assert "every task of the study is skipped: needs --allow-code-execution" in told


def test_the_data_is_part_of_the_protocol_and_its_place_is_not(tmp_path, plan, shipped):
    def keys(folder):
        found = plan(shipped, **small({"benchmarks": ["mgsm"]}, data_dir=str(folder)))
        return {(c.label, task): key for c in found.cells for task, key in c.record_keys.items()}

    copy = shutil.copytree(DATA, tmp_path / "data")
    assert keys(copy) == keys(DATA)
    test = copy / "mgsm" / "sw_test.jsonl"
    test.write_text("\n".join(reversed(test.read_text().splitlines())) + "\n")
    changed = {task for (_, task), _ in set(keys(copy).items()) - set(keys(DATA).items())}
    assert changed == {"layerswap_mgsm_sw"}


def test_missing_data_is_said_before_anything_runs(tmp_path, plan, problem, shipped):
    (tmp_path / "mgsm").mkdir()
    shutil.copy(DATA / "mgsm" / "sw_train.jsonl", tmp_path / "mgsm")
    evaluate = {"benchmarks": ["mgsm", "mmlu"], "data_dir": str(tmp_path)}
    told = problem(shipped, **small(evaluate))
    assert "mgsm/sw_test.jsonl: no such file" in told
    assert "mgsm/te_train.jsonl: no such file" in told
    assert "mmlu/te_dev.jsonl: no such file" in told
    # A dry run reads data where it counts the tokens.
    assert plan(shipped, **small(evaluate, dry=True)).cells
    told = problem(shipped, **small({**evaluate, "data_dir": "nowhere"}))
    assert "evaluate.data_dir: nowhere: no such folder" in told


def test_what_cannot_be_asked_is_said(problem, shipped):
    chat = {"tasks": ["words"], "apply_chat_template": True}
    assert "base: its tokenizer has no chat template" in problem(evaluate=chat)
    listed = small({"benchmarks": ["mgsm"]}) | {"experts": {**POOLS, "language": ["swahili"]}}
    assert "benchmarks needs experts.language by language" in problem(shipped, **listed)


@pytest.mark.parametrize(("holder", "other"), [("base", "swahili"), ("swahili", "base")])
def test_the_chat_template_of_a_merge_is_that_of_the_model_with_its_vocabulary(
    plan, problem, own, holder, other
):
    """The base's, or that of the expert whose rows it has, where these have other tokens."""
    write_expert(own.parent / "swahili", seed=3, more_words=("moja", "mbili"))
    (own.parent / holder / "chat_template.jinja").write_text(TEMPLATE)
    rows_from = {"base": "base", "swahili": "language"}
    chat = {"baseline": [], "evaluate": {"tasks": ["words"], "apply_chat_template": True}}
    assert plan(own, **chat, vary={"non_layer": [rows_from[holder]]}).cells
    told = problem(own, **chat, vary={"non_layer": [rows_from[other]]})
    assert f"{own.parent / other}: its tokenizer has no chat template" in told


def test_lm_evals_own_tasks_are_the_same_whatever_the_folder(plan, shipped):
    both = plan(evaluate={"tasks": ["words", "gsm8k"]}).cells[0].record_keys
    assert list(both) == ["words", "gsm8k"]
    assert (
        plan(shipped, evaluate={"tasks": ["gsm8k"]}).cells[0].record_keys["gsm8k"] == both["gsm8k"]
    )


def test_models_with_a_chat_template_are_noted_where_no_prompt_has_it(plan, own):
    for name in ("math", "base", "swahili"):
        (own.parent / name / "chat_template.jinja").write_text(TEMPLATE)
        notes = [note for note in plan(own).notes if "written with a chat template" in note]
        assert len(notes) == 1
        assert "there is one in math" in notes[0]
        # It recommends nothing: no trial has shown which of the two scores higher.
        assert notes[0].endswith("; evaluate.apply_chat_template: true writes prompts with it")
    chat = {"tasks": ["words"], "apply_chat_template": True}
    assert not any("chat template" in note for note in plan(own, evaluate=chat).notes)


def test_a_metric_that_no_task_has_is_refused_with_the_nearest(plan, experts):
    tasks = {"tasks": ["words"], "benchmarks": ["mgsm"]}
    with pytest.raises(InputError, match=r"report.metric: no task has 'exact_mach'; .*exact_match"):
        plan(experts, **small(tasks, dry=True), report={"metric": "exact_mach"})
    for metric in ("exact_match", "language_fidelity"):
        plan(experts, **small(tasks, dry=True), report={"metric": metric})
