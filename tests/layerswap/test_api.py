"""The functions of `layerswap`: arguments are the commands' options, an error is one text."""

import html
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import click
import pandas as pd
import pytest
import yaml

import layerswap
from ablations.cli import main
from ablations.report.write import make_report
from ablations.runner.run import RunOptions, open_study
from layerswap import _arguments
from layerswap_method import NOT_ON_WINDOWS
from layerswap_method import merge as merging
from tests.cli.test_commands import HEAVY
from tests.report.runs import level, study_of, write_run
from tests.standins.command import output_of
from tests.standins.experts import content
from tests.standins.merging import recipe, roles, tensors_of
from tests.standins.oracle import assert_same, stored
from tests.standins.scripted import DATA
from tests.standins.studies import study_document, write_yaml

RUN = "runs/small-limit-3"
"""The run folder of the study that tests write, with three items."""

ROOT = Path(layerswap.__file__).parents[1]
SWAP = {"bottom_layers": 1, "top_layers": 1}
OTHER_FORMS = {
    # command -> parameters that the function has in another form or not at all
    "check": {"recipes", "strict"},
    "run": {"dry_run"},
    "search": {"dry_run"},
    "plan": set(),
    "merge": set(),
    "evaluate": {"dry_run"},
    "compare": set(),
    "verify": set(),
    "explain": {"has_word"},
    "power": set(),
    "swap-adapters": set(),
}


def test_the_import_is_light():
    code = "import json, sys, layerswap; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert "layerswap_method" in modules
    assert not modules & (HEAVY | {"pandas", "click", "yaml"})


WINDOWS = {
    "api": "import layerswap",
    "command": "from ablations.cli import main; main(['check', 'recipe.yml'])",
    "mergekit": "from layerswap_method import autoload; autoload._give_up(ImportError('fcntl'))",
}


@pytest.mark.parametrize("door", WINDOWS)
def test_windows_is_refused_in_one_sentence(door):
    # What these modules import of Python must be there before its platform is another.
    code = f"import click, logging, pathlib, typing, sys; sys.platform = 'win32'; {WINDOWS[door]}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert NOT_ON_WINDOWS in done.stderr.splitlines()[-1]
    assert "Reinstall" not in done.stderr
    assert (done.returncode == 0) == (door == "mergekit")


