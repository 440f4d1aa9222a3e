"""From a study to cells: dedup, keys, and every problem in one error. Real headers, no engine."""

import re
import shutil

import pytest
import torch
import yaml

import layerswap_method
from ablations.engines import vllm_engine
from ablations.study import identity
from ablations.study.describe import describe_study_plan
from layerswap_method.errors import size_text
from layerswap_method.tensors import OpenModel
from tests.standins.fine_tunes import edited, save_adapter
from tests.standins.studies import study_document, write_expert, write_task, write_yaml
from tests.study.conftest import count_models

RECIPE = study_document()["recipe"]
MODELS = [{"model": "task"}, {"model": "language"}]
CODES = {"sw": ["swahili"], "te": ["telugu"]}
REVERT = {"merge_method": "delta_revert", "models": MODELS[:1], "base_model": "base"}


def keys_of(found):
    return {key for cell in found.cells for key in cell.record_keys.values()}


def test_equal_weights_are_found_and_evaluated_once(plan):
    found = plan()
    by_label = {cell.label: cell for cell in found.cells}
    task, nothing = by_label["task expert"], by_label["layer swap b=0 u=0"]
    assert task.weights_key == nothing.weights_key
    assert task.record_keys == nothing.record_keys
    assert (len(found.cells), count_models(found)) == (6, 5)
    assert any("the same weights" in note and "task expert" in note for note in found.notes)
    parameters = {"bottom_layers": 1, "top_layers": 1}  # an averaged embedding is another model
    assert count_models(plan(recipe=RECIPE | {"parameters": parameters})) == 6
    vary = {"placement": ["outer", "middle"], "seed": [0, 1], "bottom_layers": [4]}
    recipe = RECIPE | {"parameters": {"top_layers": 0}}
    found = plan(vary=vary, recipe=recipe, baseline=[])  # all layers, wherever they are
    assert (len(found.cells), count_models(found)) == (4, 1)


def test_an_experts_file_of_other_names_is_noted(plan, models):
    experts = (("base", "base"), ("task", "math"), ("language", "swahili"))
    pools = {role: str(models / name) for role, name in experts}
    assert any("names none of the study's experts" in note for note in plan(experts=pools).notes)
    assert not any("names none" in note for note in plan().notes)


def test_what_a_merge_warns_of_is_noted_once_of_a_study(plan, own):
    shutil.rmtree(own.parent / "math")
    shutil.copytree(own.parent / "base", own.parent / "math")
    notes = plan(own, vary={"bottom_layers": [1, 2, 3]}).notes  # the last swaps every layer
    assert len([note for note in notes if "math changes nothing" in note]) == 1
    assert len([note for note in notes if "base is not the base of swahili" in note]) == 1
    assert not any("more than half of the model" in note for note in notes)


def test_each_expert_is_opened_once_for_all_cells(plan, models, monkeypatch):
    opened, read = [], OpenModel.read
    monkeypatch.setattr(OpenModel, "read", lambda model: opened.append(model.folder) or read(model))
    found = plan(vary={"bottom_layers": [0, 1, 2]})
    assert len(found.merges) > 3
    assert sorted(opened) == [models / name for name in ("base", "math", "swahili")]


def test_a_model_that_transformers_does_not_know_is_the_engines_to_name(plan, own):
    edited(own.parent / "base", "config.json", model_type="nosuch")
    evaluate = {"tasks": ["words"], "options": {"max_model_len": 9}}
    plan(own, recipe=None, vary=None, baseline=["base"], evaluate=evaluate)


def test_a_stored_dtype_written_out_is_no_change_and_another_is(plan):
    vary = {"dtype": ["float32", "bfloat16"], "bottom_layers": [0], "top_layers": [0]}
    base, task, same, other = plan(vary=vary).cells
    assert task.weights_key == same.weights_key
    assert len({base.weights_key, task.weights_key, other.weights_key}) == 3


