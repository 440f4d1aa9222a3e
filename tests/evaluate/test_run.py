"""The suite on one model, end to end, with small hand-written files; its table; what it refuses."""

import csv
import json
import logging
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablations.evaluate import default_folder, render_table5
from ablations.report.notes import record_notes
from ablations.runner.run import default_answers_folder, default_out
from ablations.runner.study_engine import run_mergekit
from ablations.runs.run import load_run
from ablations.scoring.evaluation import Evaluation, TaskScore
from ablations.statistics.intervals import wilson_interval
from ablations.tasks.catalog import list_tasks
from layerswap_method.errors import InputError, LayerSwapError
from tests.engines.backends import BACKENDS
from tests.evaluate.conftest import ask, samples_of
from tests.report.runs import study_of
from tests.standins.command import told
from tests.standins.fine_tunes import write_adapter
from tests.standins.scripted import DATA
from tests.standins.word_models import write_model

pytestmark = pytest.mark.filterwarnings("ignore")
SW, TE = (f"layerswap_mgsm_{code}" for code in ("sw", "te"))
ONE = {"languages": ("sw",), "benchmarks": ("mgsm",)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return shutil.copytree(DATA, tmp_path_factory.mktemp("suite") / "data")


@pytest.fixture(scope="module")
def first(expert, data, tmp_path_factory):
    return ask(expert, tmp_path_factory.mktemp("suite") / "out", data)


def rows_of(out):
    with (out / "scores.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


invoke = partial(told, "evaluate")


@pytest.mark.slow
def test_the_table_has_the_papers_rows_and_what_was_skipped(first):
    warnings, _, table = first.report().partition("Task  ")
    assert all(text.startswith("Warning: ") for text in warnings.split("\n\n")[:-1])
    lines = table.splitlines()
    # No answer has enough letters for a verdict on its language, and so the column is left out.
    assert lines[0].split() == ["Language", "task", "also", "cut", "off", "items"]
    assert lines[2].startswith("MGSM em@maj1, 8-shot  Swahili ")
    assert (lines[3].split()[0], lines[3].split()[-1]) == ("Telugu", "4")
    assert lines[4].split()[-2:] == ["Swahili", "skipped"]
    text = first.report().replace("\n  ", " ")
    mbpp = "layerswap_mbpp_sw, layerswap_mbpp_te"
    assert text.count(f"{mbpp}: skipped: needs --allow-code-execution") == 1
    assert "Evaluated by lm-eval on HF transformers" in text
    # The prompts of MGSM are longer, and so are the answers it allows.
    assert "do not fit the context of 128 tokens" in text
    assert "answers end at 64 tokens" in text
    assert load_run(first.out).head.num_layers == 2


@pytest.mark.slow
def test_every_item_has_a_record_by_which_two_runs_can_be_paired(first):
    metrics = {"exact_match", "truncated", "prompt_truncated"}
    may_have = {"language_fidelity"}  # an answer of few letters has no verdict
    samples = samples_of(first, SW)
    assert {sample.filter for sample in samples} == {"strict-match", "flexible-extract"}
    shown = {row["metric"] for row in rows_of(first.out) if row["task"] == SW}
    assert metrics <= shown <= metrics | may_have
    strict = [sample for sample in samples if sample.filter == "strict-match"]
    assert [sample.doc_id for sample in strict] == [0, 1, 2, 3]
    for sample in strict:
        assert len(sample.prompt_hash) == 64
        assert isinstance(sample.answers[0], str)
        assert metrics <= sample.values.keys() <= metrics | may_have
    (cell,) = load_run(first.out).cells
    for text in cell.task_records[0].provenance["texts"]:
        lines = (first.out / text).read_text().splitlines()
        assert sorted(json.loads(line)["item"] for line in lines) == [0, 1, 2, 3]


@pytest.mark.slow
def test_what_is_finished_is_not_asked_again_unless_its_inputs_changed(first, expert, data, caplog):
    def asked():
        caplog.clear()
        with caplog.at_level(logging.INFO, "ablations"):
            again = ask(expert, first.out, data)
        assert again.evaluations.keys() == first.evaluations.keys()
        logged = [record.getMessage() for record in caplog.records]
        return [line.split()[1] for line in logged if "evaluated in" in line]

    assert asked() == []
    train = data / "mgsm" / "te_train.jsonl"
    lines = train.read_text().splitlines()
    train.write_text("\n".join([*lines[1:], lines[0]]) + "\n")
    assert asked() == [TE]
    assert asked() == []


@pytest.mark.slow
def test_results_of_earlier_calls_are_kept(expert, tmp_path):
    def scores():
        found = {}
        for row in rows_of(tmp_path):
            found.setdefault(row["task"], []).append(row)
        return found

    ask(expert, tmp_path, languages=("sw",), limit=2, isolation="bwrap")
    before = scores()
    assert before.keys() == {SW, "layerswap_mbpp_sw"}
    # No leave to run code now, and another language.
    narrow = ask(expert, tmp_path, languages=("te",), benchmarks=("mgsm",), limit=2)
    assert narrow.evaluations.keys() == {*narrow.scores["task"]} == {TE}
    assert narrow.scores["value"].notna().all()
    after = scores()
    assert next(iter(after)) == TE
    assert before == {name: after[name] for name in before}


@pytest.mark.slow
def test_another_model_or_protocol_in_one_folder_loses_nothing(expert, tmp_path, caplog):
    # Of the same name as the expert: the end of its path.
    other, before = write_model(tmp_path / "other" / "task", seed=1), expert
    for model, limit, is_new in ((expert, 2, 1), (expert, 1, 1), (other, 2, 1), (expert, 2, 0)):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            result = ask(model, tmp_path / "out", limit=limit, **ONE)
        assert caplog.text.count("evaluated in") == is_new
        assert ("so no longer in scores.csv" in caplog.text) == ({model, before} == {expert, other})
        before = model
        assert result.evaluations[SW].shown_score(SW).n == limit
    head = load_run(tmp_path / "out").head
    assert list(head.experts) == [cell.label for cell in head.cells] == ["task"]


@pytest.mark.parametrize(
    ("model", "settings", "name"),
    [
        ("org/name", {}, "org--name/hf"),
        ("org/name@v1+a/b", {}, "org--name@v1+a--b/hf"),
        ("./models/mine/", {"limit": 5}, "models--mine/hf-limit-5"),
        ("m", {"limit": 5, "options.max_model_len": 64}, "m/hf-limit-5-max-model-len-64"),
        ("m", {"data_dir": "/data", "tasks": ("words",), "include_path": "tasks"}, "m/hf"),
        ("/a/../b", {}, "b/hf"),
    ],
)
def test_the_default_folder_tells_what_is_no_default(model, settings, name):
    assert str(default_folder(model, "hf", settings)) == f"runs/evaluate/{name}"


def test_texts_of_other_scripts_have_folders_of_their_own():
    texts = ("日本語で答えてください", "বাংলায় উত্তর দাও", "Réponds", "Rponds")
    folders = {default_folder("m", "hf", {"system_instruction": text}) for text in texts}
    assert len(folders) == len(texts)
    assert all(str(folder).isascii() for folder in folders)


def test_a_folder_has_one_name_however_it_is_written(tmp_path, monkeypatch):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for model in (
        "models/mine",
        "./models/mine/",
        tmp_path / "models/mine",
        "models/../models/mine",
    ):
        assert default_folder(str(model), "hf", {}) == Path("runs/evaluate/models--mine/hf")
    both = f"{tmp_path}/models/mine+{tmp_path}/models/adapter"
    assert default_folder(both, "hf", {}) == Path("runs/evaluate/models--mine+models--adapter/hf")


def test_all_runs_below_the_working_directory_share_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (default_folder("m", "hf", {}), default_out("mine"), default_out("mine").absolute()):
        assert default_answers_folder(out).absolute() == tmp_path / "runs" / "answers"
    assert (
        default_answers_folder(tmp_path / "elsewhere" / "mine")
        == tmp_path / "elsewhere" / "answers"
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_base_with_an_adapter_scores_as_the_merged_checkpoint(expert, tmp_path, caplog, backend):
    # Not of the attention: to this model most words are one, and attention to equal ones is equal.
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.mlp.down_proj", 96, 64)
    reference = f"{expert}+{adapter}"
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"merge_method: passthrough\nmodels: [{{model: '{reference}'}}]\n")
    run_mergekit(recipe, tmp_path / "merged", log=tmp_path / "log")
    benchmarks = ("mgsm", "belebele", "flores") if backend == "hf" else ("mgsm",)
    how = {"backend": backend, "limit": 3}
    streamed = ask(reference, tmp_path / "streamed", benchmarks=benchmarks, **how)
    cold = ask(tmp_path / "merged", tmp_path / "cold", benchmarks=benchmarks, **how)
    assert len(streamed.evaluations) == len(cold.evaluations) == (8 if backend == "hf" else 2)
    for name, each in streamed.evaluations.items():
        assert (each.model, each.backend) == ("adapter", backend)
        assert each.scores == cold.evaluations[name].scores
        assert samples_of(streamed, name) == samples_of(cold, name)
    assert "adapter" in streamed.report().partition("Task  ")[2].splitlines()[0].split()
    assert {*streamed.scores["model"]} == {cell.label for cell in streamed.run.cells} == {"adapter"}
    # The adapter is a part of the model: nothing is asked again, unless it has changed.
    for model, is_asked in ((reference, False), (expert, True)):
        caplog.clear()
        with caplog.at_level(logging.INFO, "ablations"):
            alone = ask(model, streamed.out, benchmarks=("mgsm",), **how)
        assert ("evaluated in" in caplog.text) == is_asked
    assert samples_of(alone, SW) != samples_of(cold, SW)


def test_a_dry_run_counts_items_and_writes_nothing(expert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("--languages", "sw,te", "--benchmarks", "mgsm,mbpp", "--data-dir", DATA)
    code, text = invoke(expert, *words, "--backend", "hf", "--limit", 3, "--dry-run")
    assert code == 0, text
    lines = [line.split() for line in text.splitlines()]
    assert [SW, "3", "to", "do"] in lines
    assert [TE, "3", "to", "do"] in lines
    assert any(line[:2] == ["layerswap_mbpp_sw", "skipped:"] for line in lines)
    assert "to do: 2 tasks, 6 items" in text
    assert "time:" not in text  # of which no run says how long an item takes
    assert list(tmp_path.iterdir()) == []
    code, text = invoke(expert, "--dry-run", "--json")
    assert code == 2
    assert "--dry-run prints no JSON, as its plan is for people to read: leave out --json" in text


@pytest.mark.slow
def test_a_model_may_have_a_name_of_its_own(expert, tmp_path, monkeypatch, caplog):
    """In its folder, tables and JSON; another name later loses nothing and warns of nothing."""
    monkeypatch.chdir(tmp_path)
    rest = ("--tasks", SW, "--data-dir", DATA, "--limit", 2, "--backend", "hf", "--json")
    code, text = invoke(expert, "--name", "mine", *rest)
    assert code == 0, text
    content, _ = json.JSONDecoder().raw_decode(text[text.index("{\n") :])
    assert content["model"] == "mine"
    assert {row["model"] for row in content["scores"]} == {"mine"}
    code, text = invoke(expert, "--name", "mine", *rest[:4], "--limit", 4, *rest[6:8], "--dry-run")
    assert "time: less than a minute, at the rate of this model's runs beside it" in text
    out = Path("runs/evaluate/mine/hf-limit-2")
    assert {cell.label for cell in load_run(out).head.cells} == {"mine"}
    with caplog.at_level(logging.WARNING, "ablations"):
        code, text = invoke(expert, "--name", "renamed", "--out", out, *rest)
    assert code == 0, text
    assert {cell.label for cell in load_run(out).head.cells} == {"renamed"}
    assert "no longer" not in caplog.text


@pytest.mark.slow
def test_the_command_runs_all_benchmarks_from_local_files(expert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text = invoke(
        expert,
        "--languages",
        "sw",
        "--data-dir",
        DATA,
        "--limit",
        2,
        "--backend",
        "hf",
        "--dtype",
        "float32",
        "--allow-code-execution",
    )
    assert code == 0, text
    text = text.replace("\n  ", " ")
    titles = ("MGSM em@maj1, 8-shot", "BELEBELE accuracy, 5-shot", "FLORES BLEU, 0-shot")
    for part in (*titles, "MBPP pass@1, 0-shot", "MMLU accuracy, 5-shot", "Eng-Swh"):
        assert part in text
    assert "bleu is nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in text
    assert "chrf++ is nrefs:1|case:mixed|eff:yes|nc:6|nw:2" in text
    assert "layerswap_mbpp_sw: prompts are in 'en', because there is no translation" in text
    out = str(expert).strip("/").replace("/", "--")
    assert Path("runs/answers").is_dir()
    rows = rows_of(Path("runs/evaluate") / out / "hf-limit-2-dtype-float32")
    assert len({row["task"] for row in rows}) == 6


@pytest.mark.slow
def test_newer_benchmarks_have_rows_and_notes(expert, tmp_path):
    result = ask(
        expert,
        tmp_path,
        languages=("sw", "it"),
        benchmarks=("global_mgsm", "polymath_low"),
        gen_kwargs={"max_gen_toks": 4},
    )
    text = result.report().replace("\n  ", " ")
    for part in (
        "Global-MGSM em@maj1, 0-shot    Swahili",
        "PolyMath-low accuracy, 0-shot  Swahili",
        " Italian ",
        "MGSM: the score counts the number after the answer phrase (strict)",
        r"PolyMath: the score compares what is in the first \boxed{} as numbers and text",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ("--languages", "sw,tee", "--benchmarks", "mgms"),
            ("no language 'tee'; did you mean 'te'?", "no benchmark 'mgms'; did you mean 'mgsm'?"),
        ),
        (("--languages", " , "), ("has no name",)),
        (("--set", "temprature=1"), ("evaluate: temprature: unknown key",)),
        (("--set", "gen_kwargs={top_k: 20}"), ("have no effect without sampling",)),
        (("--set", "limit=true"), ("limit: must be a whole number, not True",)),
        (("--set", "limit=1", "--limit", "2"), ("limit is set twice",)),
        (("--set", "options={batch_size: 4}", "--dtype", "auto"), ("options.dtype is set twice",)),
        (("--set", "tasks=[a]", "--tasks", "b"), ("tasks is set twice",)),
    ],
)
def test_wrong_options_exit_2_and_say_what_is_valid(expert, arguments, parts):
    code, text = invoke(expert, *arguments)
    assert code == 2
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{}/../tasc", "no such folder; did you mean 'task'"),
        (
            "org/base+path/adapter",
            r"^org/base: no such folder .* the hub's cache does not have it",
        ),
        ("", "a model's path is empty"),
        ("{0}+/no/adapter", r"^/no/adapter: no such folder"),
        ("{0}+{0}", r"has no adapter_config\.json, so it is not a PEFT adapter"),
    ],
)
def test_models_that_are_not_there_are_said(expert, tmp_path, model, message):
    with pytest.raises(InputError, match=message):
        ask(model.format(expert), tmp_path)


