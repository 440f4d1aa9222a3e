"""Models into engines: experts that change, engines that go wrong, answers that are reused."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ablations.engines.hf_model import HfModel
from ablations.engines.options import EngineOptions
from ablations.models.find import Expert
from ablations.runner import study_engine as engines
from ablations.runner.run import RunOptions, run_study
from ablations.runner.study_engine import (
    SharedEngine,
    StudyEngine,
    run_mergekit,
)
from ablations.runner.work import ModelFailed
from ablations.runs.run import load_run
from ablations.scoring.evaluation import EvaluationRequest
from ablations.scoring.protocol import GenKwargs
from layerswap_method.errors import LayerSwapError
from layerswap_method.methods import table
from tests.engines.backends import BACKENDS
from tests.kills import ENVIRONMENT, kill_when, start
from tests.runner.fakes import passthrough, plan_of, scores_by_label, work_of
from tests.standins.fine_tunes import train_adapter
from tests.standins.studies import (
    study_document,
    write_expert,
    write_study,
    write_tasks,
    write_yaml,
)

ROOT = Path(__file__).parents[2]
PLAN = table.merge_models
ignore_dtype = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")


@pytest.mark.slow
@pytest.mark.parametrize("by_mergekit", [False, True], ids=["files", "mergekit"])
def test_an_adapter_trained_anew_is_merged_anew(by_mergekit, tmp_path, models):
    """mergekit takes the merged copy that it finds, of whatever adapter it is."""
    large = {"scale": 1.0, "target_modules": ["q_proj"], "r": 4}  # so that answers differ
    adapter = train_adapter(models / "base", tmp_path / "adapter", **large)
    expert = Expert("math", models / "base", adapter)
    merge = passthrough(expert) | ({"parameters": {"scale": 1.0}} if by_mergekit else {})
    request = EvaluationRequest(tasks=("words",), include_path=models / "tasks", limit=8)
    responses = []
    for scale in (1, -3):
        file = adapter / "adapter_model.safetensors"
        save_file({name: tensor * scale for name, tensor in load_file(file).items()}, file)
        answers = tmp_path / "answers"
        engine = StudyEngine(plan_of(expert), tmp_path, answers, materialize=True)
        evaluation, how = engine.evaluate(work_of(request, merge, f"x{scale}"))
        engine.close()
        assert how["weights"] == "checkpoint"
        responses.append([sample.responses for sample in evaluation.samples])
    assert responses[0] != responses[1]
    assert list((tmp_path / ".work").iterdir()) == []


@pytest.mark.parametrize("fate", ["changed", "gone"])
def test_an_expert_is_watched(tmp_path, models, fate):
    folder = write_expert(tmp_path / "math", 0)
    expert = Expert("math", folder)
    plan = plan_of(Expert("base", models / "base"), expert)
    engine = StudyEngine(plan, tmp_path, tmp_path / "answers")
    request = EvaluationRequest(tasks=("words",), include_path=models / "tasks")
    work = work_of(request, passthrough(expert))
    engine._check_unchanged(work)
    if fate == "gone":
        folder.rename(tmp_path / "hidden")
    else:
        write_expert(folder, 1)
    with pytest.raises(LayerSwapError, match="expert 'math' has changed or disappeared"):
        engine.evaluate(work)


@pytest.mark.slow
def test_no_answer_is_stored_of_an_expert_that_changed_before_it_was_loaded(
    tmp_path, models, monkeypatch
):
    """A checkpoint's answers are stored as they come, under the key of the expert of the plan."""
    folder = write_expert(tmp_path / "math", 0)
    expert, answers = Expert("math", folder), tmp_path / "answers"
    engine = StudyEngine(plan_of(expert), tmp_path, answers, materialize=True)
    cold = engine._cold
    monkeypatch.setattr(engine, "_cold", lambda *model: write_expert(folder, 1) and cold(*model))
    request = EvaluationRequest(tasks=("words",), include_path=models / "tasks", limit=2)
    with pytest.raises(ModelFailed, match="expert 'math' has changed or disappeared"):
        engine.evaluate(work_of(request, passthrough(expert)))
    assert list(answers.glob("*/*.jsonl")) == []