def test_a_changed_protocol_changes_every_key_and_nothing_else_does(plan, experts):
    first, same = plan(), {"tasks": ["words"], "options": {"batch_size": 8}}
    keys = keys_of(first)
    drawn = {"gen_kwargs": {"temperature": 0.6}, "repeats": 2}
    for changes in ({"limit": 4}, {"seed": 1}, {"options": {"batch_size": 4}}, drawn):
        changed = plan(evaluate=same | changes)
        assert changed.protocol_key != first.protocol_key
        assert not keys & keys_of(changed)
    assert {cell.resolved.request.repeats for cell in changed.cells} == {2}
    memory = {"options": {"batch_size": 8, "gpu_memory_utilization": 0.3}}
    for changes in ({}, {"tasks": ["words", "words_sw"]}, memory):
        assert keys <= keys_of(plan(evaluate=same | changes))
    # A setting has the keys of a study that says the same.
    options = {"batch_size": 2, "dtype": "bfloat16", "max_model_len": 32}
    written = plan(evaluate={**same, "limit": 3, "options": options})
    settings = {f"evaluate.options.{name}": value for name, value in options.items()}
    found = plan(experts, {"evaluate.limit": 3, **settings}, evaluate=same)
    assert (found.study, found.protocol_key) == (written.study, written.protocol_key)
    assert keys_of(found) == keys_of(written)


def test_a_task_is_its_yaml_and_data_wherever_they_are(plan, tmp_path, models, experts):
    folder = shutil.copytree(models / "tasks", tmp_path / "tasks")
    document = yaml.safe_load(experts.read_text())
    del document["include_path"]
    moved = write_yaml(tmp_path / "moved.yml", document)
    for task in ("words", "words_sw"):
        write_task(folder, task, folder / "data.jsonl")

    def keys(place):
        asked = {"tasks": ["words", "words_sw"], "include_path": str(place)}
        cells = plan(moved, evaluate=asked).cells
        return {task: {c.record_keys[task] for c in cells} for task in ("words", "words_sw")}

    first = keys(models / "tasks")
    assert keys(folder) == first
    for name in ("README.md", "functions.py"):
        (folder / name).write_text("Words.")
    file = folder / "words.yaml"
    file.write_text(f"# A comment.\n{file.read_text()}")
    assert keys(folder) == first
    file.write_text(file.read_text().replace("max_gen_toks: 4", "max_gen_toks: 5"))
    assert not keys(folder)["words"] & first["words"]
    assert keys(folder)["words_sw"] == first["words_sw"]
    (folder / "data.jsonl").write_text((folder / "data.jsonl").read_text().replace("w1", "w2"))
    assert not keys(folder)["words_sw"] & first["words_sw"]
    file.write_text(f"{file.read_text()}custom_dataset: !function functions.load\n")
    second = keys(folder)["words"]
    (folder / "rows.txt").write_text("read by that function")
    assert not keys(folder)["words"] & second


def test_versions_of_the_code_change_what_they_are_about(plan, monkeypatch):
    changes = {"baseline": ["base", "soup"], "vary": {"non_layer": ["task", "average"]}}
    before = {cell.label: cell for cell in plan(**changes).cells}
    monkeypatch.setattr(layerswap_method, "METHOD_VERSION", 99)
    after = {cell.label: cell for cell in plan(**changes).cells}
    same = {label for label in before if before[label].weights_key == after[label].weights_key}
    assert same == {
        "base",
        "layer swap non_layer=task",
    }  # nothing is computed there: tensors are copied
    monkeypatch.setattr(identity, "SCORING_VERSION", 99)
    scored = {cell.label: cell for cell in plan(**changes).cells}
    for label, cell in scored.items():
        assert cell.weights_key == after[label].weights_key
        assert not set(cell.record_keys.values()) & set(after[label].record_keys.values())


def test_other_weights_change_the_keys_of_what_is_made_of_them(plan, own):
    before = {cell.label: cell.record_keys for cell in plan(own).cells}
    write_expert(own.parent / "swahili", seed=99)
    after = {cell.label: cell.record_keys for cell in plan(own).cells}
    same = {label for label in before if before[label] == after[label]}
    assert same == {"base", "task expert", "layer swap b=0 u=0"}


