"""What a live engine refuses, and that it works again after every failure. On transformers."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ablations.engines import loading
from ablations.engines.hf_model import HfModel
from ablations.engines.live import LiveEvaluator, SwapFailed, folder_differences
from ablations.engines.options import EngineOptions
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from layerswap_method.errors import InputError
from layerswap_method.mix_reader import MixReader
from tests.engines.backends import VLLM
from tests.engines.test_processes import likelihoods
from tests.engines.test_processes import texts as generations
from tests.standins.live_cells import OPTIONS, make_world
from tests.standins.merging import merge_of, merge_of_folder
from tests.standins.model_families import make_model

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")


WRONG = "model.layers.1.self_attn.o_proj.weight"
"""A square tensor of a module that nothing is fused into."""

BACK = "with the base's weights back in place"
OVER_ITSELF = "with every tensor of the base loaded over itself"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), "llama")


@pytest.fixture
def live(world):
    evaluator = LiveEvaluator(world.base, "hf")
    yield evaluator
    evaluator.close()


@pytest.fixture
def copy(world, tmp_path):
    """A copy of the task expert, to be changed."""
    return Path(shutil.copytree(world.root / "task", tmp_path / "copy"))


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def changed_task(world, folder, task, old, new):
    """Return one of the world's tasks with a text in its file replaced."""
    tasks = Path(shutil.copytree(world.request.include_path[0], folder / "tasks"))
    text = (tasks / f"{task}.yaml").read_text()
    assert old in text
    changed = text.replace(old, new).replace(f"task: {task}", "task: words_broken")
    (tasks / f"{task}.yaml").write_text(changed)
    return resolve(EvaluationRequest(tasks=("words_broken",), include_path=tasks))


def holds(live, stream):
    """Return whether the engine really has these weights."""
    found = live._engine.model.state_dict()
    assert set(stream.tensors) == set(found)
    return all(
        torch.equal(found[name], MixReader(stream.tensors[name]).read()) for name in stream.tensors
    )


def test_a_swap_is_exact_and_loads_no_model_twice(world, live, monkeypatch):
    base, swap = merge_of(world.cells["base"]), merge_of(world.cells["swap"])
    live.swap(base)
    assert holds(live, base)
    live.swap(swap)
    assert holds(live, swap)
    monkeypatch.setattr(live._engine, "load", lambda *tensors: pytest.fail("loaded twice"))
    live.swap(merge_of(world.cells["swap"]))


def test_scores_are_those_of_a_cold_engine(world, live):
    """The quick one of `test_live`, which compares every kind of merge on both engines."""
    cold = world.cold("hf", "swap")
    first, again = (
        live.evaluate(merge_of(world.cells[name]), world.tasks) for name in ("base", "swap")
    )
    assert again.scores == cold.scores
    assert generations(again) == generations(cold) != generations(first)
    assert likelihoods(again) == pytest.approx(likelihoods(cold), abs=1e-4)


def test_what_changes_no_answer_is_no_difference_and_another_token_is(copy, world):
    edit(copy / "config.json", use_cache=False, transformers_version="4.0", dtype="bfloat16")
    edit(copy / "tokenizer_config.json", chat_template="{{ messages }}", padding_side="right")
    path = copy / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    path.write_text(json.dumps(tokenizer, indent=7))
    (copy / "generation_config.json").unlink()
    assert folder_differences(world.base, copy) == []
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["w0"], vocabulary["w1"] = vocabulary["w1"], vocabulary["w0"]
    path.write_text(json.dumps(tokenizer))
    assert folder_differences(world.base, copy) == ["tokenizer (model)"]


def test_what_would_not_be_the_merged_checkpoint_is_refused_with_every_reason(copy, live, world):
    live.swap(merge_of_folder(copy))
    edit(copy / "config.json", dtype="bfloat16")
    stated = LiveEvaluator(world.base, "hf", EngineOptions(dtype="float32"))
    stated.swap(merge_of_folder(copy))
    assert holds(stated, merge_of_folder(copy))
    edit(copy / "config.json", rms_norm_eps=1e-3, use_cache=False, transformers_version="4.0")
    edit(copy / "generation_config.json", eos_token_id=[2, 5])
    edit(copy / "tokenizer_config.json", bos_token="w3")
    file = copy / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file({**tensors, "model.extra.weight": torch.zeros(1)}, file)
    with pytest.raises(SwapFailed) as raised:
        live.swap(merge_of_folder(copy))
    for part in (
        "config.json (rms_norm_eps)",
        "generation_config.json (eos_token_id)",
        "special",
        "it is a bfloat16 model and the engine runs float32",
        "(model.extra.weight, model.norm.weight)",
    ):
        assert part in raised.value.message
    live.swap(merge_of(world.cells["swap"]))
    assert holds(live, merge_of(world.cells["swap"]))