def test_data_that_is_gone_ends_one_task_and_not_the_model(tmp_path, models):
    """Also where its answers are stored, so that no model is needed."""
    expert, tasks = Expert("base", models / "base"), write_tasks(tmp_path / "tasks", ["words"])
    engine = StudyEngine(plan_of(expert), tmp_path, tmp_path / "answers")
    work = work_of(EvaluationRequest(tasks=("words",), include_path=tasks), passthrough(expert))
    work = work._replace(cell=work.cell.model_copy(update={"donor": models / "base"}))
    answer_file = engine.answer_file(work)
    answer_file.path.parent.mkdir(parents=True)
    answer_file.path.touch()
    (data,) = tasks.glob("*.jsonl")
    data.unlink()
    with pytest.raises(LayerSwapError, match="words") as caught:
        engine.evaluate(work)
    assert not isinstance(caught.value, ModelFailed)


def test_a_merge_is_prepared_once_for_all_tasks_of_a_model(tmp_path, models, monkeypatch):
    plans = []
    monkeypatch.setattr(table, "merge_models", lambda *models: plans.append(1) or PLAN(*models))
    expert = Expert("base", models / "base")
    engine = StudyEngine(plan_of(expert), tmp_path, tmp_path / "answers")
    in_float = passthrough(expert) | {"dtype": "float32"}
    tasks = ("words", "words_sw")
    works = [work_of(EvaluationRequest(tasks=(task,)), in_float) for task in tasks]
    merged, again = (engine._merge_of(work.cell) for work in works)  # as it is loaded
    assert merged is again
    assert merged.donor_folder == models / "base"
    assert len(plans) == 1
    other = work_of(EvaluationRequest(tasks=("words",)), in_float, "y")
    assert engine._merge_of(other.cell).donor_folder == models / "base"
    assert len(plans) == 2
    engine.plan.merges["w z"] = merged  # of a study whose plan has it
    planned = work_of(EvaluationRequest(tasks=("words",)), in_float, "z")
    assert engine._merge_of(planned.cell) is merged
    assert len(plans) == 2


def test_answers_of_an_adapter_that_mergekit_merges_leave_it_to_mergekit(tmp_path, models):
    """A run that was stopped in such a model goes on; rescoring its answers is no failure."""
    dora = {"target_modules": ["q_proj"], "use_dora": True}
    expert = Expert("math", models / "base", train_adapter(models / "base", tmp_path / "a", **dora))
    engine = StudyEngine(plan_of(expert), tmp_path, tmp_path / "answers")
    work = work_of(REQUEST, passthrough(expert) | {"dtype": "float32"})
    answer_file = engine.answer_file(work)
    answer_file.path.parent.mkdir(parents=True)
    answer_file.path.touch()
    assert engine._rescore(work, answer_file) is None


@pytest.mark.slow
@ignore_dtype
def test_what_mergekit_has_merged_is_loaded_into_the_live_engine(tmp_path, models):
    """Also where only the adapter, and not the recipe, says that mergekit must."""
    dora = {"target_modules": ["q_proj"], "use_dora": True}
    expert = Expert("math", models / "base", train_adapter(models / "base", tmp_path / "a", **dora))
    plan = plan_of(Expert("base", models / "base"), expert)
    engine = StudyEngine(plan, tmp_path, tmp_path / "answers")
    request = EvaluationRequest(tasks=("words",), include_path=models / "tasks", limit=2)
    _, how = engine.evaluate(work_of(request, passthrough(expert)))
    engine.close()
    assert how["weights"] == "merged by mergekit-yaml, then streamed"
    assert "fallback" not in how