def test_any_parameter_of_another_method_can_be_varied(plan):
    models = [each | {"parameters": {"density": 0.2, "weight": 1.0}} for each in MODELS]
    ties = {"merge_method": "ties", "models": models, "base_model": "base"}
    vary = {"lambda": [0.5, 1.0], "models.0.parameters.density": [0.2, 0.5]}
    found = plan(vary=vary, recipe=ties | {"parameters": {"lambda": 1.0}}, baseline=[])
    last = found.cells[-1].recipe.document
    assert last["parameters"] == {"lambda": 1.0}
    assert [each["parameters"]["density"] for each in last["models"]] == [0.5, 0.2]
    assert count_models(found) == 4


def test_the_cost_counts_what_is_left(plan):
    found = plan(baseline=["base", "ties"])
    tasks = {key: task for cell in found.cells[1:] for task, key in cell.record_keys.items()}
    for materialize, missing, evaluations, checkpoints in (
        (False, None, 6, 1),
        (True, tasks, 5, 5),
    ):
        text = describe_study_plan(found, found.cells, materialize=materialize, missing=missing)
        assert f"cost: {evaluations} evaluations for 6 cells" in text
        assert f"models to load: {evaluations}" in text
        assert f"checkpoints written to disk: {checkpoints} (" in text


def test_what_vllm_does_on_a_gpu_is_said(plan, monkeypatch):
    """How its engine starts, and that it computes attention of float32 in less."""

    def text_of(backend, version, dtype):
        monkeypatch.setattr(vllm_engine, "installed_version", lambda: version)
        evaluate = {"tasks": ["words"], "options": {"dtype": dtype}}
        found = plan(how={"backend": backend}, evaluate=evaluate)
        return describe_study_plan(found, found.cells, materialize=False)

    on_a_gpu = text_of("vllm", "0.32.0", "float32")
    assert on_a_gpu.count("note: the models are float32, and on a GPU vLLM computes") == 1
    assert max(len(line) for line in on_a_gpu.partition("cells (")[0].splitlines()) <= 100
    assert "\n  engine: vLLM 0.32.0, compiled with CUDA graphs (the default" in on_a_gpu
    on_cpu = text_of("vllm", "0.32.0+cpu", "float32")
    assert "\n  engine: vLLM 0.32.0+cpu, eager (the default on CPU" in on_cpu
    by_transformers = text_of("hf", "0.32.0", "float32")
    assert "\n  engine: HF transformers " in by_transformers
    for text in (on_cpu, by_transformers, text_of("vllm", "0.32.0", "bfloat16")):
        assert "TF32" not in text


def test_a_study_runs_all_of_its_models_in_one_dtype(plan, own):
    shutil.rmtree(own.parent / "base")
    write_expert(own.parent / "base", 0, dtype=torch.float16)
    found = plan(own, baseline=["base", "task_expert", "ties"])
    assert found.options.dtype == found.study.evaluate.options.dtype == "float16"
    text = describe_study_plan(found, found.cells, materialize=False)
    assert "on hf in float16" in text
    assert "models to load: 7" in text
    size = size_text(4 * found.num_weights)  # written in the recipe's float32
    assert f"checkpoints written to disk: 1 ({size} in all" in text
    other = plan(own, evaluate={"tasks": ["words"], "options": {"dtype": "float32"}})
    assert other.options.dtype == "float32"
    assert not keys_of(found) & keys_of(other)
    # A recipe without a dtype is merged in the stated one.
    bare = {key: value for key, value in RECIPE.items() if key != "dtype"}
    stated = {"evaluate.options.dtype": "bfloat16"}
    assert plan(own, stated, recipe=bare).study.recipe["dtype"] == "bfloat16"
    assert "dtype" not in plan(own, recipe=bare).study.recipe
    assert plan(own, stated).study.recipe["dtype"] == "float32"


