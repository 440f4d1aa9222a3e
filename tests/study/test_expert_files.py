"""What planning says of the files of experts: their tokenizers, and how they are stored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from layerswap_method.errors import InputError
from tests.standins.studies import study_document, write_expert, write_yaml


@pytest.fixture
def own(models: Path, tmp_path: Path) -> Path:
    """Return an experts file of copies, which may be changed."""
    for name in ("base", "math", "swahili"):
        shutil.copytree(models / name, tmp_path / name)
    places = {name: str(tmp_path / name) for name in ("base", "math", "swahili")}
    return write_yaml(
        tmp_path / "own.yml", {"experts": places, "include_path": str(models / "tasks")}
    )


def _plan(experts: Path, *, dry: bool = True, **changes: Any) -> StudyPlan:
    path = write_yaml(experts.parent / "study.yml", study_document(**changes))
    return plan_study(read_study(path), experts, backend="hf", dry=dry)


def _without_tokenizer(folder: Path) -> None:
    for file in [*folder.glob("tokenizer*"), *folder.glob("special_tokens_map.json")]:
        file.unlink()


@pytest.mark.parametrize("dry", [False, True])
def test_a_model_without_a_tokenizer_is_named_before_it_is_asked(own: Path, dry: bool) -> None:
    _without_tokenizer(own.parent / "math")
    with pytest.raises(InputError) as caught:
        _plan(own, dry=dry, baseline=["base", "task_expert"])
    assert f"expert math: {own.parent / 'math'} has no tokenizer files" in caught.value.message
    # Where it is only merged, the merge has the tokenizer of its base model.
    assert _plan(own, dry=dry, baseline=["base"]).cells
    _without_tokenizer(own.parent / "base")
    with pytest.raises(InputError, match=r"expert base: .*base has no tokenizer files"):
        _plan(own, dry=dry, baseline=[])


def test_experts_of_more_digits_than_the_base_are_rounded_aloud(own: Path, models: Path) -> None:
    assert not any("rounded" in note for note in _plan(own).notes)
    shutil.rmtree(own.parent / "base")
    write_expert(own.parent / "base", 0, dtype=torch.bfloat16)
    (note,) = (note for note in _plan(own).notes if "rounded" in note)
    assert note.startswith(
        "math, swahili: stored in float32; all models run in bfloat16 as the base"
    )
    assert "--dtype float32" in note
    # Who asks for a dtype knows what is rounded, and nothing is where the base has more digits.
    asked = yaml.safe_load(own.read_text()) | {"options": {"dtype": "bfloat16"}}
    told = _plan(write_yaml(own.parent / "asked.yml", asked)).notes
    assert not any("rounded" in note for note in told)
    shutil.rmtree(own.parent / "base")
    shutil.copytree(models / "base", own.parent / "base")
    for seed, name in enumerate(("math", "swahili"), start=1):
        shutil.rmtree(own.parent / name)
        write_expert(own.parent / name, seed, dtype=torch.bfloat16)
    assert not any("rounded" in note for note in _plan(own).notes)
