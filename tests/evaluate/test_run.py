"""The suite on one model, end to end, with small hand-written files."""

import csv
import json
import logging
import re
import shutil
from pathlib import Path

import pytest

from ablations.evaluate.run import default_folder
from ablations.runner.records import load_run
from ablations.study.schema import Evaluate
from tests.evaluate.conftest import ask, samples_of
from tests.standins.scripted import DATA
from tests.standins.talkers import write_model

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
def test_the_table_has_the_papers_rows_and_what_was_skipped(first):
    lines = _table(first)
    assert " ".join(lines[0].split()) == "Task Language task also in language cut off items"
    assert lines[2].startswith("MGSM em@maj1, 8-shot  Swahili ")
    assert lines[3].strip().startswith("Telugu")
    assert lines[3].split()[-1] == "4"
    assert lines[4].split()[-2:] == ["Swahili", "skipped"]
    assert first.skipped == dict.fromkeys(
        ("layerswap_mbpp_sw", "layerswap_mbpp_te"), "needs --allow-code-execution"
    )
    text = first.report()
    assert "Evaluated by lm-eval on HF transformers" in text
    # The prompts of MGSM are longer, and so are the answers it allows.
    assert "do not fit the context of 128 tokens" in text.replace("\n  ", " ")
    assert "answers end at 64 tokens" in text.replace("\n  ", " ")


@pytest.mark.slow
def test_every_item_has_a_record_by_which_two_runs_can_be_paired(first):
    name = "layerswap_mgsm_sw"
    samples = samples_of(first, name)
    assert {sample.filter for sample in samples} == {"strict-match", "flexible-extract"}
    rows = _scores(first.out)
    assert {row["metric"] for row in rows if row["task"] == name} == {
        *("exact_match", "language_fidelity", "truncated", "prompt_truncated")
    }
    strict = [sample for sample in samples if sample.filter == "strict-match"]
    assert [sample.doc_id for sample in strict] == [0, 1, 2, 3]
    for sample in strict:
        assert len(sample.prompt_hash) == 64
        assert isinstance(sample.answers[0], str)
        assert sample.values.keys() == {
            *("exact_match", "language_fidelity", "truncated", "prompt_truncated")
        }
    (cell,) = load_run(first.out).cells
    answers, prompts = (first.out / text for text in cell.provenance["texts"])
    assert [json.loads(line)["item"] for line in prompts.read_text().splitlines()] == [0, 1, 2, 3]
    assert {json.loads(line)["item"] for line in answers.read_text().splitlines()} == {0, 1, 2, 3}


@pytest.mark.slow
def test_what_is_finished_is_not_asked_again_unless_its_inputs_changed(first, expert, data, caplog):
    def asked():
        caplog.clear()
        with caplog.at_level(logging.INFO, "ablations"):
            again = ask(expert, data, first.out)
        assert again.evaluations.keys() == first.evaluations.keys()
        logged = [record.getMessage() for record in caplog.records]
        return [line.split()[1] for line in logged if "evaluated in" in line]

    assert asked() == []
    train = data / "mgsm" / "te_train.jsonl"
    lines = train.read_text().splitlines()
    train.write_text("\n".join([*lines[1:], lines[0]]) + "\n")
    # A file that no task of these reads may come and go.
    (data / "mgsm" / "xx_test.jsonl").write_text("{}\n")
    assert asked() == ["layerswap_mgsm_te"]
    assert asked() == []


@pytest.mark.slow
def test_results_of_earlier_calls_are_kept(expert, tmp_path):
    def scores():
        found = {}
        for row in _scores(tmp_path / "out"):
            found.setdefault(row["task"], []).append(row)
        return found

    mgsm, mbpp = ("layerswap_mgsm_sw", "layerswap_mgsm_te"), ("layerswap_mbpp_sw",)
    wide = ask(
        *(expert, DATA, tmp_path / "out"),
        **{"languages": ("sw",), "limit": 2, "isolation": "bwrap"},
    )
    assert wide.earlier == ()
    before = scores()
    assert before.keys() == {mgsm[0], *mbpp}
    # Another folder of data with the files of one task only, and no leave to run code.
    only = tmp_path / "only"
    shutil.copytree(DATA / "mgsm", only)
    narrow = ask(expert, only, tmp_path / "out", languages=("te",), benchmarks=("mgsm",), limit=2)
    assert narrow.evaluations.keys() == {mgsm[1]}
    assert set(narrow.earlier) == {mgsm[0], *mbpp}
    after = scores()
    assert set(after) == {*mgsm, *mbpp}
    assert next(iter(after)) == mgsm[1]
    assert before == {name: after[name] for name in before}
    lines = _table(narrow)
    assert lines[2].startswith("MGSM em@maj1, 8-shot  Telugu ")
    assert lines[3] == ""
    where = tmp_path / "out" / "scores.csv"
    assert lines[-1] == f"Scores (and those of 2 tasks of earlier calls): {where}"


