"""Groups that lm-eval scores as one are one task: one record, one row, lm-eval's own number."""

import shutil

import pytest
import yaml
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from ablations.engines.task_loading import load_tasks
from ablations.requests.fingerprint import fingerprints_of
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from tests.standins.fresh_engines import evaluate_cold
from tests.standins.live_cells import OPTIONS
from tests.standins.tasks import write_tasks
from tests.standins.word_models import write_model

METRICS = [{"metric": "acc", "weight_by_size": True}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tasks of choices, of 24 and of 9 items, as groups that are one score and that are not."""
    folder = write_tasks(tmp_path_factory.mktemp("groups") / "tasks")
    choose = yaml.safe_load((folder / "words_choose.yaml").read_text())
    rows = (folder / "data.jsonl").read_text().splitlines(keepends=True)
    (folder / "few.jsonl").write_text("".join(rows[:9]))
    files = choose["dataset_kwargs"]["data_files"]
    data = {"data_files": {**files, "test": str(folder / "few.jsonl")}}
    documents = {
        "few": {**choose, "task": "few", "tag": "small", "dataset_kwargs": data},
        "one": {"task": ["words_choose", "small"], "aggregate_metric_list": METRICS},
        "above": {"task": ["one"], "aggregate_metric_list": METRICS},
        "macro": {"aggregate_metric_list": [{"metric": "acc", "weight_by_size": False}]},
        "corpus": {"aggregate_metric_list": [{"metric": "bleu"}]},
        "unsafe": {"aggregate_metric_list": METRICS, "task": ["words_choose", "runs"]},
        "runs": {**choose, "task": "runs", "unsafe_code": True},
        "plain": {},
    }
    for name, document in documents.items():
        group = {} if name in ("few", "runs") else {"group": name, "task": ["words_choose", "few"]}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**group, **document}))
    return folder


def request(folder, *names, **changes):
    return EvaluationRequest(tasks=names, include_path=folder, **changes)


@pytest.mark.parametrize("name", ["macro", "corpus", "plain"])
def test_a_group_that_is_no_mean_over_items_is_its_members(folder, name):
    choice = resolve(request(folder, name))
    assert (choice.chosen, choice.groups) == (("words_choose", "few"), {})


def test_a_group_with_a_task_that_runs_code_is_its_members(folder):
    choice = resolve(request(folder, "unsafe"))
    assert (choice.chosen, [*choice.skipped]) == (("words_choose",), ["runs"])


def test_a_group_is_one_name_and_its_members_are_loaded_once(folder):
    choice = resolve(request(folder, "above", "one", "few"))
    assert choice.chosen == ("above", "one", "few")
    assert {group.members for group in choice.groups.values()} == {("words_choose", "few")}
    tasks = load_tasks(resolve(request(folder, "above", "one")))
    assert [task.task_name for task in tasks] == ["words_choose", "few"]


@pytest.mark.parametrize(
    ("group", "members"), [("mmlu_prox_sw", 14), ("global_mmlu_full_sw", 57), ("mmlu", 57)]
)
def test_lm_evals_groups_are_one(group, members):
    choice = resolve(EvaluationRequest(tasks=(group,)))
    assert choice.chosen == (group,)
    assert len(choice.groups[group].members) == members


def test_the_key_of_a_group_is_that_of_its_members(folder, tmp_path):
    def key():
        return fingerprints_of(request(folder)).fingerprint("one")

    before, file = key(), folder / "few.yaml"
    text = file.read_text()
    file.write_text(text.replace("w1", "w2") + "description: other\n")
    assert key() != before
    file.write_text(text)
    assert key() == before


def test_the_language_of_a_group_is_that_of_its_members(folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "tasks")

    def languages(*codes):
        for task, code in zip(("words_choose", "few"), codes, strict=True):
            file = folder / f"{task}.yaml"
            content = yaml.safe_load(file.read_text())
            content["metadata"] = {"version": 1.0, "language": code}
            file.write_text(yaml.safe_dump(content))
        contents = fingerprints_of(request(folder))
        return [contents.language(task) for task in ("one", "above", "few", "words_generate")]

    assert languages("it", "it") == ["it", "it", "it", None]
    assert languages("it", False) == [None, None, "no", None]
    assert languages(None, None) == [None] * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_group_has_lm_evals_score_and_one_record(folder, tmp_path):
    model = write_model(tmp_path / "model")
    evaluation = evaluate_cold(model, request(folder, "one"), "hf", OPTIONS)
    assert {(s.task, s.metric) for s in evaluation.scores} == {
        ("one", "acc"),
        ("one", "prompt_truncated"),
    }
    assert evaluation.shown_score("one").n == 33
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    arguments = {"model_args": {"pretrained": str(model), "dtype": "float32"}, "device": "cpu"}
    theirs = simple_evaluate(
        "hf", tasks=["one"], task_manager=manager, bootstrap_iters=0, **arguments
    )
    assert evaluation.shown_score("one").value == pytest.approx(
        theirs["results"]["one"]["acc,none"]
    )
    assert [sample.doc_id for sample in evaluation.samples_of("one")] == list(range(33))
    # An item has one number, whatever the limit, in the stored answers as well.
    limited = evaluate_cold(model, request(folder, "one", limit=2), "hf", OPTIONS)
    assert [sample.doc_id for sample in limited.samples_of("one")] == [0, 1, 24, 25]
    by_item = {sample.doc_id: sample.values for sample in evaluation.samples}
    assert all(by_item[sample.doc_id] == sample.values for sample in limited.samples)
    assert set(evaluation.num_fewshot) == set(evaluation.task_versions) == {"one"}
