"""lm-eval's own tasks are found without its whole index, and only when a name asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.engines import lm_eval_index
from ablations.engines.task_loading import check_tasks
from ablations.scoring.records import EvaluationRequest
from layerswap_method.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _fails() -> None:
    raise AssertionError("lm-eval's index was read")


def test_tasks_of_a_folder_need_no_index(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_eval_index, "_declared", _fails)
    monkeypatch.setattr(lm_eval_index, "_whole_index", _fails)
    request = EvaluationRequest(tasks=("words_generate",), include_path=tasks)
    assert check_tasks(request).asked == ("words_generate",)


def test_names_and_groups_are_found_beside_ours(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_eval_index, "_whole_index", _fails)
    wanted = ("words_generate", "gsm8k", "arc_easy", "layerswap_mgsm_sw")
    request = EvaluationRequest(tasks=wanted, include_path=tasks)
    assert check_tasks(request).asked == wanted
    entry = lm_eval_index.entries(["gsm8k"])["gsm8k"]
    assert entry.cfg["output_type"] == "generate_until"
    assert entry.yaml_path == lm_eval_index.file_of("gsm8k")


def test_tags_are_names_too_and_unknown_ones_get_the_nearest(tasks: Path) -> None:
    names = lm_eval_index.names()
    assert {"ai2_arc", "gsm8k", "mmlu", "math_word_problems"} <= names
    with pytest.raises(InputError) as caught:
        check_tasks(EvaluationRequest(tasks=("gsm9k", "words_genrate"), include_path=tasks))
    assert "unknown task 'gsm9k'; did you mean 'gsm" in caught.value.message
    assert "unknown task 'words_genrate'; did you mean 'words_generate'?" in caught.value.message


@pytest.mark.slow
def test_what_is_found_is_what_the_whole_index_has() -> None:
    whole = lm_eval_index._whole_index()
    found = lm_eval_index.entries(["gsm8k", "arc_easy"])
    for name, entry in found.items():
        assert (entry.kind, entry.cfg) == (whole[name].kind, whole[name].cfg)
    arc = lm_eval_index.entries(["ai2_arc"])["ai2_arc"]
    assert sorted(arc.tags) == ["arc_challenge", "arc_easy"]
    group = lm_eval_index.entries(["mmlu"])
    assert group["mmlu"].cfg == whole["mmlu"].cfg
    assert len(group) > 50
