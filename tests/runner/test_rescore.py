"""Stored answers scored again are the scores of a new run, and nothing is generated for them."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ablations.cli import main
from ablations.engines import lm_eval_backend
from ablations.engines.backends import backend_versions
from ablations.report.write import make_report
from ablations.runner import records
from ablations.runner.engines import EngineSetup
from ablations.runner.jobs import run_cells
from ablations.runner.rescore import rescore_run, task_hash
from ablations.runner.run import FINGERPRINTS, _write_run_file
from ablations.study.files import read_study
from ablations.study.identity import score_key
from ablations.study.planning import plan_study
from layerswap_method.errors import InputError
from tests.runner.fakes import scores_by_label
from tests.standins.studies import study_document, write_yaml
from tests.standins.tasks import write_tasks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*torch_dtype.*")]
TASKS = ["words_generate", "words_translate", "words_choose"]


def edit(folder: Path, name: str, **changes: object) -> None:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def test_answers_are_scored_again_without_a_model(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = write_tasks(tmp_path / "tasks", items=8)
    names = {name: str(models / name) for name in ("base", "math", "swahili")}
    experts = write_yaml(tmp_path / "e.yml", {"experts": names, "include_path": str(tasks)})
    evaluate = {"tasks": TASKS, "options": {"batch_size": 8}}
    document = study_document(baseline=["base"], vary={"bottom_layers": [1]}, evaluate=evaluate)
    study = write_yaml(tmp_path / "small.yml", document)

    def run(name: str) -> list[str]:
        """Run the study in this process; return what was evaluated now."""
        out, cache = tmp_path / name, tmp_path / FINGERPRINTS
        plan = plan_study(read_study(study), experts, backend="hf", cache=cache)
        _write_run_file(out, plan)
        setup = EngineSetup.of(plan, out, materialize=False)
        return run_cells(out, plan.cells, setup, protocol=plan.protocol, progress=False).evaluated

    out = tmp_path / "run"
    assert len(run("run")) == 2
    old = records.load_run(out)
    same = rescore_run(out)
    assert (same.again, same.same, same.failed) == ([], 6, {})

    second = {"function": "regex", "regex_pattern": r"(w\d+)", "group_select": -1}
    take_first = {"function": "take_first"}
    edit(
        tasks,
        "words_generate",
        filter_list=[
            {"name": "last-word", "filter": [second, take_first]},
            {"name": "whole", "filter": [take_first]},
        ],
    )
    mean = {"aggregation": "mean", "higher_is_better": True}
    edit(tasks, "words_choose", metric_list=[{"metric": "acc_norm", **mean}])
    with monkeypatch.context() as context:
        context.setattr(lm_eval_backend, "start_model", None)  # whoever calls it fails
        result = CliRunner().invoke(main, ["rescore", str(out), "--include-path", str(tasks)])
    assert result.exit_code == 0, result.output
    assert "4 scored again, 2 unchanged" in result.output
    assert len(run("fresh")) == 2
    assert scores_by_label(out) == scores_by_label(tmp_path / "fresh")
    assert run("run") == []  # the run goes on with the new scores
    new = records.load_run(out)
    for before, after in zip(old.cells, new.cells, strict=True):
        assert [t.key == u.key for t, u in zip(before.tasks, after.tasks, strict=True)] == [
            False,
            True,
            False,
        ]
        assert records.read_record(out, before.tasks[0].key) == before.tasks[0]
        assert after.tasks[0].provenance["rescored"]["from"] == before.tasks[0].key
        assert [s.responses for s in after.tasks[0].samples() if s.filter == "whole"] == [
            s.responses for s in before.tasks[0].samples()
        ]

    report = make_report(new, draw=False)
    notes = [note for note in report.notes if "scored again by layerswap rescore" in note]
    for task in ("words_generate", "words_choose"):
        assert any(task in note and " before, " in note for note in notes)

    edit(tasks, "words_generate", doc_to_text="{{prompt}} w1")
    edit(
        tasks,
        "words_translate",
        generation_kwargs={"until": ["w1"], "do_sample": False, "max_gen_toks": 8},
    )
    result = CliRunner().invoke(main, ["rescore", str(out), "--include-path", str(tasks)])
    assert result.exit_code == 1
    assert "0 scored again, 2 unchanged, 4 cannot be scored again" in result.output
    assert "base: words_generate: its prompts, its items or" in result.output
    assert scores_by_label(out) == scores_by_label(tmp_path / "fresh")


def test_no_command_that_runs_nothing_runs_the_tasks_of_a_folder(
    tmp_path: Path, models: Path
) -> None:
    """Templates of lm-eval's tasks are programs, and so are their functions."""
    tasks = write_tasks(tmp_path / "tasks", items=4)
    names = {name: str(models / name) for name in ("base", "math", "swahili")}
    experts = write_yaml(tmp_path / "e.yml", {"experts": names, "include_path": str(tasks)})
    document = study_document(
        baseline=["base"], recipe=None, vary=None, evaluate={"tasks": ["words_generate"]}
    )
    study = write_yaml(tmp_path / "small.yml", document)
    out, mark = tmp_path / "run", tmp_path / "MARK"
    run = ["run", str(study), "--experts", str(experts), "--backend", "hf", "--out", str(out)]

    def call(*words: str) -> str:
        return CliRunner().invoke(main, words).output

    assert "1 cell evaluated, 0 failed" in call(*run)
    record = next((out / "records").glob("[!.]*/record.json"))
    command = f"cycler.__init__.__globals__.os.system('touch {mark}')"
    edit(tasks, "words_generate", doc_to_text=f"{{{{ {command} }}}}{{{{prompt}}}}")
    (tasks / "steal.py").write_text(
        f"import os\nos.system('touch {mark}')\ndef run(docs): return docs"
    )
    with (tasks / "words_generate.yaml").open("a") as file:
        file.write("process_docs: !function steal.run\n")
    said = call(*run, "--dry-run")
    assert f"tasks of {tasks} are programs, which --read-tasks loads" in said
    assert f"--include-path {tasks}" in call("rescore", str(out))
    call("report", str(out), "--format", "md")
    record.write_text(record.read_text().replace("words_generate", "words_translate"))
    call("rescore", str(out))
    assert not mark.exists()
    call(*run, "--dry-run", "--read-tasks")
    assert mark.exists()  # so the task does what the other commands did not


def test_a_task_of_lm_eval_has_the_key_of_a_run(tmp_path: Path, models: Path) -> None:
    names = {name: str(models / name) for name in ("base", "math", "swahili")}
    experts = write_yaml(tmp_path / "e.yml", {"experts": names})
    document = study_document(
        baseline=["base"], recipe=None, vary=None, evaluate={"tasks": ["gsm8k"]}
    )
    file = read_study(write_yaml(tmp_path / "small.yml", document))
    plan = plan_study(file, experts, backend="hf", dry=True)
    (cell,) = plan.cells
    contents = task_hash("gsm8k", cell.request)
    versions = backend_versions("hf")
    key = score_key(cell.weights_key, plan.protocol, "gsm8k", contents, versions)
    assert key == cell.score_keys["gsm8k"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run\.json in it"):
        rescore_run(tmp_path)
