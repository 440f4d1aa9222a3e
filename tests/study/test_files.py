"""Study and experts files: form, and every problem at once."""

from pathlib import Path

import pytest

from ablations.models.find import find_expert, find_model
from ablations.study.checks import study_problems
from ablations.study.experts import find_experts_file, read_experts_file
from ablations.study.files import STUDIES, find_study, read_study
from ablations.study.schema import Study
from layerswap_method.errors import InputError
from tests.standins.studies import study_document, write_yaml


def load_study(path: Path) -> Study:
    return read_study(path).study


def problems_of(tmp_path: Path, **changes: object) -> str:
    with pytest.raises(InputError) as caught:
        read_study(write_yaml(tmp_path / "study.yml", study_document(**changes)))
    return caught.value.message


def test_a_grid_is_crossed_and_a_list_is_taken_as_it_is(tmp_path: Path) -> None:
    grid = load_study(write_yaml(tmp_path / "a.yml", study_document()))
    assert [tuple(setting.values()) for setting in grid.settings()] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    listed = [{"bottom_layers": 3, "top_layers": 1}, {"placement": "middle"}]
    study = load_study(write_yaml(tmp_path / "b.yml", study_document(vary=listed)))
    assert list(study.settings()) == listed


def test_every_fault_of_form_is_named_at_once(tmp_path: Path) -> None:
    message = problems_of(
        tmp_path,
        questoin="?",
        baseline=["tiess"],
        evaluate={"tasks": ["words"], "limitt": 3},
        name="Not OK",
    )
    assert "4 problems" in message
    assert "questoin: unknown key; did you mean 'question'?" in message
    assert "evaluate.limitt: unknown key; did you mean 'limit'?" in message
    assert "baseline[0]: must be" in message
    assert "did you mean 'ties'?" in message
    assert "name: " in message
    assert "'Not OK'" in message


FORMS = [
    ({"experts": None}, "experts"),
    ({"experts": {"task": ["x"], "language": {"sw": []}}}, "experts.language.sw"),
    ({"evaluate": {"tasks": "words"}}, "evaluate.tasks: must be a list"),
    ({"evaluate": {"tasks": ["x"], "limit": 0}}, "evaluate.limit: must be 1 or more, not 0"),
    ({"evaluate": {"tasks": ["x"], "level": 1}}, "evaluate.level: must be less than 1, not 1"),
    ({"recipe": {5: 6}}, "recipe"),
    ({"vary": {"bottom_layers": [None]}}, "vary.bottom_layers"),
    ({"vary": {"bottom_layers": 3}}, "vary.bottom_layers"),
]


def test_a_grid_that_nobody_can_run_is_refused_before_it_is_built(tmp_path: Path) -> None:
    vary = {f"bottom_layers_{i}": list(range(60)) for i in range(5)}
    assert "vary has 777,600,000 settings, and 10,000 are" in problems_of(tmp_path, vary=vary)


@pytest.mark.parametrize(("changes", "message"), FORMS)
def test_one_fault_is_one_message_in_our_words(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    told = problems_of(tmp_path, **changes)
    assert told.startswith(f"{tmp_path / 'study.yml'}: {message}")
    assert "Input should" not in told


def test_a_recipe_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    document = study_document()
    write_yaml(tmp_path / "recipes" / "swap.yml", document["recipe"])
    there = study_document(recipe="../recipes/swap.yml")
    found = load_study(write_yaml(tmp_path / "studies" / "a.yml", there))
    assert found == load_study(write_yaml(tmp_path / "studies" / "b.yml", document))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "swap.yml: no such file; write a path from the folder of the study file (or"),
        ("[1]", "swap.yml: is not a recipe; a recipe has merge_method:"),
        ("dtype: float32\ndtype: bfloat16", "swap.yml: line 2 has the key 'dtype' again"),
    ],
)
def test_a_recipe_file_that_is_none_is_named_with_the_other_faults(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "swap.yml").write_text(content)
    told = problems_of(tmp_path, recipe="swap.yml", questoin="?")
    assert "2 problems" in told
    assert f"  - recipe: {tmp_path}/{message}" in told
    assert "questoin: unknown key" in told


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\0", "", "name: a\nname: b", "a: 2024-99-99"])
def test_a_file_that_is_no_study_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"study\.yml"):
        read_study(path)


def test_a_file_of_another_kind_is_told_what_it_is(tmp_path: Path) -> None:
    recipe = write_yaml(tmp_path / "recipe.yml", {"merge_method": "linear", "models": []})
    experts = write_yaml(tmp_path / "experts.yml", {"experts": {"math": "./math"}, "limit": 3})
    for path in (recipe, experts):
        with pytest.raises(InputError, match=r"is not a study; .*init study"):
            read_study(path)


def test_a_folder_is_no_study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="is a folder; name the study file in it"):
        find_study(str(tmp_path))
    with pytest.raises(InputError, match="no such study file"):
        find_study("x" * 300)
    (tmp_path / "layer_count").mkdir()  # the run of a shipped study, say
    monkeypatch.chdir(tmp_path)
    assert find_study("layer_count").name == "layer_count.yml"


