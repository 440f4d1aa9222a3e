"""An engine without the base's weights starts on the first merge, and answers as one with them."""

import shutil
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from ablations.engines import loading
from ablations.engines.hf_model import HfModel
from ablations.engines.live import LiveEvaluator, SwapFailed
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.stored import read_tensor
from layerswap_method.hub.partial import NotDownloaded
from layerswap_method.mix_reader import MixReader
from tests.engines.backends import BACKENDS, VLLM
from tests.engines.test_evaluator import WRONG
from tests.engines.test_live import ORDER
from tests.engines.test_processes import likelihoods
from tests.engines.test_processes import texts as generations
from tests.standins.live_cells import FAMILIES, OPTIONS, make_world
from tests.standins.merging import merge_of, merge_of_folder
from tests.standins.partial import write_headers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*torch_dtype.*")]

OVER_ITSELF = "with every tensor of the first merge loaded over itself"


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="module", params=FAMILIES)
def study(request, backend, tmp_path_factory):
    """A world whose base has no weights here, and what an engine that starts on the base says."""
    root = tmp_path_factory.mktemp(f"{backend}-{request.param}")
    world = make_world(root, request.param)
    based = LiveEvaluator(world.base, backend, OPTIONS)
    merges = {name: merge_of(cell) for name, cell in world.cells.items()}
    expected = {name: based.evaluate(merge, world.request) for name, merge in merges.items()}
    based.close()
    partial = write_headers(world.base, root / "partial")
    return SimpleNamespace(
        world=world, backend=backend, merges=merges, expected=expected, partial=partial
    )


@pytest.fixture
def live(study):
    evaluator = LiveEvaluator(study.partial, study.backend, OPTIONS)
    yield evaluator
    evaluator.close()


def check_answers(study, live, name):
    evaluation, expected = (
        live.evaluate(study.merges[name], study.world.request),
        study.expected[name],
    )
    assert generations(evaluation) == generations(expected), name
    assert likelihoods(evaluation) == likelihoods(expected), name
    assert evaluation.scores == expected.scores, name


def test_the_base_has_no_weights(study):
    stored = read_checkpoint("base", study.partial).tensors
    for place in stored.values():
        with pytest.raises(NotDownloaded):
            read_tensor(place)


def test_scores_are_those_of_an_engine_that_started_on_the_base(study, live):
    for name in ORDER:
        check_answers(study, live, name)
    live.check()
    check_answers(study, live, "only_k")


@pytest.mark.parametrize("first", ["only_k", "soup"])
def test_also_after_a_load_that_failed(study, live, first, monkeypatch):
    check_answers(study, live, first)
    fill = MixReader.fill

    def fail(reader, out, begin=0, buffers=None):
        if "layers.0.mlp.up_proj" in reader._mix.terms[0].stored.name:
            raise OSError("the disk is gone")
        fill(reader, out, begin, buffers)

    with monkeypatch.context() as patch:
        patch.setattr(MixReader, "fill", fail)
        for _ in range(2):  # in a running engine, and at a start
            with pytest.raises(SwapFailed, match="the disk is gone"):
                live.swap(study.merges["swap"])
            assert live._lm is None
    for name in ("swap", "base", first):
        check_answers(study, live, name)
    live.check()


def without(folder, out, name):
    """Write a checkpoint without a tensor, and return its folder."""
    shutil.copytree(folder, out)
    tensors = load_file(out / "model.safetensors")
    del tensors[name]
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


def test_a_parameter_without_a_tensor_is_refused(study, live, tmp_path):
    task = without(study.world.root / "task", tmp_path / "task", WRONG)
    with pytest.raises(SwapFailed, match=f"not have the same tensors as the engine's .{WRONG}"):
        live.swap(merge_of_folder(task))
    base = write_headers(without(study.world.base, tmp_path / "base", WRONG), tmp_path / "partial")
    with pytest.raises(SwapFailed, match=f"its files lack {WRONG}"):
        LiveEvaluator(base, study.backend, OPTIONS).swap(merge_of_folder(task))


def test_a_first_merge_that_cannot_be_loaded_leaves_the_place_to_the_next(study, live, tmp_path):
    folder = shutil.copytree(study.world.root / "task", tmp_path / "copy")
    stream = merge_of_folder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(SwapFailed, match="the weights are gone"):
        live.swap(stream)
    check_answers(study, live, "swap")
    assert live._first is study.merges["swap"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    world = make_world(root, "llama")
    partial = write_headers(world.base, root / "partial")
    swap, other = (merge_of(world.cells[name]) for name in ("swap", "only_k"))
    return SimpleNamespace(partial=partial, swap=swap, other=other)


def test_a_load_that_does_nothing_is_noticed(small, monkeypatch):
    live, load = LiveEvaluator(small.partial, "hf", OPTIONS), HfModel.load
    monkeypatch.setattr(HfModel, "load", lambda engine, mixes, names: None)
    with pytest.raises(SwapFailed, match=r"model\.norm\.weight was multiplied .*has no effect"):
        live.swap(small.swap)
    monkeypatch.setattr(HfModel, "load", load)
    live.swap(small.swap)


def test_a_first_merge_that_does_not_come_back_is_noticed(small, monkeypatch):
    live, load = LiveEvaluator(small.partial, "hf", OPTIONS), HfModel.load
    live.swap(small.swap)
    live.swap(small.other)
    live.check()
    live.swap(small.other)

    def forgetful(engine, mixes, names):
        load(engine, mixes, [name for name in names if name != WRONG])

    monkeypatch.setattr(HfModel, "load", forgetful)
    # What the first merge and the other share is not loaded again; this tensor they do not share.
    assert small.swap.tensors[WRONG] != small.other.tensors[WRONG]
    with pytest.raises(SwapFailed, match="with the first merge's weights back in place"):
        live.check()
    monkeypatch.undo()
    with pytest.raises(SwapFailed, match="with the first merge's weights back in place"):
        live.swap(small.other)


@pytest.mark.parametrize("backend", [pytest.param("vllm", marks=VLLM)])
def test_vllm_is_checked_against_what_it_started_on(small, backend, monkeypatch):
    read, reads = loading.read_tensors, []

    def transposing(*arguments):
        reads.append(arguments)
        for name, tensor in read(*arguments):
            is_wrong = len(reads) > 1 and name == WRONG  # all but what the engine starts on
            yield name, tensor.T.contiguous() if is_wrong else tensor

    monkeypatch.setattr(loading, "read_tensors", transposing)
    with pytest.raises(SwapFailed, match=f"{OVER_ITSELF}, vllm answers"):
        LiveEvaluator(small.partial, backend, OPTIONS).swap(small.swap)
