"""What threads read is, bit for bit, `weighted_average` over what safetensors reads."""

import random
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ablations.engines import loading
from ablations.engines.loading import fill_tensors, read_tensors
from layerswap_method.average import weighted_average
from layerswap_method.checkpoint.low_rank import LowRankChange
from layerswap_method.checkpoint.stored import read_header
from layerswap_method.deltas.features import feature_layout, spread_features
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.merge import check_device
from layerswap_method.mix_reader import MixReader
from layerswap_method.tensors import FeatureMask, TensorMix, Term

SHAPES = [(), (7,), (0, 5), (131, 3), (65, 2, 9), (700, 450), (300_001,)]
"""The last two are of several blocks, the last one of an odd length."""

DTYPES = ["bfloat16", "float16", "float32", "float64"]
WEIGHTS = [1.0, 2.0, 0.3, 0.7, 1e-3, 1 / 3]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Trials:
    """Random mixes of every kind over one file, with what each must be."""

    def __init__(self, folder, seed, count):
        self._random = random.Random(seed)
        self._torch = torch.Generator().manual_seed(seed)
        self._file, self._stored = folder / f"{seed}.safetensors", {}
        drawn = [self._draw(f"t{number}") for number in range(count)]
        save_file(self._stored, self._file)
        self._places, self._content = read_header(self._file), load_file(self._file)
        self.mixes = {name: self._mix(*settings) for name, *settings in drawn}
        self.wanted = {name: self._whole(mix) for name, mix in self.mixes.items()}

    def _draw(self, name):
        """Store the tensors of a mix; return its name, shape, kind and terms."""
        draw = self._random
        shape = draw.choice(SHAPES)
        kind = draw.choice(["copy", "average", "average", "mask"])
        count = {"copy": 1, "mask": 2}.get(kind) or draw.randint(2, 4)
        mixed = draw.random() < 0.3
        dtypes = [draw.choice(DTYPES) for _ in range(count)] if mixed else [draw.choice(DTYPES)]
        terms = []
        for number in range(count):
            key, dtype = f"{name}.{number}", getattr(torch, dtypes[number % len(dtypes)])
            self._store(key, shape, dtype)
            change = None
            if len(shape) == 2 and shape[0] and draw.random() < 0.4:
                change = (draw.random() < 0.5, draw.choice([0.5, 1.75]))
                inputs, outputs = shape if change[0] else shape[::-1]
                self._store(f"{key}.down", (5, inputs), torch.bfloat16)
                self._store(f"{key}.up", (outputs, 5), torch.bfloat16)
            terms.append((key, draw.choice(WEIGHTS), draw.choice([None, None, *DTYPES]), change))
        return name, shape, kind, terms

    def _store(self, key, shape, dtype):
        self._stored[key] = torch.randn(shape, generator=self._torch).to(dtype)

    def _mix(self, shape, kind, drawn):
        draw, terms = self._random, []
        for key, weight, cast, change in drawn:
            lora = None
            if change is not None:
                factors = {"down": self._places[f"{key}.down"], "up": self._places[f"{key}.up"]}
                lora = LowRankChange(
                    **factors, scaling=change[1], transposed=change[0], module="module"
                )
            at = self._places[key]
            cast = None if cast == at.torch_name or kind == "copy" else cast
            terms.append(Term(stored=at, coefficient=weight, cast=cast, change=lora))
        mask = None
        if kind == "mask":
            axis = draw.choice({2: [None, 0, 1], 3: [None, 1, 2]}.get(len(shape), [None]))
            count = feature_layout(shape, axis).features
            bits = np.array([draw.random() < 0.5 for _ in range(count)], dtype=bool)
            mask = FeatureMask(first=np.packbits(bits).tobytes().hex(), axis=axis)
        return TensorMix(
            terms=tuple(terms),
            load_dtype=draw.choice([None, None, *DTYPES]),
            dtype=draw.choice([None, None, *DTYPES]),
            factor=draw.choice([1.0, 1.0, 0.5, -1024]),
            mask=mask,
        )

    def _whole(self, mix):
        """Return the tensor by whole-tensor operations."""
        tensors = []
        for term in mix.terms:
            dtype = getattr(torch, term.dtype)
            if term.change is not None:  # a narrow base would round it away
                dtype = torch.promote_types(dtype, getattr(torch, mix.result_dtype))
            tensor = self._content[term.stored.name].to(dtype)
            if (change := term.change) is not None:
                wide = torch.promote_types(getattr(torch, term.dtype), torch.float32)
                up, down = (self._content[at.name].to(wide) for at in (change.up, change.down))
                product = up @ down
                tensor = tensor + 0 if tensor.dim() == 0 else tensor.clone()
                tensor.add_((product.T if change.transposed else product) * change.scaling)
            tensors.append(tensor.to(getattr(torch, mix.load_dtype) if mix.load_dtype else dtype))
        result = getattr(torch, mix.result_dtype)
        if mix.mask is not None:
            packed = np.frombuffer(bytes.fromhex(mix.mask.first), dtype=np.uint8)
            count = feature_layout(mix.shape, mix.mask.axis).features
            first = torch.from_numpy(np.unpackbits(packed, count=count).astype(bool))
            first = spread_features(first, mix.shape, mix.mask.axis)
            both = (tensor.to(getattr(torch, mix.sum_dtype)) for tensor in tensors)
            whole = torch.where(first, *both).to(result)
        else:
            whole = weighted_average(tensors, [term.coefficient for term in mix.terms], result)
        return whole if mix.factor == 1 else whole * mix.factor


