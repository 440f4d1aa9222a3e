"""The table and the files that are written from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ablations.tasks.catalog import SHIPPED_TASKS as TASKS
from layerswap_method.errors import InputError
from tools import task_files as generate
from tools.task_files import find_differences, task_files
from tools.task_languages import load_languages

GENERATED = TASKS / "generated"
TEMPLATES = ("mgsm", "belebele", "flores", "mmlu")

ITALIAN = """
it:
  name: Italian
  mgsm:
    config: it
    question: "Domanda: "
    answer: "Risposta passo dopo passo:"
    phrase: "La risposta è"
  flores: ita_Latn
  bleu: 13a
  belebele: ita_Latn
  mmlu: it
"""


def test_the_files_are_in_step_with_the_table() -> None:
    files = task_files(load_languages())
    assert len(files) > 30
    assert find_differences(GENERATED, files) == []


def test_check_says_what_differs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "SHIPPED_TASKS", tmp_path)
    runner = CliRunner()
    assert runner.invoke(generate.main, []).exit_code == 0
    assert runner.invoke(generate.main, ["--check"]).exit_code == 0
    folder = tmp_path / "generated"
    (folder / "layerswap_sw.yaml").unlink()
    (folder / "layerswap_mgsm_te.yaml").write_text("task: other\n")
    (folder / "layerswap_mgsm_xx.yaml").write_text("task: layerswap_mgsm_xx\n")
    found = runner.invoke(generate.main, ["--check"])
    assert found.exit_code == 1
    for line in (
        "layerswap_sw.yaml is missing",
        "layerswap_mgsm_xx.yaml is not from the table",
        "layerswap_mgsm_te.yaml differs",
        "python -m tools.task_files",
    ):
        assert line in found.output
    assert not (folder / "layerswap_sw.yaml").exists()
    assert runner.invoke(generate.main, []).exit_code == 0
    assert find_differences(folder, task_files(load_languages())) == []


def test_a_language_is_one_entry(tmp_path: Path) -> None:
    """Italian: an entry in the table gives all of its tasks."""
    table = tmp_path / "languages.yml"
    table.write_text((TASKS / "languages.yml").read_text(encoding="utf-8") + ITALIAN)
    files = task_files(load_languages(table))
    new = set(files) - {path.name for path in GENERATED.glob("*.yaml")}
    assert new == {
        *(f"layerswap_{name}_it.yaml" for name in ("mgsm", "mgsm_rev2", "belebele", "mmlu")),
        *("layerswap_flores_en-it.yaml", "layerswap_flores_it-en.yaml", "layerswap_it.yaml"),
    }
    mgsm = yaml.safe_load(files["layerswap_mgsm_it.yaml"])
    assert mgsm["doc_to_text"] == "Domanda: {{question}}\nRisposta passo dopo passo:"
    assert mgsm["generation_kwargs"]["until"][0] == "Domanda:"
    assert "La\\ risposta\\ è" in mgsm["filter_list"][0]["filter"][0]["regex_pattern"]
    pair = files["layerswap_flores_en-it.yaml"]
    assert "aggregation: !function 'ablations.tasks.translation.bleu_13a'" in pair


def test_an_entry_that_is_wrong_is_named(tmp_path: Path) -> None:
    table = tmp_path / "languages.yml"
    table.write_text(
        "xx: {name: X, flores: xx, bleu: moses}\nyy: {flores: yyy_Yyyy, bleu: 13a, mqsm: 1}\n"
    )
    with pytest.raises(InputError) as caught:
        load_languages(table)
    for part in ("xx.flores", "xx.bleu", "yy.name", "yy.mqsm", "4 problems"):
        assert part in caught.value.message