def test_every_problem_of_the_files_comes_in_one_error(problem):
    told = problem(
        vary={"botom_layers": [1]},
        experts={"task": ["mathh"], "language": ["swahili"]},
        evaluate={"tasks": ["wrods"]},
    )
    assert "3 problems" in told
    assert "parameters.botom_layers: unknown key; did you mean 'bottom_layers'?" in told
    assert told.endswith("no expert 'mathh' in the experts file; did you mean 'math'?")
    assert "unknown task 'wrods'; did you mean 'words'?" in told


@pytest.mark.parametrize("dry", [True, False])
def test_models_that_no_cache_has_are_said_in_one_form(tmp_path, models, problem, dry):
    """The first is looked for on the hub, unlike those after it; the experts file names all."""
    names = ("base", "math", "swahili")
    places = {name: f"org/{name}-1b" for name in names}
    file = {"experts": places, "include_path": str(models / "tasks")}
    told = problem(write_yaml(tmp_path / "hub.yml", file), how={"dry": dry})
    lines = [line for line in told.splitlines() if "org/" in line]
    forms = {line.replace(name, "NAME") for name, line in zip(names, lines, strict=True)}
    (form,) = forms
    assert form.startswith(
        f"  - {tmp_path / 'hub.yml'}: expert 'NAME': org/NAME-1b: no such folder ("
    )
    assert "), and the hub's cache does not have it (HF_HUB_OFFLINE is set); this gets it: " in form
    assert "hf download org/NAME-1b --include '*.safetensors' --include" in form
    assert re.search(r"( --include '[^']+')+$", form)
    assert "--include 'vocab*'" in form