def test_an_adapter_alone_needs_its_base(tmp_path):
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.mlp.down_proj", 96, 64)
    with pytest.raises(InputError, match=rf"write BASE\+{adapter}"):
        ask(adapter, tmp_path / "out")


def test_damaged_weights_and_odd_adapters_are_one_message(expert, tmp_path):
    damaged = shutil.copytree(expert, tmp_path / "damaged")
    (weights,) = damaged.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(LayerSwapError, match=r"damaged: model.safetensors is damaged"):
        ask(damaged, tmp_path / "out", benchmarks=("mgsm",))
    dora = write_adapter(tmp_path / "dora", "model.layers.1.mlp.down_proj", 96, 64)
    config = json.loads((dora / "adapter_config.json").read_text()) | {"use_dora": True}
    (dora / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="use_dora is set; merge it into its base first"):
        ask(f"{expert}+{dora}", tmp_path / "out", benchmarks=("mgsm",))


def test_a_folder_that_cannot_be_written_is_said_before_a_model_is_loaded(expert, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: is not a folder"):
        ask(expert, tmp_path / "file" / "out")
    # To root it looks as if it could be written: root may write to /proc, which takes nothing.
    refused = r"/proc/layerswap.*: cannot be written: |/proc: you have no permission to write there"
    with pytest.raises(LayerSwapError, match=refused):
        ask(expert, Path("/proc/layerswap"))


TASKS = {task.name: task for task in list_tasks()}
SWAHILI, TELUGU, CODE = (TASKS[f"layerswap_{name}"] for name in ("mgsm_sw", "mgsm_te", "mbpp_te"))


def score(task, hits, metric="exact_match", filter="none", n=250):
    interval = wilson_interval(hits, n)
    fixed = {"is_share": True, "stderr": 0.01, "higher_is_better": metric != "truncated"}
    place = {"task": task, "metric": metric, "filter": filter}
    return TaskScore(**place, value=hits / n, interval=interval, n=n, **fixed)


def evaluation(*scores):
    empty = {"task_versions": {}, "num_fewshot": {}, "versions": {}, "elapsed_s": 1.0}
    return Evaluation(model="m", backend="hf", scores=scores, **empty)


def of_mgsm(task, truncated=0):
    hits = {"exact_match": 60, "language_fidelity": 245, "truncated": truncated}
    strict = [score(task.name, n, metric, "strict-match") for metric, n in hits.items()]
    return evaluation(strict[0], score(task.name, 70, filter="flexible-extract"), *strict[1:])


def test_the_table_fits_a_terminal_of_80_columns():
    """Its titles are wrapped, and columns without an entry are left out."""
    name = "a_task_of_mine_with_a_long_name es, in words that make it longer"
    done = {name: evaluation(score(name, 225))}
    table = render_table5("math-expert", (), done, width=80)
    assert max(map(len, table.splitlines())) <= 80
    assert "also" not in table.splitlines()[0]
    assert all(word in table for word in name.split())
    head, *_ = render_table5("math-expert", (), done).splitlines()
    assert head.split() == ["Task", "math-expert", "items"]


def test_a_score_on_a_scale_to_100_is_shown_as_it_is():
    """As TruthfulQA's: its generated answers are scored by several metrics, none a share."""
    values = {"bleu_max": 23.4, "rouge1_max": 45.1, "bleu_diff": -3.2}
    scores = [
        score("truthfulqa_gen", 0, metric).model_copy(
            update={"value": value, "is_share": False, "interval": None}
        )
        for metric, value in values.items()
    ]
    table = render_table5("m", (), {"truthfulqa_gen": evaluation(*scores)})
    assert "23.400" in table
    assert "rouge1_max 45.100, bleu_diff -3.200" in table


def test_rows_are_as_in_the_paper():
    done = {task.name: of_mgsm(task) for task in (SWAHILI, TELUGU)}
    lines = render_table5("org/model", (SWAHILI, TELUGU, CODE), done).splitlines()
    shown = ["24.0", "[19.1,", "29.7]", "flexible", "28.0", "98.0", "0.0", "250"]
    assert " ".join(lines[0].split()) == "Task Language org/model also in language cut off items"
    assert lines[2].split() == ["MGSM", "em@maj1,", "8-shot", "Swahili", *shown]
    assert lines[3].split() == ["Telugu", *shown]
    assert lines[4].split() == ["MBPP", "pass@1,", "0-shot", "Telugu", "skipped"]


@pytest.mark.parametrize(("truncated", "is_noted"), [(5, False), (30, True)])
def test_more_than_a_few_percent_cut_off_are_noted(truncated, is_noted):
    scores = [
        score.model_copy(update={"repeats": 2, "deviation": 0.01 * at})
        for at, score in enumerate(of_mgsm(SWAHILI, truncated).scores, 1)
    ]
    cell = SimpleNamespace(label="m", skipped={}, notes=(), scores=scores)
    note = "layerswap_mgsm_sw: 12.0 % of the answers were cut off at the token limit: its"
    *noted, repeated = record_notes(SimpleNamespace(cells=[cell], study=study_of()))
    assert [text.startswith(note) for text in noted] == [True] * is_noted
    assert repeated.endswith("a standard deviation of up to 1.0.")  # of the metric that is shown
