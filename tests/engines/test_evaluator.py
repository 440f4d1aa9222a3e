"""What a live engine refuses, and that it works again after every failure. On transformers."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ablations.engines.donor import differences
from ablations.engines.in_place import SwapFailed
from ablations.engines.live import LiveEvaluator, open_live
from ablations.engines.options import EngineOptions
from ablations.engines.task_faults import TaskFault
from ablations.scoring.records import EvaluationRequest
from layerswap_method.errors import InputError
from layerswap_method.tensors import read_mix
from tests.standins.merging import merge_of, merge_of_folder
from tests.standins.worlds import World, make_world
from tests.standins.zoo import make_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*torch_dtype.*"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), "llama")


@pytest.fixture
def live(world: World) -> Iterator[LiveEvaluator]:
    evaluator = open_live(world.base, "hf")
    yield evaluator
    evaluator.close()


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Path:
    """A copy of the task expert, to be changed."""
    return Path(shutil.copytree(world.root / "task", tmp_path / "copy"))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def changed_task(world: World, folder: Path, task: str, old: str, new: str) -> EvaluationRequest:
    """Return a request of one of the world's tasks with a text in its file replaced."""
    tasks = Path(shutil.copytree(world.request.include_path, folder / "tasks"))
    file = tasks / f"{task}.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new).replace(f"task: {task}", "task: words_broken"))
    return EvaluationRequest(tasks=("words_broken",), include_path=tasks)


def weights(live: LiveEvaluator) -> dict[str, torch.Tensor]:
    """Return what the engine really holds."""
    return {name: tensor.detach().clone() for name, tensor in live._lm.model.state_dict().items()}


def holds(live: LiveEvaluator, stream: Any) -> bool:
    found = weights(live)
    assert set(stream.tensors) == set(found)
    return all(torch.equal(found[name], read_mix(stream.tensors[name])) for name in stream.tensors)