def test_a_load_that_fails_leaves_a_working_engine(copy, live, world):
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


def test_a_task_that_fails_ends_the_engine_where_something_was_sent(world, live, tmp_path):
    stream = merge_of(world.cells["swap"])
    unsent = changed_task(world, tmp_path / "a", "words_choose", "{{choices}}", "{{no_such}}")
    with pytest.raises(InputError, match="'no_such' is undefined"):
        live.evaluate(stream, unsent)
    assert live._engine is not None
    assert holds(live, stream)
    metric = "metric: exact_match"
    wrong = f"{metric}\n  regexes_to_ignore: ['(']"
    with pytest.raises(re.error, match="missing \\)"):
        live.evaluate(stream, changed_task(world, tmp_path / "b", "words_generate", metric, wrong))
    assert live._engine is None  # requests might have been under way
    choose = world.tasks.only("words_choose")
    assert live.evaluate(stream, choose).shown_score("words_choose").n == 24
    assert holds(live, stream)


def test_a_tied_model_with_a_head_of_its_own_is_refused(copy, world):
    edit(copy / "config.json", tie_word_embeddings=True)
    with pytest.raises(InputError, match=r"its lm_head\.weight is not its model\.embed_tokens"):
        LiveEvaluator(copy, "hf")


def test_a_model_under_other_names_is_refused_for_good(world, tmp_path):
    # transformers stacks a mixture's experts; mergekit's checkpoint of it has other names too.
    folder = make_model("mixtral", tmp_path / "mixtral", 0)
    for file in world.base.glob("tokenizer*"):
        shutil.copy(file, folder)
    live = LiveEvaluator(folder, "hf")
    for _ in range(2):
        with pytest.raises(SwapFailed, match="under other names than its checkpoint"):
            live.swap(merge_of_folder(folder))
    assert live._engine is None


def test_an_engine_in_float16_starts_although_its_probe_overflows(world):
    live = LiveEvaluator(world.base, "hf", OPTIONS.model_copy(update={"dtype": "float16"}))
    live.swap(merge_of(world.cells["swap"]))
    live.check()


def test_a_load_that_does_nothing_is_noticed(world, monkeypatch):
    monkeypatch.setattr(HfModel, "load", lambda engine, mixes: None)
    with pytest.raises(SwapFailed, match=r"model\.norm\.weight was multiplied .*has no effect"):
        LiveEvaluator(world.base, "hf", OPTIONS).swap(merge_of(world.cells["swap"]))


def test_a_base_that_does_not_come_back_is_noticed(world, monkeypatch):
    live = LiveEvaluator(world.base, "hf", OPTIONS)
    live.check()  # nothing runs, and nothing is wrong
    assert live._engine is None
    for _ in range(2):
        live.swap(merge_of(world.cells["swap"]))
        live.check()
    live.swap(merge_of(world.cells["swap"]))
    load = HfModel.load

    def forgetful(engine, mixes):
        load(engine, {name: mix for name, mix in mixes.items() if name != WRONG})

    monkeypatch.setattr(HfModel, "load", forgetful)
    with pytest.raises(SwapFailed, match=BACK):
        live.check()
    monkeypatch.undo()
    with pytest.raises(SwapFailed, match=BACK):
        live.swap(merge_of_folder(world.base))


@pytest.mark.parametrize("backend", [pytest.param("vllm", marks=VLLM)])
def test_vllm_is_checked_alike(world, backend, monkeypatch):
    read, wrong = loading.read_tensors, []

    def transposing(*arguments):
        for name, tensor in read(*arguments):
            yield name, tensor.T.contiguous() if name in wrong else tensor

    monkeypatch.setattr(loading, "read_tensors", transposing)
    live = LiveEvaluator(world.base, backend, OPTIONS)
    live.swap(merge_of(world.cells["swap"]))
    live.check()
    live.swap(merge_of(world.cells["swap"]))
    wrong.append(WRONG)
    with pytest.raises(SwapFailed, match=f"{BACK}, vllm answers"):
        live.check()
    with pytest.raises(SwapFailed, match=f"{OVER_ITSELF}, vllm answers"):
        LiveEvaluator(world.base, backend, OPTIONS).swap(merge_of(world.cells["swap"]))
