"""What the suite refuses, before a model is loaded where that can be known."""

import shutil
from pathlib import Path

import pytest

from layerswap_method.errors import InputError, LayerSwapError
from tests.evaluate.conftest import OPTIONS, ask

pytestmark = pytest.mark.filterwarnings("ignore")


def test_everything_that_is_missing_is_said_before_a_model_is_loaded(expert, data, tmp_path):
    empty = tmp_path / "data"
    shutil.copytree(data / "mgsm", empty / "mgsm")
    with pytest.raises(InputError) as caught:
        ask(expert, empty, tmp_path / "out", benchmarks=("mgsm", "belebele", "mmlu"))
    message = caught.value.message
    assert message.startswith("data of the tasks: 4 problems")
    assert "no folder 'belebele' in it; expected is belebele/sw_test.jsonl" in message
    assert "expected is mmlu/te_dev.jsonl" in message
    assert not (tmp_path / "out" / "run.json").exists()


def test_gpus_that_are_not_there_are_said_before_anything_is_read_or_written(
    expert, data, tmp_path
):
    large = OPTIONS.model_copy(update={"tensor_parallel_size": 64})
    with pytest.raises(InputError, match=r"with --backend hf write device_map: auto"):
        ask(expert, data, tmp_path / "out", options=large)
    assert not (tmp_path / "out").exists()


def test_models_that_are_not_there_are_said(expert, data, tmp_path):
    with pytest.raises(InputError, match="no such folder; did you mean 'task'"):
        ask(expert.with_name("tasc"), data, tmp_path)
    with pytest.raises(InputError, match=r"^nobody/nothing: no such folder .* and the hub says: "):
        ask(Path("nobody/nothing"), data, tmp_path)
    with pytest.raises(InputError, match=r"^org/base: no such folder .* and the hub says: "):
        ask(Path("org/base+path/adapter"), data, tmp_path)
    with pytest.raises(InputError, match=r"^/no/adapter: no such folder"):
        ask(Path(f"{expert}+/no/adapter"), data, tmp_path)
    with pytest.raises(
        InputError, match=r"has no adapter_config\.json, so it is not a PEFT adapter"
    ):
        ask(Path(f"{expert}+{expert}"), data, tmp_path)


def test_a_damaged_checkpoint_is_one_message(expert, data, tmp_path):
    damaged = shutil.copytree(expert, tmp_path / "damaged")
    (weights,) = damaged.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(LayerSwapError, match=r"damaged: model.safetensors is damaged"):
        ask(damaged, data, tmp_path / "out", benchmarks=("mgsm",))


def test_a_folder_that_cannot_be_written_is_said_before_a_model_is_loaded(expert, data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: is not a folder"):
        ask(expert, data, tmp_path / "file" / "out")
    # One that looks as if it could be written: root may write to /proc, which takes nothing.
    with pytest.raises(LayerSwapError, match=r"/proc/layerswap.*: cannot be written: "):
        ask(expert, data, Path("/proc/layerswap"))


def test_a_suite_of_skipped_tasks_does_not_claim_an_evaluation(expert, data, tmp_path):
    text = ask(expert, data, tmp_path / "out", benchmarks=("mbpp",)).report()
    skipped = "layerswap_mbpp_sw, layerswap_mbpp_te: skipped: needs --allow-code-execution"
    assert skipped in text
    assert "Nothing was evaluated." in text
    assert "Evaluated by" not in text
    assert not (tmp_path / "out").exists()
