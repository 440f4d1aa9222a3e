import pytest
import torch
from mergekit.config import MergeConfiguration
from mergekit.io import LazyTensorLoader
from mergekit.merge_methods import merge_state_dicts
from transformers import LlamaConfig, LlamaForCausalLM

from tests.common import run_and_check_merge

LAYERS = 6
PARTS = ("self_attn.q_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight")


def make_llama(path, seed):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        num_hidden_layers=LAYERS,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def experts(tmp_path_factory):
    root = tmp_path_factory.mktemp("layer_swap")
    return [make_llama(root / name, seed) for seed, name in enumerate(("t", "l", "b"))]


def load(path):
    loader = LazyTensorLoader.from_disk(path)
    return {name: loader.get_tensor(name) for name in loader.index.tensor_paths}


def configuration(experts, parameters):
    task, language, base = experts
    return MergeConfiguration.model_validate(
        {
            "merge_method": "layer_swap",
            "models": [
                {"model": task, "parameters": {"role": "task"}},
                {"model": language, "parameters": {"role": "language"}},
            ],
            "base_model": base,
            "parameters": parameters,
            "dtype": "float32",
        }
    )


def check_merge(experts, parameters, layers, non_layer):
    """Merge, and compare every tensor with the source that is named."""
    given = dict(zip(("task", "language", "base"), map(load, experts), strict=True))

    def validate(out):
        merged = load(out)
        assert merged
        for name, tensor in merged.items():
            source = non_layer
            if ".layers." in name:
                source = layers[int(name.split(".layers.")[1].split(".")[0])]
            if source == "average":
                expected = (given["task"][name] + given["language"][name]) / 2
            else:
                expected = given[source][name]
            assert torch.equal(tensor, expected), name

    run_and_check_merge(configuration(experts, parameters), validate=validate)


ONE_EACH = {"bottom_layers": 1, "top_layers": 1}
LISTED = {"placement": "layers", "language_layers": "1,3-4"}
SOURCES = {"l": "language", "t": "task", "a": "average", "b": "base"}


@pytest.mark.parametrize(
    ("parameters", "layers"),
    [
        ({"bottom_layers": 2, "top_layers": 1}, "lltttl"),
        ({**ONE_EACH, "top_transition": 1, "non_layer": "base"}, "ltttal"),
        ({**LISTED, "non_layer": "task"}, "tltllt"),
    ],
)
def test_layers_come_from_their_source(experts, parameters, layers):
    sources = [SOURCES[letter] for letter in layers]
    check_merge(experts, parameters, sources, parameters.get("non_layer", "average"))


def test_without_transitions_it_is_passthrough_slices_and_averaged_embeddings(experts):
    """A stock recipe: `linear` of one model is `passthrough`."""
    task, language, _base = experts
    parameters = {"weight": 1.0}
    ranges = [
        ((task, language), (0, 0)),  # gives the embeddings
        ((language,), (0, 2)),
        ((task,), (2, 5)),
        ((language,), (5, 6)),
        ((task, language), (6, 6)),  # gives the final norm and the head
    ]
    slices = []
    for models, span in ranges:
        sources = [{"model": model, "layer_range": span} for model in models]
        slices.append({"sources": sources})
    stock = {"merge_method": "linear", "slices": slices, "parameters": parameters}
    expected = {}
    run_and_check_merge(
        MergeConfiguration.model_validate({**stock, "dtype": "float32"}),
        validate=lambda out: expected.update(load(out)),
    )

    def validate(out):
        merged = load(out)
        assert merged.keys() == expected.keys()
        for name, tensor in merged.items():
            assert torch.equal(tensor, expected[name]), name

    run_and_check_merge(
        configuration(experts, {"bottom_layers": 2, "top_layers": 1}), validate=validate
    )


def state_dict(seed):
    generator = torch.Generator().manual_seed(seed)
    names = [f"model.layers.{i}.{part}" for i in range(LAYERS) for part in PARTS]
    names.append("lm_head.weight")
    return {name: torch.randn(4, 6, generator=generator) for name in names}


def swap(models, roles, **parameters):
    parameters = {"role": roles, "num_layers": LAYERS, **parameters}
    return merge_state_dicts(models, "layer_swap", parameters=parameters)


def test_modules_and_norms():
    task, language = state_dict(0), state_dict(1)
    merged = swap(
        [task, language],
        ["task", "language"],
        bottom_layers=1,
        top_layers=0,
        swap_modules="attention",
        layer_norms="average",
    )
    attention, mlp, norm = (f"model.layers.0.{part}" for part in PARTS)
    assert torch.equal(merged[attention], language[attention])
    assert torch.equal(merged[mlp], task[mlp])
    assert torch.equal(merged[norm], (task[norm] + language[norm]) / 2)


def test_unequal_weights_of_both_sides():
    models = [state_dict(seed) for seed in range(3)]
    weights = [0.25, 0.5, 3.0]
    parameters = {"weight": weights, "task_weight": 0.3, "language_weight": 0.7}
    merged = swap(models, ["task", "task", "language"], bottom_layers=1, **parameters)
    x, y, z = (model["lm_head.weight"].double() for model in models)
    expected = 0.3 * (0.25 * x + 0.5 * y) / 0.75 + 0.7 * z
    assert torch.allclose(merged["lm_head.weight"].double(), expected, atol=1e-6)
    name = "model.layers.3.mlp.up_proj.weight"  # of the task experts alone
    expected = (models[0][name] + 2 * models[1][name]) / 3
    assert torch.allclose(merged[name], expected)


@pytest.mark.parametrize(
    ("roles", "parameters", "message"),
    [
        (["task", "task"], {}, "needs a language expert"),
        (["task", None], {}, "Every model but the base needs a role"),
        (["task", "langauge"], {}, "Input should be 'task' or 'language'"),
        (["task", "language"], {"weight": [1.0, 0.0]}, "expert of weight > 0"),
        (["task", "language"], {"bottom_layers": 9}, "do not fit a model of 6 layers"),
        (["task", "language"], {"num_layers": None}, "give num_layers"),
        (["task", "language"], {"placement": "layers"}, "need each other"),
        (["task", "language"], {"placement": "delta_share"}, "'outer' or 'layers'"),
    ],
)
def test_bad_input_is_refused(roles, parameters, message):
    models = [state_dict(0), state_dict(1)]
    parameters = {**ONE_EACH, **parameters}
    with pytest.raises(ValueError, match=message):
        swap(models, roles, **parameters)
