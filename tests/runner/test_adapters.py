"""Experts as base+adapter through whole runs, and experts that another machine looks for."""

import dataclasses
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ablations.engines.options import EngineOptions
from ablations.models.find import Expert
from ablations.runner import records
from ablations.runner.engines import EngineSetup
from ablations.runner.run import RunOptions, run_study
from ablations.runner.work import Work
from ablations.scoring.records import EvaluationRequest
from ablations.study.identity import folder_state
from layerswap_method.errors import LayerSwapError
from tests.runner.fakes import scores_by_label
from tests.standins.studies import study_document, write_yaml


def write_adapter(folder: Path, base: Path) -> Path:
    """Write a LoRA adapter of the query projections; a large change, so that answers differ."""
    import torch

    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(4):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(4, 32, generator=generator)
        tensors[f"{name}.lora_B.weight"] = torch.randn(32, 4, generator=generator)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_an_adapter_is_streamed_as_mergekit_would_merge_it(tmp_path: Path, models: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", models / "base")
    setting = {
        "experts": {
            "base": str(models / "base"),
            "math": str(models / "math"),
            "swahili": f"{models / 'base'}+{adapter}",
        },
        "include_path": str(models / "tasks"),
    }
    experts = write_yaml(tmp_path / "experts.yml", setting)
    document = study_document(
        baseline=["base", "language_expert", "soup"], vary={"bottom_layers": [1]}
    )
    study = str(write_yaml(tmp_path / "small.yml", document))
    options = RunOptions(experts=experts, out=tmp_path / "live", backend="hf")
    assert not run_study(study, options).summary.failed
    options = RunOptions(
        experts=experts,
        out=tmp_path / "cold",
        backend="hf",
        materialize=True,
        only=("kind=language_expert", "kind=recipe"),
    )
    assert not run_study(study, options).summary.failed
    cells = records.load_run(tmp_path / "live").cells
    assert {cell.provenance["weights"] for cell in cells} == {"streamed"}
    assert len({tuple(s.answers for s in cell.samples()) for cell in cells}) == 4
    found, cold = scores_by_label(tmp_path / "live"), scores_by_label(tmp_path / "cold")
    assert len(cold) == 2
    assert cold == {label: found[label] for label in cold}


@pytest.mark.slow
@pytest.mark.parametrize("by_mergekit", [False, True], ids=["files", "mergekit"])
def test_an_adapter_trained_anew_is_merged_anew(
    by_mergekit: bool, tmp_path: Path, models: Path
) -> None:
    """mergekit takes the merged copy that it finds, of whatever adapter it is."""
    adapter = write_adapter(tmp_path / "adapter", models / "base")
    expert = Expert("math", models / "base", adapter)
    merge = {"merge_method": "passthrough", "models": [{"model": expert.reference}]}
    if by_mergekit:
        merge["parameters"] = {"scale": 1.0}
    request = EvaluationRequest(tasks=("words",), include_path=models / "tasks", limit=8)
    said = []
    for scale in (1, -3):
        file = adapter / "adapter_model.safetensors"
        save_file({name: tensor * scale for name, tensor in load_file(file).items()}, file)
        setup = EngineSetup(
            backend="hf",
            options=EngineOptions(batch_size=8),
            base=Expert("base", models / "base"),
            experts={expert.reference: expert},
            states={str(adapter): folder_state(adapter)},
            out=tmp_path,
            answers=tmp_path / "answers",
            materialize=True,
        )
        done = setup().evaluate(Work(f"key {scale}", f"weights {scale}", "math", merge, request))
        assert done.provenance["weights"] == "checkpoint"
        said.append([sample.responses for sample in done.evaluation.samples])
    assert said[0] != said[1]
    copies = list((tmp_path / ".work").glob("adapters/*"))
    assert len(copies) == by_mergekit


def test_an_expert_is_found_by_its_source_where_the_folder_is_not(
    tmp_path: Path, models: Path
) -> None:
    """As on another node: the driver's folder is not there, what it was found by is."""
    absent = tmp_path / "snapshots" / "abc"
    expert = Expert("base", absent, source=str(models / "base"))
    setup = EngineSetup(
        backend="hf",
        options=EngineOptions(batch_size=8),
        base=expert,
        experts={expert.reference: expert},
        states={},
        out=tmp_path,
        answers=tmp_path / "answers",
    )
    merge = {"merge_method": "passthrough", "models": [{"model": expert.reference}]}
    request = EvaluationRequest(tasks=("words",), include_path=models / "tasks", limit=2)
    engine = setup()
    done = engine.evaluate(Work("s", "w", "base", merge, request))
    engine.close()
    assert done.provenance["weights"] == "streamed"
    lost = Expert("base", absent, source=str(tmp_path / "nowhere" / "else" / "x"))
    away = dataclasses.replace(setup, base=lost, experts={lost.reference: lost})
    with pytest.raises(LayerSwapError, match="no such folder"):
        away().evaluate(Work("s", "w", "base", merge, request))


@pytest.mark.parametrize("name", ["mathé", " ".join(["a long name"] * 12)])
def test_an_expert_is_watched_whatever_its_folder_is_called(
    tmp_path: Path, models: Path, name: str
) -> None:
    folder = tmp_path / name / "math"
    folder.mkdir(parents=True)
    setup = EngineSetup(
        backend="hf",
        options=EngineOptions(),
        base=Expert("base", models / "base"),
        experts={str(folder): Expert("math", folder), str(tmp_path): Expert("above", tmp_path)},
        states={},
        out=tmp_path,
        answers=tmp_path / "answers",
    )
    merge = {"merge_method": "passthrough", "models": [{"model": str(folder)}]}
    request = EvaluationRequest(tasks=("words",), include_path=models / "tasks")
    with pytest.raises(LayerSwapError, match="expert 'math' has disappeared"):
        setup().evaluate(Work("s", "w", "math", merge, request))