def test_another_package_of_the_suites_name_is_named(tmp_path):
    """`layerswap.plan` ended with No module named 'ablations.recipe_commands'."""
    other = tmp_path / "ablations" / "__init__.py"
    other.parent.mkdir()
    other.touch()
    done = subprocess.run(
        [sys.executable, "-c", "import layerswap"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert f"another package called ablations ({other}) is in front of" in done.stderr


def test_what_is_exported_is_there():
    for name in layerswap.__all__:
        assert getattr(layerswap, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'mrege'"):
        _ = layerswap.mrege
    assert dir(layerswap) == sorted(layerswap.__all__)
    assert (Path(layerswap.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("command", OTHER_FORMS)
def test_arguments_are_the_options_of_the_command(command):
    parsed = main.get_command(click.Context(main), command)
    options = {str(parameter.name) for parameter in parsed.params}
    options -= OTHER_FORMS[command] | {"as_json", "quiet", "verbose"}
    function = getattr(layerswap, command.replace("-", "_"))
    arguments = set(inspect.signature(function).parameters)
    assert options - arguments == set()
    assert arguments - options <= {"recipe"}
    missing = [name for name in arguments if f"{name}: " not in (function.__doc__ or "")]
    assert missing == []


def test_a_dict_and_its_file_are_merged_alike(trio, tmp_path):
    document = recipe(roles(trio), SWAP, trio.base)
    file = tmp_path / "recipe.yml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    models = [{**entry, "model": Path(entry["model"])} for entry in document["models"]]
    merged = layerswap.merge({**document, "models": models}, tmp_path / "of_dict")
    output_of("merge", file, tmp_path / "of_file")
    assert_same(stored(merged.folder), stored(tmp_path / "of_file"))
    assert content(merged.folder)["mergekit_config.yml"] == file.read_bytes()
    equal = layerswap.verify(merged, tmp_path / "of_file")
    assert equal.is_equal
    for same in (str(equal), repr(equal)):
        assert same == output_of("verify", merged.folder, tmp_path / "of_file").rstrip("\n")
    assert repr(layerswap.plan(merged)) == repr(merged.plan)
    assert str(layerswap.plan(document)) == output_of("plan", file).rstrip("\n")
    assert repr(merged.plan) == repr(layerswap.plan(file)) == str(merged.plan)
    assert merged.plan.models == {
        str(trio.base): "base",
        str(trio.task): "task",
        str(trio.language): "language",
    }
    assert layerswap.check(document, offline=True) == layerswap.check(file, offline=True)


@pytest.mark.slow
def test_a_recipe_for_mergekit_is_merged_by_it(trio, tmp_path, monkeypatch):
    document = recipe(roles(trio), SWAP, trio.base) | {"tokenizer": {"source": "base"}}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").write_text("a file of the user, and not this recipe")
    merged = layerswap.merge(document, "merged", mergekit_options=["--quiet"])
    assert merged.folder == tmp_path / "merged"
    assert "passed on to mergekit-yaml" in str(merged)
    by_files = layerswap.merge(recipe(roles(trio), SWAP, trio.base), tmp_path / "by_files")
    assert_same(stored(merged.folder), stored(by_files.folder))
    with pytest.raises(layerswap.LayerSwapError, match="mergekit-yaml ended with exit code 2"):
        layerswap.merge(document, tmp_path / "other", mergekit_options=["--no-such-option"])
    assert not (tmp_path / "other").exists()


def test_what_the_user_wrote_is_refused_in_one_text(trio, tmp_path):
    swap = recipe(roles(trio), SWAP, trio.base)
    wrong = {**swap, "parameters": {"botom_layers": 1}}
    (error, *_) = layerswap.check(wrong, offline=True)
    assert (error.level, "did you mean 'bottom_layers'?" in error.message) == ("error", True)
    cases = [
        (lambda: layerswap.merge(wrong, tmp_path / "out"), "did you mean 'bottom_layers'?"),
        (lambda: layerswap.merge({"models": []}, tmp_path / "out"), "recipe: is not a recipe"),
        (lambda: layerswap.plan({**swap, "dtype": object()}), "no recipe can hold"),
        (lambda: layerswap.check("swahilli"), "did you mean 'swahili.yml'?"),
        (lambda: layerswap.swap_adapters(swap, tmp_path / "out"), "no model of the recipe is BASE"),
        (lambda: layerswap.verify(tmp_path, trio.base), "config.json"),
        (lambda: layerswap.load_run(tmp_path), "is not a run folder"),
        (lambda: layerswap.compare(tmp_path), "two or more models"),
        (lambda: layerswap.run("layer_cout"), "did you mean 'layer_count'?"),
        (
            lambda: layerswap.evaluate(trio.base, limit=2, settings={"limit": 3}),
            "limit is set twice",
        ),
        (lambda: layerswap.evaluate(trio.base, benchmarks=["mgsn"]), "did you mean 'mgsm'?"),
        (lambda: layerswap.evaluate(trio.base, benchmarks="mgsm,mgsn"), "did you mean 'mgsm'?"),
        (lambda: layerswap.evaluate(trio.base, limit=0), "limit is 0; give 1 or more"),
        (lambda: layerswap.evaluate(trio.base, backend="vlm"), "did you mean 'vllm'?"),
        (lambda: layerswap.evaluate(trio.base, dtype="float8"), "float16"),
        (lambda: layerswap.run("layer_count", code_isolation="bwarp"), "did you mean 'bwrap'?"),
        (lambda: layerswap.run("layer_count", executor="rya"), "did you mean 'ray'?"),
        (lambda: layerswap.merge(swap, tmp_path / "out", shard_size="5G"), "'5G' is not a size"),
        (lambda: layerswap.merge(swap, tmp_path / "out", device="cdua"), "torch knows no such"),
        (lambda: layerswap.merge(swap, tmp_path / "out", download="hole"), "did you mean 'whole'?"),
        (lambda: layerswap.plan(swap, layers=0), "layers is 0; give 1 or more"),
    ]
    for call, text in cases:
        with pytest.raises(layerswap.InputError) as caught:
            call()
        assert text in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_study_may_be_a_dict(tmp_path, monkeypatch):
    """It is read as its file is, and its paths start at the working directory."""
    monkeypatch.chdir(tmp_path)
    places = {"base": Path("m/base"), "task": ("./m/a", "./m/b"), "language": ["./m/c"]}
    (tmp_path / "tasks").mkdir()
    evaluate = {"tasks": ["words"], "include_path": Path("tasks")}
    document = study_document(experts=places, evaluate=evaluate)
    plain = json.loads(json.dumps(document, default=str))
    file = write_yaml(Path("study.yml"), plain)
    settings = RunOptions(settings={"evaluate.limit": 3})
    read, out = open_study(document, settings)
    assert (read.study, out) == (open_study("study.yml", settings)[0].study, tmp_path / RUN)
    assert str(layerswap.power(document, items=100)) == str(layerswap.power(file, items=100))
    wrong = {**document, "evaluate": {"task": ["words"]}}
    for function in (layerswap.run, layerswap.search, layerswap.power):
        with pytest.raises(layerswap.InputError, match=r"(?s)^study: .*did you mean 'tasks'\?"):
            function(wrong)
        with pytest.raises(layerswap.InputError, match=r"^study: is not a study; "):
            function({"models": []})
        with pytest.raises(layerswap.InputError, match=r"^study: holds a value that no study"):
            function({**document, "vary": object()})
        with pytest.raises(layerswap.InputError, match="study is 5; give a path, the name of"):
            function(5)


def test_an_argument_of_another_type_is_named_with_what_is_expected(tmp_path):
    swap = {"merge_method": "layer_swap"}
    frame = pd.DataFrame({"value": [0.5]})
    recipe_words = "give a file, the name of a shipped recipe, or a dict"
    cases = [
        (lambda: layerswap.check(5), f"recipe is 5; {recipe_words}"),
        (lambda: layerswap.check([swap]), f"recipe is of type list; {recipe_words}"),
        (lambda: layerswap.merge(swap, None), "out is None; give a path or a name"),
        (lambda: layerswap.merge(swap, tmp_path, verify="yes"), "verify is 'yes'; give True or"),
        (lambda: layerswap.merge(swap, tmp_path, shard_size=0), "shard_size is 0; give 1 or more"),
        (lambda: layerswap.merge(swap, tmp_path, shard_size=2.5), "give a whole number or a text"),
        (lambda: layerswap.plan(swap, layers="many"), "layers is 'many'; give a whole number"),
        (lambda: layerswap.evaluate(swap), "models[0] is of type dict; give a path or a name"),
        (lambda: layerswap.evaluate("m", task="t"), "evaluate has no argument 'task'; did you me"),
        (lambda: layerswap.evaluate("m", task="t"), "did you mean 'tasks'? Valid are languages, "),
        (lambda: layerswap.merge(swap), "merge: missing a required argument: 'out'"),
        (lambda: layerswap.verify("a", "b", "c"), "verify: too many positional arguments"),
        (lambda: layerswap.compare(models="a"), "compare has no argument 'models'; valid are tas"),
        (lambda: layerswap.evaluate(), "name one model or more"),
        (lambda: layerswap.evaluate("m", limit="20"), "limit is '20'; give a whole number"),
        (lambda: layerswap.evaluate("m", limit=True), "limit is True; give a whole number"),
        (lambda: layerswap.evaluate("m", tasks=[1]), "tasks is of type list; give a name or a l"),
        (lambda: layerswap.evaluate("m", tasks=None), "tasks is None; give a name or a list"),
        (lambda: layerswap.evaluate("m", include_path=3), "give a path or a list of paths"),
        (lambda: layerswap.evaluate("m", backend=None), "backend is None; valid are auto, hf"),
        (lambda: layerswap.evaluate("m", settings={1: 2}), "give a dict such as {'limit': 20}"),
        (lambda: layerswap.run("quickstart", settings=["a=b"]), "settings is of type list; give a"),
        (lambda: layerswap.compare(tmp_path, frame), "models[1] is of type DataFrame; give a path"),
        (lambda: layerswap.load_run(frame), "or a frame as evaluate returned it"),
    ]
    for call, text in cases:
        with pytest.raises(layerswap.InputError) as caught:
            call()
        assert text in str(caught.value)


def test_every_argument_has_a_check():
    """An annotation without one would be a KeyError of the user's call."""
    for name in layerswap.__all__:
        function = getattr(layerswap, name)
        if not inspect.isfunction(function):
            continue
        for parameter in inspect.signature(function).parameters.values():
            for form in parameter.annotation.split(" | "):
                choices = get_args(getattr(layerswap, form, None))
                assert form in {*_arguments._FORMS, "None"} or choices, (name, form)


def test_numbers_and_names_may_be_of_a_frame(trio):
    frame = pd.DataFrame({"name": ["mgsm", "mgsn"], "n": [2, 2]})
    names, limit = frame["name"].unique(), frame["n"].max()
    with pytest.raises(layerswap.InputError, match=r"did you mean 'mgsm'\?"):
        layerswap.evaluate(trio.base, benchmarks=names, limit=limit)


def test_a_key_that_lacks_a_letter_is_not_one_of_another_block():
    with pytest.raises(layerswap.InputError) as caught:
        layerswap.run("quickstart", settings={"evaluate.task": ["pocket_math_sw"]})
    assert "evaluate.task: unknown key; did you mean 'tasks'?" in str(caught.value)


def test_a_condition_on_cells_is_not_cut_at_its_commas(trio, tmp_path):
    tasks = {"tasks": ["layerswap_mgsm_sw"], "data_dir": str(DATA)}
    study = write_yaml(tmp_path / "study.yml", study_document(evaluate=tasks))
    models = {"base": trio.base, "math": trio.task, "swahili": trio.language}
    places = {"experts": {name: str(folder) for name, folder in models.items()}}
    experts = write_yaml(tmp_path / "experts.yml", places)
    for only in ("experts.task=math,hot", ["experts.task=math,hot"]):
        with pytest.raises(layerswap.InputError, match=r"--only experts.task=math,hot: no cell"):
            layerswap.run(study, only=only, experts=experts, backend="hf", out=tmp_path / "run")


@pytest.fixture
def made_up(tmp_path):
    """A run of four models on two tasks, of which one soup failed."""
    tasks = {"tasks": ["pocket_math_sw", "pocket_math_en"]}
    study = study_of(baseline=["task_expert", "base", "soup"], evaluate=tasks)
    more = {"failed": {"soup": "no memory"}, "observed": {"truncated": 0.0}}
    return write_run(tmp_path / "run", study, level, items=40, **more)


def test_a_run_has_the_tables_of_its_files(made_up):
    run = layerswap.load_run(made_up.path)
    run.report(formats=["csv"])
    files = {
        name: pd.read_csv(made_up.path / "report" / f"{name}.csv")
        for name in ("scores", "comparisons")
    }
    shown = run.analysis.shown.metrics.loc["pocket_math_sw", "metric"]
    file = files["scores"]
    files["scores"] = file[file["metric"].eq(shown) | file["metric"].isna()]
    assert 0 < len(files["scores"]) < len(file)
    for name, file in files.items():
        frame = getattr(run, name)
        assert list(frame.columns) == list(file.columns)
        assert len(frame) == len(file) > 0
        assert frame["low"].dropna().tolist() == pytest.approx(file["low"].dropna().tolist())
    observed = pd.read_parquet(made_up.path / "report" / "observations.parquet")
    of_metric = observed[observed["metric"] == shown].reset_index(drop=True)
    assert 0 < len(of_metric) < len(observed)
    pd.testing.assert_frame_equal(run.observations, of_metric)
    assert run.observations.groupby(["model", "task"]).size().unique() == [40]
    assert run.models == ("task expert", "base", "soup", "layer swap")
    assert repr(run) == f"RunTables({str(made_up.path)!r})"
    with pytest.raises(layerswap.InputError, match="is a run, whose files the report"):
        run.report(made_up.path)
    assert run.failures == {"soup": "no memory"}
    assert run.unfinished == ("soup",)
    assert any("no memory" in warning for warning in run.warnings)
    assert str(run).startswith(run.run.study.question)
    shown = run.means[run.means["model"] == "base"].iloc[0]
    assert shown["low"] < shown["value"] < shown["high"]


def test_frames_have_a_column_for_each_key_that_varies(tmp_path):
    """A grid is pivoted without a look into names; the files have no such columns."""
    grid = {"bottom_layers": [0, 1, 2], "top_layers": [0, 1]}
    path = write_run(tmp_path / "run", study_of(vary=grid, baseline=["soup"]), level, items=9).path
    run = layerswap.load_run(path)
    means = run.means[run.means["task"] == "pocket_math_sw"]
    assert means.loc[means["model"] == "soup", [*grid]].isna().all(axis=None)
    table = means.pivot_table(index="bottom_layers", columns="top_layers", values="value")
    assert (table.shape, list(table.index), list(table.columns)) == ((3, 2), [0, 1, 2], [0, 1])
    assert (str(table.index.dtype), str(table.columns.dtype)) == ("Int64", "Int64")
    page = run._repr_html_()  # the table that its sentences name is there
    assert ("table below" in page, "Main comparisons (6 rows)</summary>" in page) == (True, True)
    by_name = means.set_index("model")["value"]
    assert table.loc[2, 1] == by_name["layer swap b=2 u=1"]
    for frame in (run.scores, run.observations):
        assert frame.groupby("model")["bottom_layers"].first()["layer swap b=2 u=1"] == 2
    run.report(formats=["csv"])
    file = pd.read_csv(path / "report" / "scores.csv")
    assert list(run.scores.columns) == [*file.columns, *grid]
    assert "bottom_layers" not in run.analysis.score_frame


def test_a_run_is_a_page_in_a_notebook(made_up, tmp_path):
    """Question, warning, answer and the scores of the models, and nothing in it is markup."""
    run = layerswap.load_run(made_up.path)
    page = run._repr_html_()
    assert "Does it matter? &lt;b&gt; &amp; 100 % of $x_1$" in page
    assert page.count("no memory") == 1
    assert page.count("<table") == 1
    for model in run.models:
        assert f"<td>{model}</td>" in page
    answer = make_report(run.run, draw=False).sentences
    assert answer
    assert all(html.escape(sentence) in page for sentence in answer)
    empty = write_run(
        tmp_path / "empty", study_of(), level, items=2, failed={"layer swap": "no memory"}
    )
    assert "none of its 1 cells is finished" in layerswap.load_run(empty.path)._repr_html_()


def test_a_plan_is_a_drawing_in_a_notebook(trio):
    plan = layerswap.plan(recipe(roles(trio), SWAP, trio.base))
    page = plan._repr_html_()
    drawn = re.findall(r"<title>layer (\d+): (\w+)</title>", page)
    assert drawn == [(str(layer), source) for layer, source in enumerate(plan.layers)]
    assert f"language: {trio.language}" in page
    assert "base" not in page.split("<p>")[1].replace(str(trio.base), "")
    moved = layerswap.plan(recipe(roles(trio), {**SWAP, "swap_modules": "mlp"}, trio.base))
    assert moved._repr_html_().count("<title>") == 2 * moved.num_layers
    assert ">attention</text>" in moved._repr_html_()


_OPENED: dict[str, list[str]] = {}


def _note_opened(event, arguments):
    if event == "open" and "files" in _OPENED:
        _OPENED["files"].append(str(arguments[0]))


def test_the_items_of_a_run_are_read_once_for_all_tables_and_its_answer(made_up):
    run, records = layerswap.load_run(made_up.path), made_up.path / "records"
    sys.addaudithook(_note_opened)  # which no one can take away again
    _OPENED["files"] = []
    try:
        for frame in (run.scores, run.means, run.comparisons, run.observations):
            assert len(frame) > 0
        assert str(run)
        assert run.warnings
        opened = [Path(file) for file in _OPENED["files"]]
    finally:
        _OPENED.clear()
    counts = Counter(file.name for file in opened if file.parent == records)
    assert len(counts) == 6
    assert {*counts.values()} == {1}


def test_the_items_of_a_run_are_those_of_its_means(made_up, monkeypatch):
    """Of each item they are the value of the metric that is shown, whatever else was observed."""
    monkeypatch.chdir(made_up.path.parent)
    run = layerswap.load_run("run")
    assert run.folder == Path(run) == made_up.path
    assert layerswap.load_run(run).models == run.models
    for task, means in run.means.dropna(subset="value").groupby("task"):
        items = run.items(task)
        assert len(items) == 40
        assert list(items.columns) == [name for name in run.models if name != "soup"]
        expected = dict(zip(means["model"], means["value"], strict=True))
        assert items.mean().to_dict() == pytest.approx(expected)
    assert run.scores["floor"].dtype == run.means["floor"].dtype == "float64"
    with pytest.raises(layerswap.InputError, match=r"did you mean 'pocket_math_sw'\?"):
        run.items("pocket_math_s")


def test_shipped_results_have_the_items_of_their_scores():
    run = layerswap.load_run(ROOT / "ablations" / "results" / "layer_count")
    value = run.items("pocket_math_sw")["base"].mean()
    score = run.scores[(run.scores["model"] == "base") & (run.scores["task"] == "pocket_math_sw")]
    assert value == pytest.approx(score["value"].item()) == pytest.approx(0.497, abs=0.001)


def test_two_models_of_a_run_are_compared(made_up):
    names = [f"{made_up.path}:{model}" for model in ("layer swap", "base")]
    result = layerswap.compare(*names, tasks=["pocket_math_sw"])
    (row,) = result.comparisons.to_dict("records")
    assert (row["first"], row["second"], row["verdict"]) == ("layer swap", "base", "better")
    assert str(result) == output_of("compare", *names, "--tasks", "pocket_math_sw").rstrip("\n")


@pytest.mark.parametrize("goes", ["elsewhere", "away"])
def test_a_merge_does_not_follow_the_working_directory(goes, trio, tmp_path, monkeypatch):
    """It may change in another thread while a merge runs, or be removed."""
    here, other = tmp_path / "here", tmp_path / "other"
    shutil.copytree(trio.base.parent, here)
    other.mkdir()
    monkeypatch.chdir(here)
    document = {**recipe(roles(trio), SWAP, trio.base), "base_model": trio.base.name}
    for entry in document["models"]:
        entry["model"] = Path(entry["model"]).name
    real = merging.Downloads

    def leave(*arguments, **options):  # once the output is claimed
        os.chdir(other)
        if goes == "away":
            other.rmdir()
        return real(*arguments, **options)

    monkeypatch.setattr(merging, "Downloads", leave)
    merged = layerswap.merge(document, "merged")
    assert merged.folder == here / "merged"
    assert_same(stored(merged.folder), tensors_of(recipe(roles(trio), SWAP, trio.base)))
    if goes == "away":
        with pytest.raises(layerswap.InputError, match="the working directory is gone; give an ab"):
            layerswap.merge(document, "again")
        monkeypatch.setattr(merging, "Downloads", real)
        absolute = recipe({r: here / p.name for r, p in roles(trio).items()}, SWAP, here / "base")
        assert layerswap.merge(absolute, here / "again").folder == here / "again"


BAD_PATHS = {
    "x" * 5000: "is longer than a path can be",
    "\ud800": "holds half of a character",
    "a\0b": "holds a NUL",
}


@pytest.mark.parametrize("path", BAD_PATHS, ids=["long", "half", "NUL"])
def test_what_no_path_is_is_refused_at_the_door(path, trio, tmp_path):
    calls = [
        lambda: layerswap.merge(recipe(roles(trio), SWAP, trio.base), path),
        lambda: layerswap.merge(path, tmp_path / "out"),
        lambda: layerswap.check(path),
        lambda: layerswap.plan(path),
        lambda: layerswap.evaluate(path),
        lambda: layerswap.evaluate(trio.base, include_path=[path]),
        lambda: layerswap.run(path),
        lambda: layerswap.load_run(path),
        lambda: layerswap.compare(trio.base, path),
        lambda: layerswap.verify(trio.base, path),
    ]
    for call in calls:
        with pytest.raises(layerswap.InputError, match=BAD_PATHS[path]):
            call()


def test_a_notebook_shows_an_error_as_its_text():
    """IPython asks an exception for the lines that it shows in place of a traceback."""
    with pytest.raises(layerswap.InputError) as caught:
        layerswap.load_run("no\x1bwhere")
    (line,) = caught.value._render_traceback_()
    assert line.startswith("InputError: no\\x1bwhere: no such folder")


@pytest.mark.slow
def test_a_notebook_without_widgets_gets_no_advice_to_install_them():
    program = """
import sys, types, warnings
warnings.simplefilter("error")
shell = types.SimpleNamespace(config={"IPKernelApp": 1})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
sys.modules["ipywidgets"] = None
import layerswap
layerswap.check({})
assert "tqdm.auto" in sys.modules
try:
    layerswap.train("math.yml")
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "runs in a cell as !layerswap train" in done.stdout