def same_bits(one, other):
    """Return whether two tensors agree in shape, dtype and every value; NaN equals NaN."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num(7.0), other.nan_to_num(7.0)
    )


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Every larger tensor is the work of several threads, in parts that end inside of a block."""
    monkeypatch.setattr(loading, "_PART", 100_001)
    monkeypatch.setattr(loading, "_REUSED_BYTES", 1000)
    monkeypatch.setattr(loading._Lane, "block", 100_001)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(4))
def test_every_kind_of_mix_has_the_bits_of_the_whole_tensors_average(seed, device, tmp_path):
    check_device(device)
    trials = Trials(tmp_path, seed, 40)
    kinds = {(len(m.terms), m.mask is None, m.factor == 1) for m in trials.mixes.values()}
    assert len(kinds) > 5
    assert any(term.change for mix in trials.mixes.values() for term in mix.terms)
    found = dict(read_tensors(trials.mixes, device, threads=3))  # an engine keeps what it is given
    assert list(found) == list(trials.mixes)
    for name, tensor in found.items():
        assert tensor.device.type == device
        assert same_bits(tensor.cpu(), trials.wanted[name]), trials.mixes[name]
    if device == "cpu":
        for name, mix in trials.mixes.items():
            assert same_bits(MixReader(mix).read(), trials.wanted[name]), mix


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_parameters_are_filled_in_place_in_their_own_dtype(dtype, device, tmp_path):
    check_device(device)
    trials = Trials(tmp_path, 11, 30)
    held = {
        name: torch.nn.Parameter(torch.full(mix.shape, torch.nan, dtype=dtype, device=device))
        for name, mix in trials.mixes.items()
    }
    places = {name: tensor.data_ptr() for name, tensor in held.items()}
    fill_tensors(trials.mixes, held, device, threads=2)
    for name, tensor in held.items():
        assert (tensor.data_ptr(), tensor.requires_grad) == (places[name], True)
        assert same_bits(tensor.detach().cpu(), trials.wanted[name].to(dtype)), trials.mixes[name]


@pytest.mark.gpu
def test_memory_that_the_engine_gives_back_is_written_only_when_it_is_done_with_it(tmp_path):
    """The consumer's stream lags far behind: it still reads a tensor whose memory was freed."""
    check_device("cuda")
    trials = Trials(tmp_path, 5, 40)
    for _ in range(3):
        copies, busy = {}, torch.randn(4096, 4096, device="cuda")
        for name, tensor in read_tensors(trials.mixes, "cuda", threads=4):
            busy = (busy @ busy).clamp(-1, 1)
            copies[name] = tensor.clone()
            del tensor
        for name, copy in copies.items():
            assert same_bits(copy.cpu(), trials.wanted[name]), trials.mixes[name]


