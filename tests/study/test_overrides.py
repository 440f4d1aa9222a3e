"""What the command line sets in a study: places, types, precedence, and the keys of records."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations.runner.run import default_out
from ablations.study.files import STUDIES, parse_setting, read_study, with_settings
from ablations.study.planning import StudyPlan, plan_study
from layerswap_method.errors import InputError
from tests.standins.studies import study_document, write_yaml


def plan(
    tmp_path: Path, experts: Path, settings: dict[str, Any], /, **changes: object
) -> StudyPlan:
    path = write_yaml(tmp_path / "study.yml", study_document(**changes))
    return plan_study(read_study(path, settings), experts, backend="hf")


def keys_of(found: StudyPlan) -> list[dict[str, str]]:
    return [dict(cell.records) for cell in found.cells]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("evaluate.limit=50", ("evaluate.limit", 50)),
        ("evaluate.limit=null", ("evaluate.limit", None)),
        ("vary.top_layers=[1, 2]", ("vary.top_layers", [1, 2])),
        ("question=a=b", ("question", "a=b")),
    ],
)
def test_values_are_read_as_in_a_file(text: str, expected: tuple[str, Any]) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["evaluate.limit", "=5", "evaluate.limit="])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="write KEY=VALUE"):
        parse_setting(text)


def test_a_setting_reaches_every_kind_of_place() -> None:
    document = study_document(vary=[{"bottom_layers": 0}, {"bottom_layers": 1}])
    settings = {
        "evaluate.options.dtype": "bfloat16",
        "vary.1.bottom_layers": 2,
        "report.facts": ["experts.task.lr"],
        "recipe.parameters.top_layers": 0,
    }
    changed = with_settings(document, settings)
    assert changed["evaluate"]["options"] == {"batch_size": 8, "dtype": "bfloat16"}
    assert changed["vary"] == [{"bottom_layers": 0}, {"bottom_layers": 2}]
    assert changed["report"] == {"facts": ["experts.task.lr"]}
    assert changed["recipe"]["parameters"]["top_layers"] == 0
    assert document["vary"][1] == {"bottom_layers": 1}  # what was read stays as it was


def test_a_varied_name_with_dots_is_one_name() -> None:
    document = study_document(vary={"experts.task": ["math"]})
    changed = with_settings(document, {"vary.experts.task": ["math_2"]})
    assert changed["vary"] == {"experts.task": ["math_2"]}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("evaluate.seed.x", "3 has no keys"),
        ("vary.7.top_layers", "there is no '7' in"),
        ("vary.top.layers", "there is no 'top' in"),
    ],
)
def test_a_place_that_cannot_be_is_refused(key: str, message: str) -> None:
    document = study_document(vary=[{"top_layers": 1}], evaluate={"tasks": ["words"], "seed": 3})
    with pytest.raises(InputError) as caught:
        with_settings(document, {key: 1})
    assert caught.value.message.startswith(f"--set {key}: ")
    assert message in caught.value.message


def test_a_wrong_setting_is_said_to_be_from_the_command_line(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "study.yml", study_document())
    settings = {"evaluate.options.batchsize": 1, "questoin": 1, "evaluate.limit": "many"}
    with pytest.raises(InputError) as caught:
        read_study(path, settings)
    for text in (
        "- --set evaluate.limit: must be a whole number",
        "- --set evaluate.options.batchsize: unknown key; did you mean 'batch_size'?",
        "- --set questoin: unknown key",
    ):
        assert text in caught.value.message


def test_a_setting_has_the_keys_of_a_study_that_says_the_same(
    tmp_path: Path, experts: Path
) -> None:
    evaluate = {"tasks": ["words"], "options": {"batch_size": 8}}
    options = {"batch_size": 2, "dtype": "bfloat16", "max_model_len": 32}
    written = plan(tmp_path, experts, {}, evaluate={**evaluate, "limit": 3, "options": options})
    settings = {f"evaluate.options.{name}": value for name, value in options.items()}
    found = plan(tmp_path, experts, {"evaluate.limit": 3, **settings}, evaluate=evaluate)
    assert found.study == written.study
    assert found.protocol == written.protocol
    assert keys_of(found) == keys_of(written)
    assert keys_of(found) != keys_of(plan(tmp_path, experts, {}, evaluate=evaluate))


def test_command_line_before_study_before_experts_file_before_defaults(
    tmp_path: Path, experts: Path
) -> None:
    document = yaml.safe_load(experts.read_text())
    options = {"batch_size": 3, "dtype": "bfloat16"}
    rich = write_yaml(tmp_path / "rich.yml", {**document, "limit": 5, "options": options})
    bare = {"tasks": ["words"]}

    def found(settings: dict[str, Any], evaluate: dict[str, Any]) -> tuple[Any, ...]:
        asked = plan(tmp_path, rich, settings, evaluate=evaluate).study.evaluate
        return (
            asked.limit,
            asked.options.batch_size,
            asked.options.dtype,
            asked.options.kv_cache_gib,
        )

    assert found({}, bare) == (5, 3, "bfloat16", 4)
    said = {**bare, "limit": None, "options": {"batch_size": 4}}
    assert found({}, said) == (None, 4, "bfloat16", 4)
    line = {"evaluate.limit": 2, "evaluate.options.dtype": "float32"}
    assert found(line, said) == (2, 4, "float32", 4)
    assert found(line, bare) == (2, 3, "float32", 4)


def test_tasks_of_the_command_line_go_before_those_of_the_experts_file(
    tmp_path: Path, experts: Path
) -> None:
    document = {**yaml.safe_load(experts.read_text()), "tasks": ["words_te"]}
    rich = write_yaml(tmp_path / "rich.yml", document)
    assert plan(tmp_path, rich, {}).cells[0].request.tasks == ("words_te",)
    settings = {"evaluate.tasks": ["words_sw"]}
    assert plan(tmp_path, rich, settings).cells[0].request.tasks == ("words_sw",)


def test_a_recipe_without_a_dtype_is_merged_in_the_stated_one(
    tmp_path: Path, experts: Path
) -> None:
    recipe = study_document()["recipe"]
    del recipe["dtype"]
    stated = plan(tmp_path, experts, {"evaluate.options.dtype": "bfloat16"}, recipe=recipe)
    assert stated.study.recipe["dtype"] == "bfloat16"
    assert "dtype" not in plan(tmp_path, experts, {}, recipe=recipe).study.recipe
    own = plan(tmp_path, experts, {"evaluate.options.dtype": "bfloat16"})
    assert own.study.recipe["dtype"] == "float32"


def test_what_changes_scores_is_in_the_name_of_the_folder() -> None:
    settings = {
        "evaluate.limit": 5,
        "evaluate.options.max_model_len": 64,
        "evaluate.options.kv_cache_gib": 1,
        "evaluate.data_dir": "/data",
    }
    assert default_out("x", None, settings) == Path("runs/x-limit-5-max-model-len-64")
    assert default_out("x", Path("a/mine.yml"), {}) == Path("runs/x-mine")
    many = {"evaluate.tasks": [f"a_long_name_{i}" for i in range(9)]}
    assert len(default_out("x", None, many).name) < 20


FIT_ONE_MACHINE = ("gpu_memory_utilization", "kv_cache_gib", "dtype", "limit")


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yml")), ids=lambda path: path.stem)
def test_a_shipped_study_holds_nothing_that_only_fits_the_pocket(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    evaluate = document["evaluate"]
    said = {*document.get("recipe", {}), *evaluate, *evaluate.get("options", {})}
    assert not said & set(FIT_ONE_MACHINE)