def test_an_experts_file_is_found_by_its_path_or_its_shipped_name(tmp_path: Path) -> None:
    assert find_experts_file("pocket") == STUDIES / "experts" / "pocket.yml"
    own = write_yaml(tmp_path / "mine.yml", {"math": "x"})
    assert find_experts_file(str(own)) == own
    with pytest.raises(InputError, match=r"no such experts file .* did you mean 'pocket'\?"):
        find_experts_file("pockett")


def test_what_training_measured_is_a_fact_and_what_is_written_wins(tmp_path: Path) -> None:
    (tmp_path / "math").mkdir()
    record = tmp_path / "math" / "training.json"
    record.write_text('{"facts": {"drift": 0.2, "relative_norm": 0.1}}')
    written = {"path": "base+math", "facts": {"drift": 0.3}}
    path = write_yaml(tmp_path / "experts.yml", {"experts": {"a": written, "b": "./none"}})
    assert read_experts_file(path).facts() == {"a": {"drift": 0.3, "relative_norm": 0.1}}
    record.write_text("{")
    with pytest.raises(InputError, match=r"training.json: cannot be read"):
        read_experts_file(path)


def test_an_experts_file_names_unknown_keys(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "a.yml", {"experts": {"a": "x"}, "include_paths": "t"})
    with pytest.raises(InputError, match="did you mean 'include_path'"):
        read_experts_file(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no expert; write NAME: FOLDER"),
        ("[1]", "names no expert"),
        ("experts: {}", "experts is empty"),
        ("no: x", "experts"),
        ("math: x\nmath: y", "line 2 has the key 'math' again"),
    ],
)
def test_an_experts_file_that_is_none_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "experts.yml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_experts_file(tmp_path / "experts.yml")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("./absent", "no such folder"),
        ("runs/pocket/nothing", "layerswap pocket build"),
        ("runs/pocket_experts/math_1", r"make pocket-experts .* makes it here"),
        ("runs/smol_experts/fr_1", "make real-model"),
        (["x"], "write a folder, a hub id, or base"),
        ("", "write a folder"),
        ("x" * 300, "no such folder"),
        ("runs/" + "x" * 300 + "/y", "no such folder"),
    ],
)
def test_an_expert_that_cannot_be_found_says_why(reference: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_expert("math", {"math": reference}, download=False)


def test_a_file_in_place_of_a_folder_names_the_folder(tmp_path: Path) -> None:
    weights = tmp_path / "base" / "model.safetensors"
    weights.parent.mkdir()
    weights.touch()
    with pytest.raises(InputError) as caught:
        find_expert("math", {"math": str(weights)}, download=False)
    told = f"{weights}: is a file; write its folder, {weights.parent}"
    assert caught.value.message == f"expert 'math': {told}"
    with pytest.raises(InputError) as caught:  # as `layerswap delta --base` asks
        find_model(str(weights), download=False)
    assert caught.value.message == told


def test_a_hub_id_that_is_not_cached_is_not_downloaded_by_a_dry_run() -> None:
    with pytest.raises(InputError, match="hf download some-org/some-model"):
        find_expert("math", {"math": "some-org/some-model"}, download=False)


def test_a_base_with_an_adapter(tmp_path: Path) -> None:
    for name in ("base", "adapter"):
        (tmp_path / name).mkdir()
    known = {"lora": f"{tmp_path / 'base'}+{tmp_path / 'adapter'}"}
    with pytest.raises(InputError, match=r"no adapter_config\.json"):
        find_expert("lora", known, download=False)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "adapter" / file).write_text("{}")
    expert = find_expert("lora", known, download=False)
    assert expert.folder == tmp_path / "base"
    assert expert.adapter == tmp_path / "adapter"
    assert expert.reference == known["lora"]


def test_primary_comparisons_name_what_the_study_has(tmp_path: Path) -> None:
    primary = {
        "against": ["soup", "better_expert", "first_setting"],
        "setting": {"bottom_layers": 7},
        "contrasts": [[2, 1]],
    }
    document = study_document(
        report={"primary": primary}, baseline=["base"], vary={"bottom_layers": [1]}
    )
    study = load_study(write_yaml(tmp_path / "bad.yml", document))
    message = "\n".join(study_problems(study))
    assert "report.primary.against names soup; add it to baseline" in message
    assert "names better_expert; add task_expert or language_expert to baseline" in message
    assert "names first_setting; vary has no second setting" in message
    assert "report.primary.setting is not a setting of vary, which begins with {" in message
    assert "contrasts has [2, 1]; write the numbers of two settings of vary, from 1 to 1" in message
    block = {"primary": {"against": ["soup"], "parameters": ["botom_layers"]}}
    document = study_document(report=block, baseline=["soup"], vary={"bottom_layers": [1, 2]})
    study = load_study(write_yaml(tmp_path / "misspelt.yml", document))
    message = "\n".join(study_problems(study))
    assert (
        "names 'botom_layers', which vary does not have; did you mean 'bottom_layers'?" in message
    )
    assert "is about first_setting; add it to report.primary.against" in message
    message = problems_of(tmp_path, report={"primary": {"against": ["better_expret"]}})
    assert "did you mean 'better_expert'?" in message
    both = {"bottom_layers": [1, 2]}
    found = write_yaml(
        tmp_path / "good.yml",
        study_document(
            report={"primary": {"against": ["soup"], "setting": {"bottom_layers": 2}}},
            baseline=["soup"],
            vary=both,
        ),
    )
    assert load_study(found).report.primary.setting == {"bottom_layers": 2}
