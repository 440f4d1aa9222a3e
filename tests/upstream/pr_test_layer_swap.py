import pytest
import torch
from mergekit.config import MergeConfiguration
from mergekit.io import LazyTensorLoader
from mergekit.merge_methods import merge_state_dicts
from transformers import LlamaConfig, LlamaForCausalLM

from tests.common import run_and_check_merge

LAYERS = 6
PARTS = ("self_attn.q_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight")
BOTH = ("task", "language")
SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24}


@pytest.fixture(scope="session")
def experts(tmp_path_factory):
    root = tmp_path_factory.mktemp("layer_swap")
    for seed, name in enumerate(("task", "language", "base")):
        torch.manual_seed(seed)
        config = LlamaConfig(num_attention_heads=2, num_hidden_layers=LAYERS, **SIZES)
        LlamaForCausalLM(config).save_pretrained(root / name)
    return {name: str(root / name) for name in ("task", "language", "base")}


def load(path):
    loader = LazyTensorLoader.from_disk(path)
    return {name: loader.get_tensor(name) for name in loader.index.tensor_paths}


def merged(**recipe):
    tensors = {}
    config = MergeConfiguration.model_validate({**recipe, "dtype": "float32"})
    run_and_check_merge(config, validate=lambda out: tensors.update(load(out)))
    return tensors


def swapped(experts, **parameters):
    roles = [{"model": experts[r], "parameters": {"role": r}} for r in BOTH]
    given = {"models": roles, "base_model": experts["base"], "parameters": parameters}
    return merged(merge_method="layer_swap", **given)


ONE_EACH = {"bottom_layers": 1, "top_layers": 1}
SOURCES = {"l": "language", "t": "task", "a": "average", "b": "base"}


@pytest.mark.parametrize(
    ("parameters", "layers"),
    [
        ({"bottom_layers": 2, "top_layers": 1}, "lltttl"),
        ({**ONE_EACH, "top_transition": 1, "non_layer": "base"}, "ltttal"),
        ({**ONE_EACH, "bottom_transition": 2, "non_layer": "task"}, "laattl"),
        ({"bottom_layers": 0, "top_layers": 0, "non_layer": "language"}, "tttttt"),
    ],
)
def test_layers_come_from_their_source(experts, parameters, layers):
    given = {role: load(path) for role, path in experts.items()}
    pairs = given["task"].items()
    given["average"] = {n: (t + given["language"][n]) / 2 for n, t in pairs}
    for name, tensor in swapped(experts, **parameters).items():
        source = parameters.get("non_layer", "average")
        if ".layers." in name:
            source = SOURCES[layers[int(name.split(".")[2])]]
        assert torch.equal(tensor, given[source][name]), name


@pytest.mark.parametrize(
    ("parameters", "layers"),
    [
        (
            {"bottom_layers": 2, "top_layers": 1},
            [(["language"], (0, 2)), (["task"], (2, 5)), (["language"], (5, 6))],
        ),
        (
            {**ONE_EACH, "bottom_transition": 1},
            [(["language"], (0, 1)), (BOTH, (1, 2)), (["task"], (2, 5)), (["language"], (5, 6))],
        ),
    ],
    ids=["whole layers", "with an averaged layer"],
)
def test_it_equals_slices_of_linear(experts, parameters, layers):
    """A stock recipe: `linear` of one model is `passthrough`."""
    # The empty slices give the embeddings, and the final norm and the head.
    spans = [(BOTH, (0, 0)), *layers, (BOTH, (LAYERS, LAYERS))]
    slices = [
        {"sources": [{"model": experts[r], "layer_range": span} for r in roles]}
        for roles, span in spans
    ]
    stock = merged(merge_method="linear", slices=slices, parameters={"weight": 1.0})
    ours = swapped(experts, **parameters)
    assert ours.keys() == stock.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, stock[name]), name


def state_dict(seed):
    generator = torch.Generator().manual_seed(seed)
    names = [f"model.layers.{i}.{part}" for i in range(LAYERS) for part in PARTS]
    names.append("lm_head.weight")
    return {name: torch.randn(4, 6, generator=generator) for name in names}


def swap(models, roles, **parameters):
    parameters = {"role": roles, "num_layers": LAYERS, **ONE_EACH, **parameters}
    return merge_state_dicts(models, "layer_swap", parameters=parameters)


def test_several_experts_of_a_role_are_averaged_first():
    models = [state_dict(seed) for seed in range(3)]
    found = swap(models, ["task", "task", "language"], weight=[0.25, 0.5, 3.0])
    for name, shares in {
        "lm_head.weight": (1 / 6, 1 / 3, 1 / 2),
        "model.layers.3.mlp.up_proj.weight": (1 / 3, 2 / 3, 0),  # of the task alone
    }.items():
        expected = sum(s * model[name] for s, model in zip(shares, models, strict=True))
        assert torch.allclose(found[name], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("roles", "parameters", "message"),
    [
        (["task", "task"], {}, "needs a language expert"),
        (["task", None], {}, "Every model but the base needs a role"),
        (["task", "langauge"], {}, "Input should be 'task' or 'language'"),
        (["task", "language"], {"weight": [1.0, 0.0]}, "expert of weight > 0"),
        (["task", "language"], {"bottom_layers": 9}, "do not fit 6 layers"),
        (["task", "language"], {"num_layers": None}, "give num_layers"),
        (["task", "language"], {"placement": "soup"}, "does not take placement"),
        (["task", "language"], {"weighting": "magnitude"}, "does not take weighting"),
    ],
)
def test_bad_input_is_refused(roles, parameters, message):
    with pytest.raises(ValueError, match=message):
        swap([state_dict(0), state_dict(1)], roles, **parameters)