VARIED = {"vary": {"out_dtype": ["float32"]}}
NO_ROLE = "name an expert, or name experts.task in every setting of vary"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": {"models": None}, **VARIED}, "layer_swap recipe"),
        ({"recipe": {"merge_method": "layerswap"}, **VARIED}, "did you mean 'layer_swap'?"),
        (
            {"recipe": {"models": [{"model": {"path": "task"}}]}, "vary": None},
            "model is {'path': 'task'}; write task, language, base or the name",
        ),
        *(
            ({"recipe": {"models": [{"model": "task", "parameters": value}, MODELS[1]]}}, message)
            for value, message in (("layer_swap", "parameters"), (3, "parameters"))
        ),
        ({"recipe": {"models": [{"model": "org/math"}, MODELS[1]]}}, "which also knows base, task"),
        ({"recipe": None, "vary": None, "baseline": []}, "neither a recipe nor a baseline"),
        ({"recipe": None, "baseline": ["base"]}, "vary needs a recipe to vary"),
        ({"evaluate": {"options": {}}}, "evaluate names no tasks; write tasks: [NAME, ...]"),
        ({"evaluate": {"languages": {"sw": ["words_sw"]}}}, "by language: {sw: [NAME, ...]}"),
        (
            {"evaluate": {"languages": {"sv": ["words"]}}, "experts": {"language": CODES}},
            "evaluate.languages has 'sv', which experts.language does not have; valid are sw, te",
        ),
        (
            {"evaluate": {"languages": {"sw": ["words"]}}, "experts": {"language": CODES}},
            "experts.language has 'te', for which evaluate names no task",
        ),
        ({"report": {"primary": {"tasks": ["wrods"]}}}, "not evaluated; did you mean 'words'?"),
        ({"vary": [{"seed": 1}, {"seed": 1}]}, "planned twice; name it once (cell seed=1)"),
        (
            {"vary": {"bottom_layers": [8, 9], "top_layers": [0]}},
            "= 8 is more than the model's 4 layers (cell bottom_layers=8 top_layers=0)",
        ),
        (
            {
                "recipe": {"parameters": {}},
                "reference_layers": 32,
                "vary": [{"placement": "layers", "language_layers": "0-4"}],
            },
            "cannot be scaled from reference_layers: 32",
        ),
        ({"experts": {"language": "swahili"}}, f"experts.task is missing: {NO_ROLE}"),
        (
            {
                "experts": {"language": CODES},
                "vary": [{"experts.task": "math", "experts.language": "math_2"}],
            },
            "experts.language names 'math_2', whose language is not known",
        ),
        (
            {"recipe": REVERT, "vary": {"experts.language": ["swahili"], "bottom_layers": [1]}},
            "vary names experts.language, but no model of the recipe is language",
        ),
        (
            {"evaluate": {"tasks": ["words"], "options": {"max_model_len": 65}}},
            "a context of 65 tokens (--max-model-len) is more than it has positions for (64)",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(problem, changes, message):
    recipe = changes.get("recipe", {})
    if recipe is not None and recipe.get("merge_method") != "delta_revert":
        recipe = {key: value for key, value in {**RECIPE, **recipe}.items() if value is not None}
    assert message in problem(**{**changes, "recipe": recipe})


@pytest.mark.parametrize("languages", [{}, {"xx": ["words"]}])
def test_a_benchmark_that_a_language_lacks_adds_no_second_error(problem, languages):
    pools = {"language": {"xx": ["swahili"], "sw": ["telugu"]}}
    told = problem(evaluate={"benchmarks": ["mmlu"], "languages": languages}, experts=pools)
    assert "no language 'xx'" in told
    assert "names no task" not in told


def test_a_damaged_adapter_is_told_by_the_plan(problem, tmp_path, experts):
    adapter = save_adapter(tmp_path / "adapter", {"x": torch.zeros(1)}, 2, 4, [])
    (adapter / "adapter_model.safetensors").write_text("{")
    document = yaml.safe_load(experts.read_text())
    document["experts"]["math"] = f"{document['experts']['base']}+{adapter}"
    told = problem(write_yaml(tmp_path / "damaged.yml", document))
    assert f"incompatible experts: {adapter}" in told


def test_incompatible_experts_are_reported_together(problem, own):
    write_expert(own.parent / "math", seed=5, layers=6)
    write_expert(own.parent / "swahili", seed=6, hidden=64)
    told = problem(own)
    assert "incompatible experts: base and math have different depths (4 and 6 layers)" in told
    assert "incompatible experts: base and swahili have different" in told


def test_other_vocabularies_are_refused_only_where_rows_of_both_are_needed(plan, problem, own):
    write_expert(own.parent / "swahili", seed=3, more_words=("moja", "mbili"))
    baseline = ["base", "task_expert", "language_expert"]
    found = plan(own, baseline=baseline, vary={"non_layer": ["task", "language", "base"]})
    assert count_models(found) == 6
    refused = "incompatible experts: math and swahili have different vocabularies: lm_head.weight"
    for changes in ({"vary": {"non_layer": ["task", "average"]}}, {"baseline": ["soup"]}):
        told = problem(own, **changes)
        assert told.count("incompatible experts") == 1
        assert refused in told


@pytest.mark.parametrize("dry", [False, True])
def test_a_model_without_a_tokenizer_is_named_before_it_is_asked(plan, problem, own, dry):
    def drop(name):
        folder = own.parent / name
        for file in [*folder.glob("tokenizer*"), *folder.glob("special_tokens_map.json")]:
            file.unlink()

    how = {"dry": dry}
    drop("swahili")
    told = problem(own, how=how, baseline=["base", "language_expert"])
    assert f"expert swahili: {own.parent / 'swahili'} has no tokenizer files" in told
    # The merge has the tokenizer of its base model, or that of the vocabulary rows.
    assert plan(own, how=how, baseline=["base"]).cells
    told = problem(own, how=how, baseline=["base"], vary={"non_layer": ["language"]})
    assert f"expert swahili: {own.parent / 'swahili'} has no tokenizer files" in told
    drop("base")
    assert f"expert base: {own.parent / 'base'} has no" in problem(own, how=how, baseline=[])


def test_tasks_are_not_called_unknown_where_the_file_that_names_their_folder_is_gone(
    problem, tmp_path
):
    told = problem(tmp_path / "gone.yml", evaluate={"tasks": ["of_the_experts_file"]})
    assert "gone.yml: cannot be read" in told
    assert "of_the_experts_file" not in told