def _scores(out):
    with (out / "scores.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _table(result):
    """Return the lines of a report below its warnings."""
    warnings, head, table = result.report().partition("Task  ")
    assert all(text.startswith("Warning: ") for text in warnings.split("\n\n")[:-1])
    return (head + table).splitlines()


@pytest.mark.slow
def test_another_model_or_protocol_in_one_folder_loses_nothing(expert, tmp_path, caplog):
    asked = {"languages": ("sw",), "benchmarks": ("mgsm",)}
    other = write_model(tmp_path / "other", seed=1)
    for model, limit, is_new in ((expert, 2, 1), (expert, 1, 1), (other, 2, 1), (expert, 2, 0)):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            result = ask(model, DATA, tmp_path / "out", limit=limit, **asked)
        assert caplog.text.count("evaluated in") == is_new
        assert result.evaluations["layerswap_mgsm_sw"].score("layerswap_mgsm_sw").n == limit
    assert list(load_run(tmp_path / "out").head.experts) == [str(expert)]


@pytest.mark.slow
def test_without_an_out_a_quick_look_is_in_nobodys_way(expert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {"languages": ("sw",), "benchmarks": ("mgsm",)}
    quick = ask(expert, DATA, None, limit=1, **asked)
    whole = ask(expert, DATA, None, **asked)
    folder = Path("runs/evaluate") / str(expert).strip("/").replace("/", "--")
    assert (quick.out, whole.out) == (folder / "hf-limit-1", folder / "hf")
    for result, items in ((quick, 1), (whole, 4)):
        assert (result.out / "scores.csv").is_file()
        assert result.evaluations["layerswap_mgsm_sw"].score("layerswap_mgsm_sw").n == items


@pytest.mark.parametrize(
    ("model", "asked", "name"),
    [
        ("org/name", {}, "org--name/hf"),
        ("org/name@v1+a/b", {}, "org--name@v1+a--b/hf"),
        ("./models/mine/", {"limit": 5}, "models--mine/hf-limit-5"),
        ("m", {"options": {"dtype": "float32"}}, "m/hf-dtype-float32"),
        (
            *("m", {"limit": 5, "options": {"dtype": "float16", "max_model_len": 64}}),
            "m/hf-limit-5-dtype-float16-max-model-len-64",
        ),
        ("m", {"options": {"batch_size": 3}, "tasks": ("words",)}, "m/hf"),
        ("m", {"system_instruction": "Be short."}, "m/hf-asked-HASH"),
    ],
)
def test_the_default_folder_tells_what_is_no_default(model, asked, name):
    folder = str(default_folder(model, "hf", Evaluate.model_validate(asked)))
    assert re.sub("asked-[0-9a-f]{8}$", "asked-HASH", folder) == f"runs/evaluate/{name}"


@pytest.mark.slow
def test_all_benchmarks_run_from_local_files(expert, tmp_path):
    result = ask(
        *(expert, DATA, tmp_path / "out"),
        **{"languages": ("sw",), "benchmarks": (), "limit": 2, "isolation": "bwrap"},
    )
    assert len(result.evaluations) == len(result.tasks) == 6
    assert not result.skipped
    text = result.report().replace("\n  ", " ")
    for title in ("BELEBELE accuracy, 5-shot", "FLORES BLEU, 0-shot", "MMLU accuracy, 5-shot"):
        assert title in text
    assert "Eng-Swh" in text
    assert "bleu is nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in text
    assert "layerswap_mbpp_sw: prompts are in 'en', because there is no translation" in text
    score = result.evaluations["layerswap_flores_en-sw"].score("layerswap_flores_en-sw", "chrf++")
    assert score.signature is not None
    assert score.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:2")


def test_the_run_folder_says_how_large_the_model_is(first):
    assert load_run(first.out).head.num_layers == 2