def test_a_swap_is_exact_and_loads_no_model_twice(
    world: World, live: LiveEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live.start() > 0
    assert live.start() < 0.1
    base, swap = merge_of(world.cells["base"]), merge_of(world.cells["swap"])
    assert holds(live, base)
    live.swap(swap)
    assert holds(live, swap)
    monkeypatch.setattr(live._engine, "load", lambda tensors: pytest.fail("loaded twice"))
    assert live.swap(merge_of(world.cells["swap"]))["start"] < 0.1


def test_a_donor_that_says_other_things_is_refused(
    copy: Path, live: LiveEvaluator, world: World
) -> None:
    live.swap(merge_of_folder(copy))
    edit(copy / "config.json", rms_norm_eps=1e-3, use_cache=False, transformers_version="4.0")
    edit(copy / "generation_config.json", eos_token_id=[2, 5])
    edit(copy / "tokenizer_config.json", bos_token="w3")
    with pytest.raises(SwapFailed) as raised:
        live.swap(merge_of_folder(copy))
    for part in ("config.json (rms_norm_eps)", "generation_config.json (eos_token_id)"):
        assert part in raised.value.message
    assert "special tokens" in raised.value.message
    assert not raised.value.lasting
    live.swap(merge_of(world.cells["swap"]))
    assert holds(live, merge_of(world.cells["swap"]))


def test_what_changes_no_answer_is_no_difference(copy: Path, world: World) -> None:
    edit(copy / "config.json", use_cache=False, transformers_version="4.0", dtype="bfloat16")
    edit(copy / "tokenizer_config.json", chat_template="{{ messages }}", padding_side="right")
    tokenizer = copy / "tokenizer.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()), indent=7))
    (copy / "generation_config.json").unlink()
    assert differences(world.base, copy) == []


def test_a_token_more_is_a_difference(copy: Path, world: World) -> None:
    path = copy / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["w0"], vocabulary["w1"] = vocabulary["w1"], vocabulary["w0"]
    path.write_text(json.dumps(tokenizer))
    assert differences(world.base, copy) == ["tokenizer (model)"]


def test_another_dtype_is_refused_unless_one_was_asked_for(
    copy: Path, live: LiveEvaluator, world: World
) -> None:
    edit(copy / "config.json", dtype="bfloat16")
    with pytest.raises(SwapFailed, match="it is a bfloat16 model and the engine runs float32"):
        live.swap(merge_of_folder(copy))
    asked = open_live(world.base, "hf", EngineOptions(dtype="float32"))
    asked.swap(merge_of_folder(copy))
    assert holds(asked, merge_of_folder(copy))
    asked.close()


def test_other_tensors_are_refused(copy: Path, live: LiveEvaluator) -> None:
    file = copy / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file({**tensors, "model.extra.weight": torch.zeros(1)}, file)
    with pytest.raises(SwapFailed, match=r"not have the same tensors .*extra\.weight, model\.norm"):
        live.swap(merge_of_folder(copy))


def test_a_load_that_fails_leaves_a_working_engine(
    copy: Path, live: LiveEvaluator, world: World
) -> None:
    file = copy / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.2.mlp.up_proj.weight"  # after others went in
    save_file({**tensors, name: tensors[name][:5].contiguous()}, file)
    base = merge_of(world.cells["base"])
    with pytest.raises(SwapFailed, match=r"\[5, 64\] does not fit the engine's \[96, 64\]"):
        live.swap(merge_of_folder(copy))
    live.swap(base)
    assert holds(live, base)
    save_file(tensors, file)
    stream = merge_of_folder(copy)
    file.unlink()
    with pytest.raises(SwapFailed, match=r"did not get into the engine: .*the weights are gone"):
        live.swap(stream)
    live.swap(base)
    assert holds(live, base)


def test_an_unknown_task_loads_nothing(world: World, live: LiveEvaluator) -> None:
    request = world.request.model_copy(update={"tasks": ("words_chose",)})
    with pytest.raises(InputError, match="did you mean 'words_choose'"):
        live.evaluate(merge_of(world.cells["swap"]), request)
    assert live._lm is None


def test_a_faulty_task_leaves_the_weights_in_the_engine(
    world: World, live: LiveEvaluator, tmp_path: Path
) -> None:
    request = changed_task(world, tmp_path, "words_choose", "{{choices}}", "{{no_such_column}}")
    stream = merge_of(world.cells["swap"])
    with pytest.raises(TaskFault, match="uses 'no_such_column'"):
        live.evaluate(stream, request)
    assert live._lm is not None  # nothing was asked
    assert holds(live, stream)


def test_a_task_that_raises_while_it_is_asked_ends_the_engine(
    world: World, live: LiveEvaluator, tmp_path: Path
) -> None:
    metric = "metric: exact_match"
    request = changed_task(
        world, tmp_path, "words_generate", metric, f"{metric}\n  regexes_to_ignore: ['(']"
    )
    stream = merge_of(world.cells["swap"])
    with pytest.raises(re.error, match="missing \\)"):
        live.evaluate(stream, request)
    assert live._lm is None  # requests might have been under way
    choose = world.request.model_copy(update={"tasks": ("words_choose",)})
    evaluation = live.evaluate(stream, choose)
    assert evaluation.score("words_choose").n == 24
    assert holds(live, stream)


def test_a_tied_model_with_a_head_of_its_own_is_refused(copy: Path, world: World) -> None:
    edit(copy / "config.json", tie_word_embeddings=True)
    with pytest.raises(InputError, match=r"its lm_head\.weight is not its model\.embed_tokens"):
        open_live(copy, "hf")


def test_a_model_under_other_names_is_refused_for_good(world: World, tmp_path: Path) -> None:
    # transformers stacks a mixture's experts; mergekit's checkpoint of it has other names too.
    folder = make_model("mixtral", tmp_path / "mixtral", 0)
    for file in world.base.glob("tokenizer*"):
        shutil.copy(file, folder)
    live = open_live(folder, "hf")
    for _ in range(2):
        with pytest.raises(SwapFailed, match="under other names than its checkpoint") as raised:
            live.swap(merge_of_folder(folder))
        assert raised.value.lasting
    assert live._lm is None


def test_no_checkpoint_and_no_backend(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no readable config"):
        open_live(tmp_path / "absent", "hf")
