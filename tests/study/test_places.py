"""Experts: as names or places, from the file they stand in, and varied."""

import shutil

import pytest
import yaml

from ablations.study.cells import Cell
from ablations.study.names import with_names
from tests.report.runs import study_of
from tests.standins.studies import write_yaml
from tests.study.conftest import count_models

NAMES = ("base", "math", "swahili")
POOLS = {"base": "./base", "task": "./math", "language": "./swahili"}
LANGUAGE = {"experts": {"language": ["swahili"]}, "baseline": []}


@pytest.fixture
def work(tmp_path, models, monkeypatch):
    """Return a folder with experts and tasks in `mine`; the working directory is another one."""
    for name in (*NAMES, "math_2", "tasks"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / name).symlink_to(models / name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def placed(work, place="mine/study.yml", **changes):
    """Return the changes of a study whose experts and tasks are places."""
    evaluate = {"tasks": ["words"], "include_path": "tasks"}
    own = {"evaluate": evaluate, "vary": {"bottom_layers": [1]}, "experts": POOLS}
    return {**own, "path": work / place, **changes}


def test_experts_are_paths_from_the_folder_of_their_file(work, models, plan):
    found = plan(None, **placed(work))
    assert {each.folder for each in found.experts.values()} == {models / name for name in NAMES}
    assert found.study.evaluate.include_path == (work / "mine" / "tasks",)
    places = {"math": "math", "base": "./base", "swahili": f"{work}/mine/swahili"}
    file = write_yaml(work / "mine" / "experts.yml", {"experts": places, "include_path": "tasks"})
    found = plan(file, path=work / "study.yml")
    assert found.experts["math"].folder == models / "math"
    assert found.study.evaluate.include_path == (work / "mine" / "tasks",)


def test_the_working_directory_comes_second(work, models, plan):
    for name in (*NAMES, "tasks"):
        shutil.copytree(work / "mine" / name, work / "elsewhere" / name)
    found = plan(None, **placed(work, "study.yml"))
    assert found.experts["math"].folder == work / "elsewhere" / "math"
    assert plan(None, **placed(work)).experts["math"].folder == models / "math"


def test_an_error_names_both_folders_and_no_download(work, problem):
    (work / "mine" / "experts").mkdir()
    pools = {"base": "./base", "task": ["./mth", "experts/math"], "language": "./swahili"}
    told = problem(None, **placed(work, experts=pools))
    looked = f"(looked in {work}/mine and in the current directory, {work}/elsewhere)"
    assert f"./mth: no such folder; did you mean 'math'? {looked}" in told
    assert f"experts/math: no such folder {looked}" in told
    assert "hf download" not in told
    told = problem(None, **placed(work, experts={"base": "bse", "task": "mth", "language": "sw"}))
    assert "the study does not say where bse, mth, sw is: add --experts FILE, or write" in told


def test_a_word_is_a_folder_where_there_is_no_experts_file(work, models, plan):
    """As in a recipe: a folder beside the study, or in the working directory."""
    words = {"base": "base", "task": "math", "language": "swahili"}
    found = plan(None, **placed(work, experts=words)).experts
    assert {name: expert.name for name, expert in found.items()} == {n: n for n in words.values()}
    assert found["math"].folder == models / "math"


def test_an_expert_is_called_by_the_end_of_its_path(work, models, plan):
    """In cells, settings and primary comparisons, as if an experts file named it."""
    vary = [{"experts.task": path, "bottom_layers": 1} for path in ("./math", "./math_2")]
    primary = {"against": ["soup"], "setting": dict(vary[1])}
    changes = {"vary": vary, "baseline": ["soup"], "report": {"primary": primary}}
    found = plan(None, **placed(work, **changes))
    assert [cell.label for cell in found.cells] == [
        "soup math+swahili",
        "soup math_2+swahili",
        "math+swahili layer swap task=math",
        "math_2+swahili layer swap task=math_2",
    ]
    assert found.study.report.primary.setting == found.cells[-1].values
    assert {name: expert.folder for name, expert in found.experts.items()} == {
        name: models / name for name in (*NAMES, "math_2")
    }


def test_models_of_a_recipe_have_names_but_never_those_of_roles():
    """A model ``task`` of a recipe is the expert of each cell."""
    models = [{"model": name} for name in ("task", "./a/other", "./b/task", "named")]
    recipe = {"merge_method": "linear", "models": models, "tokenizer": {"source": "./a/other"}}
    study = study_of(recipe=recipe, experts={"base": "base", "task": "./b/task"})
    named, places = with_names(study, {"named"})
    assert [entry["model"] for entry in named.recipe["models"]] == [
        "task",
        "other",
        "b/task",
        "named",
    ]
    assert named.recipe["tokenizer"] == {"source": "./a/other"}
    assert named.experts.task == ("b/task",)
    assert places == {"other": "./a/other", "b/task": "./b/task"}


def test_a_study_names_its_experts_and_an_experts_file_has_them_elsewhere(work, models, plan):
    pools = {"base": "./base", "task": "mine", "language": "./swahili"}
    pools["places"] = {"mine": "./math"}
    assert plan(None, **placed(work, experts=pools)).experts["mine"].folder == models / "math"
    file = write_yaml(work / "mine" / "experts.yml", {"mine": "./math_2", "swahili": "./base"})
    found = plan(file, **placed(work, experts=pools)).experts
    assert found["mine"].folder == models / "math_2"
    # Another model has the name swahili, so the path is the name of this one.
    assert found["./swahili"].folder == models / "swahili"


def test_the_folder_of_a_study_is_no_part_of_what_identifies_a_score(work, plan):
    keys = [cell.record_keys for cell in plan(None, **placed(work)).cells]
    (work / "mine").rename(work / "moved")
    found = plan(None, **placed(work, "moved/study.yml"))
    assert [cell.record_keys for cell in found.cells] == keys


@pytest.fixture
def measured(experts):
    """Return an experts file in which the task experts have facts."""
    document = yaml.safe_load(experts.read_text())
    for name, facts in (("math", {"divergence": 0.01, "steps": 5}), ("math_2", {"steps": 9})):
        document["experts"][name] = {"path": document["experts"][name], "facts": facts}
    return write_yaml(experts.with_name("measured.yml"), document)


def test_experts_vary_as_parameters_do_and_baselines_are_of_the_same(plan):
    vary = {"experts.task": ["math", "math_2"], "bottom_layers": [1, 2]}
    baseline = ["base", "task_expert", "language_expert", "soup", "ties"]
    found = plan(vary=vary, **{**LANGUAGE, "baseline": baseline})
    assert [cell.label for cell in found.cells] == [
        "base",
        "task expert math",
        "task expert math_2",
        "language expert swahili",
        "soup math+swahili",
        "soup math_2+swahili",
        "TIES math+swahili",
        "TIES math_2+swahili",
        "math+swahili layer swap task=math b=1 u=1",
        "math+swahili layer swap task=math b=2 u=1",
        "math_2+swahili layer swap task=math_2 b=1 u=1",
        "math_2+swahili layer swap task=math_2 b=2 u=1",
    ]
    merged = found.cells[-1]
    assert merged.experts == {"task": "math_2", "language": "swahili", "base": "base"}
    assert merged.recipe.document["models"][0]["model"] == found.experts["math_2"].reference
    assert "experts.task" not in str(merged.recipe.document)
    assert count_models(found) == len(found.cells)


def test_a_setting_may_choose_a_pool_a_single_expert_or_the_base(plan):
    vary = [
        {"experts.task": ["math", "math_2"], "bottom_layers": 1},
        {"experts.task": "base", "bottom_layers": 1},
        {"experts.language": "telugu", "experts.task": "math"},
        {"experts.base": "math", "experts.task": "math_2"},
    ]
    found = plan(
        vary=[{"experts.language": "swahili", **setting} for setting in vary],
        experts={"task": ["math"], "language": {"sw": ["swahili"], "te": ["telugu"]}},
        evaluate={"languages": {"sw": ["words_sw"], "te": ["words_te"]}},
        baseline=["base"],
    )
    assert [(c.label.split()[0], *c.experts.values(), c.language) for c in found.cells] == [
        ("base", "base", None),
        ("base", "math", None),
        ("math+swahili+base", "math", "swahili", "base", "sw"),
        ("math_2+swahili+base", "math_2", "swahili", "base", "sw"),
        ("base+swahili+base", "base", "swahili", "base", "sw"),
        ("math+telugu+base", "math", "telugu", "base", "te"),
        ("math_2+swahili+math", "math_2", "swahili", "math", "sw"),
    ]
    asked = [cell.resolved.chosen for cell in found.cells[2:6]]
    assert asked == [("words_sw",)] * 3 + [("words_te",)]
    assert found.cells[2].facts()["experts.task"] == "math,math_2"


def test_facts_of_the_experts_file_are_in_the_study(plan, measured):
    vary = [{"experts.task": ["math", "math_2"]}, {"experts.task": "math"}]
    found = plan(measured, vary=vary, report={"facts": ["experts.task.steps"]}, **LANGUAGE)
    pool, single = found.study.settings()
    assert found.study.fact("experts.task.steps", pool) == 7.0
    assert found.study.fact("experts.task.divergence", single) == 0.01
    assert found.study.fact("experts.task.divergence", pool) is None
    again = Cell.model_validate_json(found.cells[-2].model_dump_json())
    assert again.values == pool == {"experts.task": ("math", "math_2")}
    without = plan(measured, vary=vary, **LANGUAGE)  # a fact is no protocol
    assert [c.record_keys for c in without.cells] == [c.record_keys for c in found.cells]


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ("experts.task.divergenc", "math, math_2 without it; did you mean 'divergence'? Write it"),
        ("experts.task.divergence", "divergence: math_2 without it. Write it in the experts file"),
        ("experts.task.drift", "math, math_2 without it. It is in the folder of an expert that"),
        ("divergence", "write experts.ROLE.FACT of a role that varies; vary names experts.task"),
    ],
)
def test_facts_that_are_not_there_are_named(problem, measured, fact, message):
    vary = {"experts.task": ["math", "math_2"]}
    assert message in problem(measured, vary=vary, report={"facts": [fact]}, **LANGUAGE)
