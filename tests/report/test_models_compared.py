"""`layerswap compare`: made-up records, and one real evaluation."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.engines.options import EngineOptions
from ablations.evaluate.run import SuiteRequest, evaluate_model
from ablations.report.baselines import baselines
from ablations.report.comparisons import Comparer, compare_all
from ablations.report.models_compared import compare_models
from ablations.report.observations import Observations
from ablations.runner.records import Run, load_run
from ablations.statistics.as_text import p_text, points
from ablations.statistics.paired import holm
from layerswap_method.errors import InputError
from tests.report.runs import Point, same_model, study_of, write_run
from tests.standins.scripted import DATA
from tests.standins.talkers import write_model

BASELINES = ["base", "task_expert", "soup"]
TASKS = {"tasks": ["pocket_math_sw", "translate_sw"]}


def _ability(point: Point, task: str) -> float:
    return {"task_expert": 0.9, "soup": 0.0}.get(point.kind, -0.9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    study = study_of(baseline=BASELINES, recipe=None, evaluate=TASKS)
    return write_run(tmp_path_factory.mktemp("compared"), study, _ability, items=80)


def _single(folder: Path, kind: str, *, items: int = 80, tasks: list[str] | None = None) -> Path:
    """Write a run of one cell, as `layerswap evaluate` does."""
    study = study_of(
        baseline=[kind], recipe=None, evaluate={"tasks": tasks or TASKS["tasks"], "limit": items}
    )
    return write_run(folder, study, _ability, items=items).path


def _invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["compare", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def _rows(text: str) -> dict[tuple[str, str], str]:
    lines = [line for line in text.splitlines() if " - " in line]
    return {(line.split()[0], line[line.index(" - ") - 1 :][:5]): line for line in lines}


def test_a_cell_may_be_called_as_in_the_report(tmp_path: Path) -> None:
    vary = [{"bottom_layers": count, "top_layers": 1} for count in (1, 2)]
    study = study_of(baseline=["soup"], vary=vary, evaluate=TASKS)
    path = write_run(tmp_path, study, _ability, items=20).path
    own = f"{path}:math+swahili bottom_layers=2 top_layers=1"
    shown = f"{path}:layer swap b=2 u=1"
    soup = f"{path}:soup math swahili"
    assert compare_models([shown, soup]) == compare_models([own, soup]).replace(own, shown)
    with pytest.raises(InputError, match="did you mean 'layer swap b=2 u=1'"):
        compare_models([f"{path}:layer swap b=3 u=1", soup])
    with pytest.raises(InputError, match="is the same as"):
        compare_models([own, shown])


def test_cells_are_tested_as_in_the_report_and_corrected_together(run: Run) -> None:
    labels = [cell.label for cell in run.cells]
    code, text = _invoke(*(f"{run.path}:{label}" for label in labels))
    assert code == 0, text
    assert max(map(len, text.splitlines()[4:])) <= 120
    for letter, label in zip("ABC", labels, strict=True):
        assert f"{letter}: {run.path}:{label}" in text
    rows = _rows(text)
    assert len(rows) == 2 * 3
    # The same as a study's recipe against a baseline: equal items, equal numbers.
    observations = Observations(run)
    comparer = Comparer(seed=0, level=0.95)
    assert {c.contrast.second for c in compare_all(observations, comparer)} == {"base"}
    (group,) = observations.groups
    outcomes = {}
    models = baselines(run.study)
    for measure in observations.measures(group):
        items = observations.items(group, measure)
        blocks = [observations.block([model], group, measure, items) for model in models]
        for first, second in ((0, 1), (0, 2), (1, 2)):
            one, other = blocks[first], blocks[second]
            assert one is not None
            assert other is not None
            pair = f"{'ABC'[first]} - {'ABC'[second]}"
            outcomes[measure.task, pair] = comparer.compare(one, other)
    p_values = [found.p for found in outcomes.values() if found and found.p is not None]
    assert len(p_values) == 6
    for (key, found), corrected in zip(outcomes.items(), holm(p_values), strict=True):
        assert found is not None
        assert found.p is not None
        line = rows[key]
        interval = f"[{points(found.low)}, {points(found.high)}]"
        assert f"{points(found.difference)} {interval}" in line
        assert f" {p_text(found.p)} " in line
        assert f" {p_text(corrected)} " in line
        assert line.endswith(" is better" if corrected < 0.05 else "no evidence")
    assert rows["pocket_math_sw", "A - B"].endswith("B is better")
    assert rows["pocket_math_sw", "B - C"].endswith("B is better")


def test_what_a_model_gained_and_lost_is_told_with_the_language_of_its_answers(
    tmp_path: Path,
) -> None:
    spoken = {"base": 1.0, "task_expert": 0.4, "soup": 1.0}
    study = study_of(baseline=BASELINES, recipe=None, evaluate=TASKS)
    path = write_run(
        tmp_path, study, _ability, items=80, fidelity=lambda point, _: spoken[point.kind]
    ).path
    labels = [cell.label for cell in load_run(path).cells]
    text = compare_models([f"{path}:{label}" for label in labels], ["pocket_math_sw"])
    assert "B against A: gained on pocket_math_sw; lost on pocket_math_sw: answers in the" in text
    assert "C against A: gained on pocket_math_sw; no evidence on 1 of 2." in text
    line = next(x for x in text.splitlines() if x.startswith("pocket_math_sw: answers in the"))
    assert "A - B" in line
    assert " +60.0 [" in line
    assert line.endswith("A is better")


def test_folders_of_evaluate_need_no_cell(tmp_path: Path) -> None:
    one = _single(tmp_path / "one", "base")
    two = _single(tmp_path / "two:b", "task_expert")
    code, text = _invoke(one, two)
    assert code == 0
    assert len(_rows(text)) == 2
    assert f"B: {two}" in text


def test_one_model_twice_under_two_names_is_not_tested(tmp_path: Path) -> None:
    study = study_of(vary={"bottom_layers": [0, 1]}, evaluate={"tasks": ["math_sw"]})
    made = write_run(tmp_path, study, lambda _, __: 0.0, items=30)
    first, second = (cell.label for cell in made.cells)
    same_model(made, first, second)
    text = compare_models([f"{tmp_path}:{first}", f"{tmp_path}:{second}"])
    (line,) = _rows(text).values()
    assert line.endswith("the same model")


def test_what_has_no_value_for_each_item_says_so(tmp_path: Path) -> None:
    study = study_of(vary={"bottom_layers": [0, 1]}, evaluate={"tasks": ["perplexity_sw"]})
    made = write_run(tmp_path, study, lambda _, __: 0.0, items=30)
    (line,) = _rows(compare_models([f"{tmp_path}:{c.label}" for c in made.cells])).values()
    assert line.endswith("word_perplexity has no value for each item")


def test_a_broken_evaluation_is_said_first(tmp_path: Path) -> None:
    study = study_of(vary={"bottom_layers": [0, 1]}, evaluate={"tasks": ["math_sw"]})
    made = write_run(tmp_path, study, lambda _, __: -99.0, items=30)
    text = compare_models([f"{tmp_path}:{cell.label}" for cell in made.cells])
    assert text.startswith(f"Warning: {tmp_path}:{made.cells[0].label}: math_sw: every answer is")
    (line,) = _rows(text).values()
    assert "+0.0 [-11.4, +11.4]" in line


def test_errors_name_what_differs_and_what_to_do(run: Run, tmp_path: Path) -> None:
    one = _single(tmp_path / "one", "base")
    code, text = _invoke(one)
    assert (code, "compare takes two or more models" in text) == (2, True)
    code, text = _invoke(one, one)
    assert (code, f"{one} is the same as {one}" in text) == (2, True)
    code, text = _invoke(one, run.path)
    assert code == 2
    assert f"has 3 cells; name one of them:\n  {run.path}:base\n" in text
    grid = write_run(tmp_path / "grid", study_of(vary={"bottom_layers": [0, 1]}), _ability, items=9)
    _, text = _invoke(one, grid.path)
    assert f"\n  {grid.path}:layer swap b=1 u=2" in text  # as in its report
    code, text = _invoke(one, f"{run.path}:soop math swahili")
    assert (code, "did you mean 'soup math swahili'?" in text) == (2, True)
    code, text = _invoke(one, tmp_path / "gone")
    assert (code, "no such folder" in text or "not" in text) == (2, True)
    fewer = _single(tmp_path / "fewer", "soup", items=40)
    code, text = _invoke(one, fewer)
    assert code == 2
    assert "were asked different items of pocket_math_sw: 40 of 80 and 40 are the same" in text
    assert "--limit" in text


def test_a_missing_task_is_an_error_unless_the_others_are_named(tmp_path: Path) -> None:
    one = _single(tmp_path / "one", "base")
    part = _single(tmp_path / "part", "soup", tasks=["pocket_math_sw"])
    code, text = _invoke(one, part)
    assert code == 2
    assert f"{part} has no result for translate_sw" in text
    assert "--tasks pocket_math_sw" in text
    code, text = _invoke(one, part, "--tasks", "pocket_math_sw")
    assert (code, list(_rows(text))) == (0, [("pocket_math_sw", "A - B")])
    code, text = _invoke(one, part, "--tasks", "pocket_math_se")
    assert (code, "did you mean 'pocket_math_sw'?" in text) == (2, True)
    other = _single(tmp_path / "other", "soup", tasks=["pocket_math_en"])
    code, text = _invoke(part, other)
    assert (code, "no task in common" in text) == (2, True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"backend": "vllm"}, "the backend is hf and vllm"),
        ({"num_fewshot": {"pocket_math_sw": 8}}, "the number of examples of pocket_math_sw is 0"),
        ({"task_versions": {"pocket_math_sw": "2.0"}}, "the version of pocket_math_sw is 1.0 and"),
    ],
)
def test_another_protocol_is_refused(change: dict[str, object], told: str, tmp_path: Path) -> None:
    one = _single(tmp_path / "one", "base", tasks=["pocket_math_sw"])
    two = _single(tmp_path / "two", "soup", tasks=["pocket_math_sw"])
    (path,) = (two / "records").glob("*/record.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    record["evaluation"] |= change
    path.write_text(json.dumps(record), encoding="utf-8")
    code, text = _invoke(one, two)
    assert code == 2
    assert told in text


def test_another_dtype_is_refused(tmp_path: Path) -> None:
    one = _single(tmp_path / "one", "base", tasks=["pocket_math_sw"])
    two = _single(tmp_path / "two", "soup", tasks=["pocket_math_sw"])
    head = json.loads((two / "run.json").read_text(encoding="utf-8"))
    head["study"]["evaluate"]["options"]["dtype"] = "bfloat16"
    (two / "run.json").write_text(json.dumps(head), encoding="utf-8")
    code, text = _invoke(one, two)
    assert code == 2
    assert "--dtype is auto and bfloat16" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_real_evaluations_are_compared_with_the_tasks_of_earlier_calls(tmp_path: Path) -> None:
    outs = []
    for seed, calls in ((0, [("sw",), ("te",)]), (1, [("sw", "te")])):
        model = write_model(tmp_path / f"model{seed}", seed=seed)
        out = tmp_path / f"out{seed}"
        for languages in calls:
            request = SuiteRequest(
                languages=languages,
                benchmarks=("belebele",),
                data_dir=DATA,
                limit=8,
                backend="hf",
                options=EngineOptions(),
            )
            evaluate_model(str(model), request, out)
        outs.append(str(out))
    text = compare_models(outs)
    rows = _rows(text)
    assert sorted(task for task, _ in rows) == ["layerswap_belebele_sw", "layerswap_belebele_te"]
    assert all(line.endswith("no evidence") for line in rows.values())
    items = {int(line.split()[-3]) for line in rows.values()}
    assert items == {len(list(load_run(Path(outs[0])).cells[0].tasks[0].samples()))}
