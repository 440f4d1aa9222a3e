"""Study and experts files: form, and every problem at once."""

from pathlib import Path

import pytest

from ablations.study.experts import find_expert, read_experts_file
from ablations.study.files import find_study, load_study, read_study
from layerswap_method.errors import InputError
from tests.study.standins import study_document, write_yaml


def problems_of(tmp_path: Path, **changes: object) -> str:
    with pytest.raises(InputError) as caught:
        load_study(write_yaml(tmp_path / "study.yml", study_document(**changes)))
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


def test_values_keep_their_types(tmp_path: Path) -> None:
    vary = {"bottom_layers": [1], "dtype": ["float32"], "flag": [True], "task_weight": [0.5]}
    study = load_study(write_yaml(tmp_path / "a.yml", study_document(vary=vary)))
    found = [type(value) for value in study.settings()[0].values()]
    assert found == [int, str, bool, float]


def test_every_fault_of_form_is_named_at_once(tmp_path: Path) -> None:
    message = problems_of(
        tmp_path,
        questoin="?",
        baseline=["tiess"],
        evaluate={"tasks": ["words"], "limitt": 3},
        name="Not OK",
    )
    assert "4 problems" in message
    assert "the study has the unknown key 'questoin'; did you mean 'question'?" in message
    assert "evaluate has the unknown key 'limitt'; did you mean 'limit'?" in message
    assert "baseline.0 is 'tiess'; it must be one of" in message
    assert "did you mean 'ties'?" in message
    assert "name is 'Not OK'; write lower-case letters" in message


def test_what_is_sound_in_a_faulty_file_is_kept_for_further_checks(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "study.yml", study_document(questoin="?"))
    found = read_study(path)
    assert len(found.problems) == 1
    assert found.study is not None
    assert found.study.name == "small"


def test_vary_of_another_form_is_explained(tmp_path: Path) -> None:
    assert "vary is a grid" in problems_of(tmp_path, vary={"bottom_layers": 3})


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\0"])
def test_a_file_that_is_no_study_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"study\.yml"):
        read_study(path)


def test_an_unknown_shipped_study_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'layer_count'"):
        find_study("layer_counts")


def test_an_experts_file_may_be_the_bare_mapping(tmp_path: Path) -> None:
    file = read_experts_file(write_yaml(tmp_path / "a.yml", {"math": "x", "swahili": "y"}))
    assert file.experts == {"math": "x", "swahili": "y"}


def test_an_experts_file_names_unknown_keys(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "a.yml", {"experts": {"a": "x"}, "include_paths": "t"})
    with pytest.raises(InputError, match="did you mean 'include_path'"):
        read_experts_file(path)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("./absent", "no such folder"),
        ("runs/pocket/nothing", "layerswap pocket build"),
        ({"train": {"steps": 3}}, "is to be trained"),
        (["x"], "write a folder, a hub id, or base"),
        ("", "write a folder"),
    ],
)
def test_an_expert_that_cannot_be_found_says_why(reference: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_expert("math", {"math": reference}, download=False)


def test_a_hub_id_that_is_not_cached_is_not_downloaded_by_a_dry_run() -> None:
    with pytest.raises(InputError, match="hf download some-org/some-model"):
        find_expert("math", {"math": "some-org/some-model"}, download=False)


def test_an_unknown_expert_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'swahili'"):
        find_expert("swahil", {"swahili": "x", "math": "y"}, download=False)


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
