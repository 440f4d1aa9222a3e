"""`layerswap evaluate` and `layerswap tasks`, as typed."""

import json

import pytest
from click.testing import CliRunner

from ablations.cli import main
from tests.standins.scripted import DATA

pytestmark = pytest.mark.filterwarnings("ignore")


def _invoke(*arguments):
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    return result.exit_code, result.output


def test_the_command_says_unknown_names_with_the_nearest_and_exits_2(expert):
    code, text = _invoke("evaluate", expert, "--languages", "sw,tee", "--benchmarks", "mgms")
    assert code == 2
    assert "no language 'tee'; did you mean 'te'?" in text
    assert "no benchmark 'mgms'; did you mean 'mgsm'?" in text
    code, text = _invoke("evaluate", expert, "--languages", "SW", "--benchmarks", "MGSM")
    assert code == 2
    assert "no language 'SW'; did you mean 'sw'?" in text
    assert "no benchmark 'MGSM'; did you mean 'mgsm'?" in text
    code, text = _invoke("evaluate", expert, "--languages", " , ")
    assert (code, "has no name" in text) == (2, True)
    code, text = _invoke("evaluate", expert, "--data-dir", expert / "none")
    assert (code, "does not exist" in text) == (2, True)


@pytest.mark.slow
def test_the_command_prints_the_table(expert, tmp_path):
    code, text = _invoke(
        *("evaluate", expert, "--languages", "sw", "--benchmarks", "mgsm,mbpp"),
        *("--data-dir", DATA, "--limit", 2, "--backend", "hf", "--out", tmp_path / "out"),
        *("--dtype", "float32"),
    )
    assert code == 0
    assert "MGSM em@maj1, 8-shot" in text
    assert "skipped: needs --allow-code-execution" in text
    assert (tmp_path / "out" / "scores.csv").is_file()


def test_the_tasks_command_lists_protocol_and_source():
    code, text = _invoke("tasks")
    assert code == 0
    assert "layerswap_belebele_te" in text
    code, text = _invoke("tasks", "--format", "json")
    (row,) = [each for each in json.loads(text) if each["name"] == "layerswap_mgsm_te"]
    assert (code, row["num_fewshot"], row["source"]) == (0, 8, "juletxara/mgsm")
    assert row["protocol"].startswith("8-shot, exact_match")
