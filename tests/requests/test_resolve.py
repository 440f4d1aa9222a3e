"""Which tasks a request means, on lm-eval's index of real task files."""

import pickle

import pytest
import yaml

from ablations.engines.task_loading import load_tasks
from ablations.requests import known_tasks
from ablations.requests.resolve import NEEDS_CODE_EXECUTION, NEEDS_NO_SANDBOX, resolve
from ablations.scoring.evaluation import EvaluationRequest
from layerswap_method.errors import InputError
from tests.standins.tasks import write_rows, write_task, write_tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three tasks, an unsafe one whose mark stands in an included file, groups and a tag."""
    folder = write_tasks(tmp_path_factory.mktemp("choice") / "tasks", items=4)
    generate = yaml.safe_load((folder / "words_generate.yaml").read_text())
    (folder / "_unsafe").write_text(yaml.safe_dump({**generate, "unsafe_code": True}))
    files = {
        "words_run": {"task": "words_run", "tag": "coded", "include": "_unsafe"},
        "words_all": {"group": "words_all", "task": ["words_said", "words_run"]},
        "words_said": {"group": "words_said", "task": ["words_generate", "words_translate"]},
        "words_odd": {"group": "words_odd", "task": [{"task": "words_choose", "num_fewshot": 1}]},
    }
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def _names(folder, *names, held=None):
    request = EvaluationRequest(tasks=names, include_path=folder, isolation=held)
    resolved = resolve(request)
    return [task.task_name for task in load_tasks(resolved)], resolved.skipped


@pytest.mark.parametrize(
    ("names", "asked", "skipped"),
    [
        (["words_all"], ["words_generate", "words_translate"], ["words_run"]),
        (  # a task of two names is asked once
            ["words_said", "words_translate", "words_all", "words_choose"],
            ["words_generate", "words_translate", "words_choose"],
            ["words_run"],
        ),
        (["coded"], [], ["words_run"]),
    ],
)
def test_groups_are_taken_apart_and_what_runs_code_is_left_out(folder, names, asked, skipped):
    for held in (None, "bwrap"):  # no sandbox holds what a task executes by itself
        assert _names(folder, *names, held=held) == (
            asked,
            dict.fromkeys(skipped, NEEDS_NO_SANDBOX),
        )
    every, none = _names(folder, *names, held="none")  # where code may be run
    assert (set(every), none) == ({*asked, *skipped}, {})


def test_programs_of_lm_evals_own_tasks_are_not_called_sandboxed():
    names = ("layerswap_mbpp_en", "longproc_pseudo_to_code_2k", "cruxeval_input")
    request = EvaluationRequest(tasks=names)
    ours, *theirs = names
    needs_all = dict.fromkeys(theirs, NEEDS_NO_SANDBOX)
    for isolation, chosen, skipped in (
        (None, (), {ours: NEEDS_CODE_EXECUTION, **needs_all}),
        ("bwrap", (ours,), needs_all),
        ("none", names, {}),
    ):
        choice = resolve(request.model_copy(update={"isolation": isolation}))
        assert (choice.chosen, choice.skipped) == (chosen, skipped)


def test_a_group_with_settings_is_refused_before_anything_is_asked(folder):
    request = EvaluationRequest(tasks=("words_odd", "words_said"), include_path=folder)
    with pytest.raises(InputError, match=r"group 'words_odd' .* in their own files \(words_choose"):
        resolve(request)
    plain = EvaluationRequest(tasks=("words_said",), include_path=folder)
    assert resolve(plain).chosen == ("words_generate", "words_translate")


def test_what_is_missing_is_named(folder, tmp_path):
    def refused(step, match, **changes):
        given = {"tasks": ("words_choose",), "include_path": folder, **changes}
        with pytest.raises(InputError, match=match):
            step(EvaluationRequest(**given))

    def load(request):
        load_tasks(resolve(request))

    refused(load, r"none: no such folder of task data", data_dir=tmp_path / "none")
    refused(resolve, "no such folder of lm-eval task files", include_path=tmp_path / "none")
    refused(resolve, "has no lm-eval task file", include_path=tmp_path)
    broken = write_tasks(tmp_path / "broken", items=4)
    (broken / "data.jsonl").unlink()
    unread = r"task words_choose: its data cannot be read: .*data\.jsonl'"
    refused(load, unread, include_path=broken)


def test_a_task_of_several_folders_is_that_of_the_first(tmp_path):
    for name, prompts in (("one", ["w1"]), ("two", ["w2", "w3"])):
        folder = tmp_path / name
        data = write_rows(folder, [{"prompt": prompt, "answer": "w1"} for prompt in prompts])
        write_task(folder, "both", data)
        write_task(folder, f"only_{name}", data)
    names = ("both", "only_one", "only_two")
    for order, sizes in ((("one", "two"), [1, 1, 2]), (("two", "one"), [2, 1, 2])):
        folders = tuple(tmp_path / name for name in order)
        tasks = load_tasks(resolve(EvaluationRequest(tasks=names, include_path=folders)))
        assert [len(task.eval_docs) for task in tasks] == sizes
    (tmp_path / "none").mkdir()
    folders = (tmp_path / "one", tmp_path / "none")
    with pytest.raises(InputError, match=r"none: has no lm-eval task file"):
        resolve(EvaluationRequest(tasks=("layerswap_mgsm_sw",), include_path=folders))
    with pytest.raises(InputError, match=r"unknown task 'only_tow'; did you mean 'only_one'"):
        resolve(EvaluationRequest(tasks=("only_tow",), include_path=tmp_path / "one"))


def test_without_a_folder_a_wrong_name_reminds_of_include_path():
    with pytest.raises(InputError) as caught:
        resolve(EvaluationRequest(tasks=("my_story_task", "gms8k", "layerswp_mgsm_sw")))
    message = caught.value.message
    assert "unknown task 'my_story_task'\n" in message  # nothing is near
    assert "unknown task 'gms8k'; did you mean 'gsm8k'?" in message
    assert "unknown task 'layerswp_mgsm_sw'; did you mean 'layerswap_mgsm_sw'?" in message
    assert "a folder that --include-path names" in message


def test_tasks_of_a_folder_need_no_index_of_lm_evals(tmp_path, monkeypatch):
    tasks = write_tasks(tmp_path / "tasks", items=4)
    monkeypatch.setattr(known_tasks, "_lm_eval_entries", lambda: pytest.fail("it was read"))
    request = EvaluationRequest(tasks=("words_generate",), include_path=tasks)
    assert resolve(request).known is resolve(request).known
    write_task(tasks, "more", tasks / "data.jsonl", doc_to_text="{{prompt}}")
    assert resolve(request.model_copy(update={"tasks": ("more",)})).chosen == ("more",)


def test_tasks_are_made_of_what_was_resolved_in_another_process_too(tmp_path, monkeypatch):
    """A worker looks no name up again, whatever the files and the index say by then."""
    tasks = write_tasks(tmp_path / "tasks", items=4)
    request = EvaluationRequest(tasks=("words_generate", "words_choose"), include_path=tasks)
    resolved = pickle.loads(pickle.dumps(resolve(request)))
    for file in tasks.glob("*.yaml"):
        file.unlink()
    monkeypatch.setattr(known_tasks, "_lm_eval_entries", lambda: pytest.fail("it was read"))
    (task,) = load_tasks(resolved.only("words_generate"))
    assert (task.task_name, len(task.eval_docs)) == ("words_generate", 4)


def test_lm_evals_own_tasks_groups_and_tags_are_names_too(folder):
    wanted = ("words_generate", "gsm8k", "arc_easy", "layerswap_mgsm_sw")
    request = EvaluationRequest(tasks=wanted, include_path=folder)
    assert resolve(request).chosen == wanted
    tag = request.model_copy(update={"tasks": ("ai2_arc",)})
    assert resolve(tag).chosen == ("arc_challenge", "arc_easy")
    with pytest.raises(InputError) as caught:
        resolve(request.model_copy(update={"tasks": ("gsm9k", "words_genrate")}))
    for text in (
        "unknown task 'gsm9k'; did you mean 'gsm",
        "unknown task 'words_genrate'; did you mean 'words_generate'?",
        "alid are coded, words_all, words_choose, words_generate",
    ):
        assert text in caught.value.message


def test_a_name_of_lm_evals_that_is_near_one_of_the_folder_is_no_slip(tmp_path):
    folder = tmp_path / "tasks"
    data = write_rows(folder, [{"prompt": "w1", "answer": "w1"}])
    for name in ("somma_it", "gsm8k_it"):
        write_task(folder, name, data)
    both = EvaluationRequest(tasks=("gsm8k", "somma_it"), include_path=folder)
    assert resolve(both).chosen == ("gsm8k", "somma_it")
    for names in (("soma_it",), ("somma_itt", "gsm8k", "somma_it")):
        request = EvaluationRequest(tasks=names, include_path=folder)
        with pytest.raises(InputError, match=f"'{names[0]}'; did you mean 'somma_it'") as caught:
            resolve(request)
        assert "unknown task 'gsm8k'" not in caught.value.message
