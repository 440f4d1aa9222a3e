"""The tasks that the command `evaluate` chooses: languages, own tasks, arguments of tasks."""

from functools import partial

import pytest
import yaml

from ablations.cli.evaluation import evaluate
from ablations.cli.options import pop_settings
from ablations.evaluate import _choose
from ablations.scoring.observed import language_of, task_notes
from ablations.study.schema import Evaluate
from layerswap_method.errors import InputError
from tests.standins.command import told
from tests.standins.tasks import write_rows, write_task
from tests.standins.word_models import write_model


@pytest.fixture
def own(tmp_path):
    """Return a folder with a task in Italian, one in Norwegian, and one of no language."""
    folder = tmp_path / "tasks"
    data = write_rows(folder, [{"prompt": "w1", "answer": "w1"}])
    write_task(folder, "story_it", data, metadata={"version": 1.0, "language": "it"})
    write_task(folder, "quiz", data, metadata={"version": 1.0, "language": False})  # language: no
    write_task(folder, "plain", data)
    assert "language: false" in (folder / "quiz.yaml").read_text()
    return folder


def chosen(languages, **block):
    return _choose(Evaluate(**block), languages)[1]


def test_languages_are_those_that_the_tasks_have(own):
    ask = partial(chosen, include_path=own)
    assert ask(["it"]) == ("story_it",)
    assert ask(["no", "it"]) == ("quiz", "story_it")
    assert ask(["it"], tasks=["story_it", "plain"]) == ("story_it", "plain")
    assert ask(["it", "sw"], benchmarks=["mgsm"], tasks=["story_it"]) == (
        "layerswap_mgsm_sw",
        "story_it",
    )
    assert ask(["sw", "it"])[-1] == "story_it"
    assert "layerswap_mgsm_sw" in ask(["sw", "it"])
    assert "story_it" not in ask([])
    assert ask([], tasks=["plain"]) == ("plain",)
    for wrong in ({}, {"benchmarks": ["mgsm"]}):
        with pytest.raises(InputError, match="no language 'itt'"):
            ask(["itt"], **wrong)
    with pytest.raises(InputError, match="no language 'no'"):  # no benchmark has it
        ask(["no"], benchmarks=["mgsm"])
    with pytest.raises(InputError, match="no task of mgsm in it"):  # PolyMath has it
        ask(["it"], benchmarks=["mgsm"])
    with pytest.raises(
        InputError, match=r"no language 'itt'; did you mean 'it'\? Valid are .*, no"
    ):
        ask(["itt"])


def test_languages_that_no_task_of_the_folder_has_are_an_error(own):
    """Of a folder alone, the paper's benchmarks in that language are not what was meant."""
    ask = partial(chosen, include_path=own)
    with pytest.raises(InputError, match=r"no task in .*tasks has language sw; .* have it, n"):
        ask(["sw"])
    assert ask(["sw"], benchmarks=["mgsm"]) == ("layerswap_mgsm_sw",)
    for name in ("story_it", "quiz"):
        (own / f"{name}.yaml").unlink()
    with pytest.raises(InputError, match="language sw; its tasks have none: name it in a task"):
        ask(["sw"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_table_names_the_language_and_judges_the_answers(own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "model")
    words = ("--include-path", own, "--languages", "no", "--backend", "hf")
    code, text = told("evaluate", model, *words)
    assert code == 0, text
    (row,) = (line for line in text.splitlines() if line.startswith("quiz "))
    assert row.split()[:4] == ["quiz", "exact_match,", "0-shot", "Norwegian"]
    assert "quiz: 1 of 1 answers have fewer than 20 letters" in " ".join(text.split())


def test_lang_in_a_name_stands_for_the_languages(own):
    assert chosen(["sw", "it"], tasks=["belebele_{lang}", "gsm8k"]) == (
        "belebele_swh_Latn",
        "belebele_ita_Latn",
        "gsm8k",
    )
    assert chosen(["it"], tasks=["story_{lang}"], include_path=own) == ("story_it",)
    names = chosen(["sw"], tasks=["belebele_{lang}"], benchmarks=["mgsm"])
    assert names == ("layerswap_mgsm_sw", "belebele_swh_Latn")
    assert chosen(["sw"], tasks=["layerswap_mgsm_{lang}"]) == ("layerswap_mgsm_sw",)
    with pytest.raises(InputError, match=r"belebele_\{lang\}: name its languages, such as --lang"):
        chosen([], tasks=["belebele_{lang}"])
    with pytest.raises(InputError, match=r"mmlu_prox_\{lang\}: there is no 'xx'; valid are af, ar"):
        chosen(["xx"], tasks=["mmlu_prox_{lang}"])


@pytest.mark.parametrize(
    ("texts", "arguments"),
    [
        (["tokenizer=gpt2"], {"tokenizer": "gpt2"}),
        (
            ["tokenizer=gpt2,max_seq_lengths=[4096,8192]"],
            {"tokenizer": "gpt2", "max_seq_lengths": [4096, 8192]},
        ),
        (
            ["a=1", '{"b": {"c": true}, "d": null}', "e = x=y"],
            {"a": 1, "b": {"c": True}, "d": None, "e": "x=y"},
        ),
    ],
)
def test_arguments_are_written_as_lm_eval_has_them(texts, arguments):
    words = [word for text in texts for word in ("--metadata", text)]
    options = evaluate.make_context("evaluate", ["model", *words]).params
    assert pop_settings({**options, "settings": ()})["metadata"] == arguments


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "trust_remote_code=true",
            "trust_remote_code is not passed to tasks: code that comes with",
        ),
        ('{"trust_remote_code": true}', "trust_remote_code is not passed to tasks"),
        ("tokenizer", "'tokenizer': write KEY=VALUE, or a JSON object"),
        ('{"a": 1', "cannot be read"),
        ("a=[1", "cannot be read"),
    ],
)
def test_wrong_arguments_are_said(argument, message, tmp_path):
    code, text = told("evaluate", tmp_path, "--tasks", "gsm8k", "--metadata", argument)
    assert (code, message in " ".join(text.split())) == (2, True), text


def test_an_answer_in_a_language_of_ones_own_is_judged(own):
    task = yaml.safe_load((own / "story_it.yaml").read_text())
    assert language_of(task) == ("it", "Latn")
    assert language_of({**task, "metadata": {"language": False}}) == ("no", "Latn")
    assert language_of({**task, "metadata": {"language": "sr", "script": "Latn"}}) == ("sr", "Latn")
    assert language_of({**task, "metadata": {"language": "ko"}}) == ("ko", "Kore")
    unknown = {**task, "metadata": {"language": "qq"}}
    assert task_notes({"quiz": unknown}, (), None) == [
        "quiz: no language_fidelity: the script of its language is not known here; add script: "
        "Latn, say, to its metadata"
    ]