@pytest.mark.slow
@ignore_dtype
def test_an_engine_of_an_earlier_study_ends_before_a_model_with_an_engine_of_its_own(
    tmp_path, models, monkeypatch
):
    expert, shared = Expert("base", models / "base"), SharedEngine()
    request = EvaluationRequest(tasks=("words",), include_path=models / "tasks", limit=2)
    first = StudyEngine(plan_of(expert), tmp_path, tmp_path / "a", shared=shared)
    _, how = first.evaluate(work_of(request, passthrough(expert)))
    first.close()
    assert how["weights"] == "streamed"
    assert shared._live._engine is not None
    second = StudyEngine(plan_of(expert), tmp_path, tmp_path / "b", shared=shared)
    work = work_of(request, passthrough(expert), "alone")
    alone = work._replace(cell=work.cell.model_copy(update={"made_by": "engine"}))
    monkeypatch.setattr(second, "_cold", lambda *_: shared._live._engine)  # as a cold one starts
    assert second._open(alone).ask is None


@pytest.mark.slow
def test_a_merge_that_fails_says_how_it_ended(tmp_path):
    recipe, log = write_yaml(tmp_path / "r.yml", {"merge_method": "no_such"}), tmp_path / "log"
    with pytest.raises(LayerSwapError, match=r"(?s)failed with exit code .*log. It ended with:\n."):
        run_mergekit(recipe, tmp_path / "out", log=log)
    assert log.read_text()


@pytest.mark.slow
@ignore_dtype
def test_a_study_on_a_broken_engine_is_that_on_checkpoints(tmp_path, experts, monkeypatch, caplog):
    """Where it is broken from the start; where it breaks later, the task that was asked fails."""
    study = write_yaml(tmp_path / "small.yml", study_document(vary={"bottom_layers": [0, 1]}))
    load, loads, sound = HfModel.load, 0, 0

    def run(name, **options):
        places = {"out": tmp_path / name, "answers": tmp_path / f"{name}-answers"}
        return run_study(str(study), RunOptions(experts, backend="hf", **places, **options))

    def transposing(engine, mixes):
        nonlocal loads
        loads += 1
        load(engine, mixes)
        name = "model.layers.1.self_attn.o_proj.weight"
        if loads > sound:
            weight = engine.model.get_parameter(name).data
            weight.copy_(weight.T.clone())

    run("cold", materialize=True)
    wanted = scores_by_label(tmp_path / "cold")
    assert len({samples for _, samples in wanted.values()}) > 2  # the cells do differ
    monkeypatch.setattr(HfModel, "load", transposing)
    assert not run("broken").summary.failed
    for cell in load_run(tmp_path / "broken").cells:
        assert cell.task_records[0].provenance["weights"] == "checkpoint"
        assert (
            "every tensor of the base loaded over itself"
            in cell.task_records[0].provenance["fallback"]
        )
    assert scores_by_label(tmp_path / "broken") == wanted
    assert "cannot use the live engine" in caplog.text

    loads, sound = 0, 2
    result = run("later")
    (error,) = result.summary.failed.values()
    assert "Run the same command again to retry the cells that failed." in result.summary_text()
    assert "with the base's weights back in place" in error
    assert error.endswith("run it again with --materialize")
    assert not list((tmp_path / "later-answers").glob("*/*.unchecked"))
    finished = scores_by_label(tmp_path / "later")
    assert finished == {label: wanted[label] for label in finished}
    assert len(finished) == len(wanted) - 1
    assert not run("later", materialize=True).summary.failed
    assert scores_by_label(tmp_path / "later") == wanted


