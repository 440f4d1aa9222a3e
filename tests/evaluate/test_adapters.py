"""A base with an adapter scores as the checkpoint that mergekit makes of both."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from ablations.engines import vllm_engine
from ablations.evaluate.run import SuiteResult
from ablations.runner.checkpoints import run_mergekit
from layerswap_method.errors import InputError
from tests.evaluate.conftest import ask, samples_of
from tests.standins.scripted import DATA
from tests.standins.tuned import write_adapter

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite") / "adapter"
    # Not of the attention: to this model most words are one, and attention to equal ones is equal.
    return write_adapter(folder, "model.layers.1.mlp.down_proj", 96, 64)


def both_ways(
    expert: Path, adapter: Path, out: Path, **changes: object
) -> tuple[SuiteResult, SuiteResult]:
    """Return what a base and its adapter say, and what the checkpoint says that mergekit makes."""
    reference = f"{expert}+{adapter}"
    recipe = out / "recipe.yml"
    recipe.write_text(f"merge_method: passthrough\nmodels: [{{model: '{reference}'}}]\n")
    run_mergekit(recipe, out / "merged", log=out / "log")
    asked: dict[str, object] = {"benchmarks": ("mgsm", "belebele", "flores"), "limit": 3, **changes}
    return (
        ask(Path(reference), DATA, out / "streamed", **asked),
        ask(out / "merged", DATA, out / "cold", **asked),
    )


@pytest.mark.slow
def test_a_base_with_an_adapter_scores_as_the_merged_checkpoint(
    expert: Path, adapter: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    streamed, cold = both_ways(expert, adapter, tmp_path)
    assert len(streamed.evaluations) == len(cold.evaluations) == 8
    alone = ask(expert, DATA, tmp_path / "alone", benchmarks=("mgsm",), limit=3)
    for name, each in streamed.evaluations.items():
        assert each.model == f"{expert}+{adapter}"
        assert each.scores == cold.evaluations[name].scores
        assert samples_of(streamed, name) == samples_of(cold, name)
    for name in alone.evaluations:
        assert samples_of(alone, name) != samples_of(streamed, name)
    table = streamed.report().partition("Task  ")[2]
    assert "task+adapter" in table.splitlines()[0]
    # The adapter is a part of the model: nothing is asked again, unless it has changed.
    caplog.clear()
    with caplog.at_level(logging.INFO, "ablations"):
        ask(Path(f"{expert}+{adapter}"), DATA, streamed.out, benchmarks=("mgsm",), limit=3)
    assert "evaluated in" not in caplog.text
    with caplog.at_level(logging.INFO, "ablations"):
        ask(expert, DATA, streamed.out, benchmarks=("mgsm",), limit=3)
    assert "evaluated in" in caplog.text


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_a_base_with_an_adapter_scores_as_the_merged_checkpoint_on_vllm(
    expert: Path, adapter: Path, tmp_path: Path
) -> None:
    streamed, cold = both_ways(expert, adapter, tmp_path, backend="vllm", benchmarks=("mgsm",))
    assert len(streamed.evaluations) == 2
    for name, each in streamed.evaluations.items():
        assert each.backend == "vllm"
        assert each.scores == cold.evaluations[name].scores
        assert samples_of(streamed, name) == samples_of(cold, name)


def test_an_adapter_that_cannot_be_streamed_is_said(
    expert: Path, adapter: Path, data: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(adapter, tmp_path / "dora")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(InputError, match="use_dora is set; merge it into its base first"):
        ask(Path(f"{expert}+{other}"), data, tmp_path / "out", benchmarks=("mgsm",))