@pytest.mark.gpu
def test_experts_of_a_mixture_stay_on_the_host(tmp_path):
    check_device("cuda")
    trials = Trials(tmp_path, 6, 2)
    first, second = trials.mixes
    named = {"model.layers.0.mlp.experts.0.up_proj.weight": first, "model.norm.weight": second}
    found = dict(read_tensors({name: trials.mixes[key] for name, key in named.items()}, "cuda"))
    assert [tensor.device.type for tensor in found.values()] == ["cpu", "cuda"]
    for name, key in named.items():
        assert same_bits(found[name].cpu(), trials.wanted[key])


def test_memory_is_used_again_only_when_no_view_of_it_is_left(tmp_path):
    save_file({f"t{i}": torch.full((50, 60), float(i)) for i in range(24)}, tmp_path / "a")
    stored = read_header(tmp_path / "a")
    mixes = {name: TensorMix(terms=(Term(stored=at),)) for name, at in stored.items()}
    views, places = {}, set()
    for number, (name, tensor) in enumerate(read_tensors(mixes, threads=2)):
        places.add(tensor.data_ptr())
        if number % 4 == 0:
            views[name] = tensor.view(-1)[100:200].view(10, 10)
        del tensor
        if number == 15:
            assert len(places) == 16  # all were read before the first was asked for
    assert len(places) == len(mixes)
    for name, view in views.items():
        assert torch.equal(view, torch.full((10, 10), float(name[1:])))


def load_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("load")]


@pytest.mark.parametrize("device", DEVICES)
def test_an_error_comes_at_its_tensor_and_an_early_end_leaves_no_thread(device, tmp_path):
    check_device(device)
    trials = Trials(tmp_path, 3, 12)
    other = Trials(tmp_path, 4, 1)
    (tmp_path / "4.safetensors").unlink()
    mixes = {**trials.mixes, "gone": other.mixes["t0"], "after": trials.mixes["t0"]}
    seen = read_tensors(mixes, device, threads=2)
    assert [next(seen)[0] for _ in trials.mixes] == list(trials.mixes)
    with pytest.raises(InputError, match=r"4\.safetensors: the weights are gone"):
        next(seen)
    assert load_threads() == []
    seen = read_tensors(trials.mixes, device, threads=2)
    next(seen)
    assert len(load_threads()) == 2
    seen.close()
    assert load_threads() == []
    wrong = {name: torch.zeros(3, 3, device=device) for name in trials.mixes}
    with pytest.raises(LayerSwapError, match=r"does not fit the engine's \[3, 3\]"):
        fill_tensors(trials.mixes, wrong, device)
    assert load_threads() == []


def test_the_threads_of_torch_are_as_before(tmp_path):
    trials, before = Trials(tmp_path, 2, 5), torch.get_num_threads()
    inside, later = [], []
    try:
        torch.set_num_threads(2)
        for _ in read_tensors(trials.mixes, threads=2):
            inside.append(torch.get_num_threads())
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert {*inside, *later} == {2}
    finally:
        torch.set_num_threads(before)


def test_tensors_may_be_made_inside_and_used_outside_of_inference_mode(tmp_path):
    trials = Trials(tmp_path, 8, 20)
    with torch.inference_mode():
        inside = dict(read_tensors(trials.mixes, threads=2))
    for name, tensor in inside.items():
        assert same_bits(tensor, trials.wanted[name])
    held = {name: torch.zeros(tensor.shape) for name, tensor in trials.wanted.items()}
    fill_tensors(trials.mixes, held)
    for name, tensor in held.items():
        tensor.add_(0)
        assert same_bits(tensor, trials.wanted[name].float() + 0)