@pytest.mark.slow
@pytest.mark.parametrize("is_live", [True, False], ids=["live", "checkpoint"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_task_that_is_killed_in_the_middle_goes_on(tmp_path, backend, is_live):
    """From its answers; those of a live engine that was not checked again are asked again."""
    options = {"batch_size": 2, "kv_cache_gib": 1, "max_num_seqs": 2}
    evaluate = {"tasks": ["words"], "options": options}
    study, experts = write_study(tmp_path, items=240, baseline=["base"], evaluate=evaluate)
    code = "from ablations.cli import main; main()"
    words = ["run", str(study), "--experts", str(experts), "--backend", backend]
    killed, peaceful = tmp_path / "killed", tmp_path / "peaceful"

    def command(out):
        places = ["--out", str(out), "--answers", str(out.with_suffix(".answers"))]
        way = [] if is_live else ["--materialize"]
        return [sys.executable, "-c", code, *words, "--only", "kind=base", *places, *way]

    def stored():
        found = killed.with_suffix(".answers").glob("*/*.unchecked" if is_live else "*/*.jsonl")
        return [path for path in found if path.read_bytes().count(b"\n") >= 5]

    runner = start(command(killed), cwd=ROOT, stderr=subprocess.DEVNULL)
    assert kill_when(runner, stored) == -signal.SIGKILL, "it ended before it could be killed"
    (answers,) = stored()
    assert not list(killed.glob("records/[!.]*"))
    before = answers.read_bytes().count(b"\n")
    for out in (killed, peaceful):
        subprocess.run(command(out), check=True, capture_output=True, cwd=ROOT, env=ENVIRONMENT)
    (cell,), (whole,) = (load_run(out).cells for out in (killed, peaceful))
    assert cell.backend == backend
    # vLLM's CPU build has no batch invariance.
    assert (cell.task_records[0].provenance["weights"] == "streamed") == is_live
    assert cell.task_records[0].provenance.get("batch_invariant") == {"vllm": False}.get(backend)
    if is_live:
        assert cell.task_records[0].evaluation.answers_before == 0
        assert not list(killed.with_suffix(".answers").glob("*/*.unchecked"))
    else:  # the engine's process may have written a batch more before it noticed
        assert before <= cell.task_records[0].evaluation.answers_before < 240
    assert whole.task_records[0].evaluation.answers_before == 0
    assert scores_by_label(killed) == scores_by_label(peaceful)
    assert not list(killed.glob("records/.*"))


REQUEST = EvaluationRequest(tasks=("words",))
WARM = REQUEST.model_copy(update={"gen_kwargs": GenKwargs(temperature=1.0)})
MORE = REQUEST.model_copy(update={"limit": 3, "seed": 5, "level": 0.5})


@pytest.fixture
def place(tmp_path, models):
    """Return a function that says where an answer is, and under which key."""

    def place(work=None, out=tmp_path, **changes):
        options = EngineOptions(dtype="float32").model_copy(update=changes.pop("options", {}))
        plan = plan_of(Expert("base", models / "base"), options=options)
        vars(plan).update(changes)
        engine = StudyEngine(plan, out, tmp_path / "answers")
        answer_file = engine.answer_file(work or work_of(REQUEST))
        return answer_file.path, answer_file.settings_hash

    return place


@pytest.mark.parametrize(
    ("changes", "is_other"),
    [
        ({"options": {"dtype": "bfloat16"}}, True),
        ({"options": {"max_model_len": 32}}, True),
        ({"options": {"batch_size": 3}}, True),
        ({"backend": "vllm"}, True),
        ({"work": work_of(REQUEST, name="y")}, True),
        ({"work": work_of(WARM)}, True),
        ({"options": {"kv_cache_gib": 9, "max_num_seqs": 3}}, False),
        ({"work": work_of(MORE)}, False),
        ({"out": Path("another")}, False),
    ],
)
def test_what_changes_an_answer_asks_again(place, changes, is_other):
    assert (place(**changes) != place()) == is_other


@pytest.mark.parametrize("more", [0, 64])
def test_the_context_in_a_key_is_that_of_the_models_own_config(place, models, tmp_path, more):
    config = json.loads((models / "base" / "config.json").read_text())
    donor = tmp_path / "donor"
    donor.mkdir()
    config["max_position_embeddings"] += more
    (donor / "config.json").write_text(json.dumps(config))
    work = work_of(REQUEST)
    of_donor = work._replace(cell=work.cell.model_copy(update={"donor": donor}))
    assert (place(of_donor) != place(work)) == bool(more)


@pytest.mark.parametrize("package", ["torch", "transformers", None])
def test_another_version_or_context_asks_again(place, package, monkeypatch):
    before, versions = place(), engines.backend_versions("hf")
    if package is None:
        monkeypatch.setattr(engines, "context_of", lambda _: 7)
    else:
        assert package in versions
        monkeypatch.setattr(engines, "backend_versions", lambda _: {**versions, package: "0.0.1"})
    assert place() != before
