"""The merge methods without our planner: in mergekit's public API, and in its own planner."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from mergekit.merge_methods import merge_state_dicts

from layerswap_method import algorithm
from layerswap_method.average import needed_roles
from layerswap_method.mergekit_plugin import layer_swap_kernel
from layerswap_method.mergekit_plugin.registration import merge_method
from layerswap_method.methods.delta_revert import RevertSpec
from layerswap_method.methods.layer_swap import LayerSwapSpec
from tests.standins.oracle import Swap, assert_same, expected

SWAP = Swap(layers=8, b=2, u=1, t_b=1, t_u=0)
PARTS = ("self_attn.q_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight")
NAMES = [
    "model.embed_tokens.weight",
    *(f"model.layers.{layer}.{part}" for layer in range(8) for part in PARTS),
    "model.norm.weight",
]
ROLES = {"task": "task", "language": "language", "base": None}


def model(seed: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(4, 6, generator=generator).to(dtype) for name in NAMES}


TASK, LANGUAGE, BASE = model(0), model(1), model(2)
MODELS = {"task": TASK, "language": LANGUAGE, "base": BASE}


def swapped(parameters: dict[str, Any], **options: Any) -> dict[str, torch.Tensor]:
    given = {"role": ROLES, "num_layers": 8, **parameters}
    return merge_state_dicts(MODELS, "layer_swap", parameters=given, base="base", **options)


@pytest.mark.parametrize("non_layer", ["average", "task", "language", "base"])
def test_state_dicts_swap_by_the_names_of_their_tensors(non_layer: str) -> None:
    swap = Swap(8, 2, 1, 1, 0, non_layer)
    assert_same(swapped(swap.parameters()), expected(swap, TASK, LANGUAGE, BASE))


def test_roles_may_be_a_list_in_the_order_of_the_models() -> None:
    parameters = {**SWAP.parameters(), "role": ["task", "language"], "num_layers": 8}
    merged = merge_state_dicts([TASK, LANGUAGE], "layer_swap", parameters=parameters)
    assert_same(merged, expected(SWAP, TASK, LANGUAGE))


def test_explicit_layers_and_weights() -> None:
    explicit = {"placement": "layers", "language_layers": "0-1,7", "bottom_transition": 1}
    merged = swapped({**explicit, "task_weight": 3.0})
    assert_same(merged, expected(Swap(8, 2, 1, 1, 0, w_task=3.0), TASK, LANGUAGE))
    merged = swapped({"weight": {"task": 2.0, "language": 5.0, "base": 1.0}, **SWAP.parameters()})
    assert_same(merged, expected(SWAP, TASK, LANGUAGE))


def test_modules_and_norms() -> None:
    merged = swapped({**SWAP.parameters(), "swap_modules": "attention", "layer_norms": "average"})
    wanted = expected(SWAP, TASK, LANGUAGE)
    averages = expected(Swap(8, 0, 0, 8, 0), TASK, LANGUAGE)
    wanted |= {name: TASK[name] for name in NAMES if "mlp" in name}
    wanted |= {name: averages[name] for name in NAMES if "layernorm" in name}
    assert_same(merged, wanted)


class Model(str):
    """An input's id with a config, as mergekit's `ModelReference`."""

    def config(self) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(num_hidden_layers=8)


def test_the_depth_is_the_first_inputs_where_it_has_a_config() -> None:
    models = {Model("task"): TASK, Model("language"): LANGUAGE}
    parameters = {**SWAP.parameters(), "role": {key: str(key) for key in models}}
    merged = merge_state_dicts(models, "layer_swap", parameters=parameters)
    assert_same(merged, expected(SWAP, TASK, LANGUAGE))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_layers": None}, "'task' has no config that says .*; give num_layers"),
        ({"num_layers": 6, "bottom_layers": 1}, r"layer 6 is not in 0\.\.5"),
        ({"bottom_layers": 9}, r"9 \+ 2 = 11 is more than the model's 8 layers"),
        ({"role": None}, "no task expert holds this tensor, but average needs it"),
        ({"role": "task"}, "no language expert holds this tensor"),
        ({"role": "tsak"}, "Input should be 'task' or 'language'"),
        ({"weighting": "magnitude"}, "measured before a merge of whole checkpoints"),
        ({"placement": "middle"}, "placement: middle is computed before a merge"),
        ({"placement": "layers"}, "go together; write both or neither"),
        ({"language_layers": "0"}, "go together; write both or neither"),
        ({"weight": -1.0}, "weight -1.0 must be a finite number, 0 or more"),
    ],
)
def test_what_cannot_be_said_of_one_tensor_is_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        swapped(parameters)


def test_a_base_that_is_not_named_is_missed() -> None:
    with pytest.raises(ValueError, match="the base model does not have this tensor"):
        merge_state_dicts(
            MODELS, "layer_swap", parameters={"role": ROLES, "non_layer": "base", "num_layers": 8}
        )


def reverted(parameters: dict[str, Any], base: str | None = "base") -> dict[str, torch.Tensor]:
    models = {"expert": EXPERT, "base": BASE}
    given = {"num_layers": 8, **parameters}
    return merge_state_dicts(models, "delta_revert", parameters=given, base=base)


COLUMNS = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.05, 0.2])
EXPERT = {name: (tensor.float() + COLUMNS).to(tensor.dtype) for name, tensor in BASE.items()}


def test_layers_and_modules_of_state_dicts_go_back() -> None:
    merged = reverted({"bottom_layers": 1, "revert_layers": "6", "revert_modules": "norm"})
    for name in NAMES:
        back = "layers.0." in name or "layers.6." in name or "input_layernorm" in name
        assert torch.equal(merged[name], (BASE if back else EXPERT)[name]), name


def test_rows_of_state_dicts_go_back() -> None:
    # A row is one input feature: a column as torch stores it.
    merged = reverted({"threshold": 0.25})
    stays = COLUMNS > 0.25
    for name in NAMES:
        assert torch.equal(merged[name], torch.where(stays, EXPERT[name], BASE[name])), name


def test_weights_that_are_stored_inputs_first_need_the_model_type() -> None:
    name = "transformer.h.0.attn.c_attn.weight"
    base = torch.zeros(6, 4)
    expert = base + COLUMNS[:, None]
    merged = merge_state_dicts(
        {"expert": {name: expert}, "base": {name: base}},
        "delta_revert",
        parameters={"threshold": 0.25, "model_type": "gpt2"},
        base="base",
    )
    assert torch.equal(merged[name], torch.where((COLUMNS > 0.25)[:, None], expert, base))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"keep_fraction": 0.0}, "keep_fraction needs all rows of the model"),
        ({"bottom_layers": 1, "num_layers": None}, "'base' has no config .*; give num_layers"),
        ({"bottom_layers": 9}, r"9 \+ 0 = 9 is more than the model's 8 layers"),
        ({"revert_modules": "atention"}, "did you mean 'attention'"),
    ],
)
def test_what_cannot_be_reverted_by_one_tensor_is_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reverted(parameters)


def test_a_revert_needs_a_base() -> None:
    with pytest.raises(ValueError, match="takes one expert and its base; name the base"):
        reverted({"threshold": 0.1}, base=None)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("layer_swap", {"role": ["language", "task"], "num_layers": 1, "bottom_layers": 1}),
        ("delta_revert", {"threshold": 0.1, "num_layers": 1}),
    ],
)
@pytest.mark.parametrize("name", ["w", "model.layers.0.mlp.up_proj.weight"])
def test_strided_weights_are_read_and_not_changed(
    method: str, parameters: dict[str, Any], name: str
) -> None:
    """mergekit's own test for all methods, with the roles or the base that its call does not say.

    `test_state_dict_methods_accept_strided_weights_without_mutation` of mergekit 0.1.5 gives two
    tensors and weights only. That cannot mean a swap, which must know whose is whose.
    """
    if method == "layer_swap":
        parameters = {**parameters, "top_layers": 0}
    generator = torch.Generator().manual_seed(42)
    tensors = [torch.randn(4, 6, generator=generator).T for _ in range(2)]
    copies = [tensor.clone() for tensor in tensors]
    assert not any(tensor.is_contiguous() for tensor in tensors)

    def merged(given: list[torch.Tensor]) -> torch.Tensor:
        models = [{name: tensor} for tensor in given]
        return merge_state_dicts(models, method, parameters=parameters, base=1)[name]

    assert torch.equal(merged(tensors), merged([tensor.contiguous() for tensor in tensors]))
    assert all(torch.equal(*pair) for pair in zip(tensors, copies, strict=True))


def test_only_the_roles_with_a_weight_are_read() -> None:
    assert needed_roles("average", (1.0, 1.0)) == ("task", "language")
    assert needed_roles("average", (0.0, 1.0)) == ("language",)
    assert needed_roles("language", (0.0, 1.0)) == ("language",)
    assert needed_roles("base", (1.0, 1.0)) == ()


PER_INPUT = {"role", "weight"}
WHOLE_MODELS = {"seed", "delta_unit", "delta_threshold", "delta_dominance", "delta_blend"}
"""Parameters of placements that a kernel does not have."""

NARROWER = {"placement", "weighting"}
"""Parameters of which a kernel takes some values only; it says which."""


@pytest.mark.parametrize(
    ("name", "spec", "left_out", "own"),
    [
        ("layer_swap", LayerSwapSpec, WHOLE_MODELS, {*PER_INPUT, "num_layers"}),
        ("delta_revert", RevertSpec, set(), {"num_layers", "model_type"}),
    ],
)
def test_the_kernels_parameters_are_the_recipes(
    name: str, spec: Any, left_out: set[str], own: set[str]
) -> None:
    kernel = merge_method(name)
    assert kernel.spec.name == name
    assert kernel.spec.reference_url == "https://arxiv.org/abs/2410.01335"
    found = {parameter.name: parameter for parameter in kernel.spec.parameters}
    assert set(found) == (set(spec.model_fields) - left_out) | own
    hints, wanted = get_type_hints(kernel.implementation), get_type_hints(spec)
    for field, info in spec.model_fields.items():
        if field in left_out:
            continue
        assert found[field].default == info.default, field
        if field not in NARROWER:
            assert same_type(hints[field], wanted[field]), field


def same_type(one: Any, other: Any) -> bool:
    """Whether two annotations name the same types or values."""
    return set(getattr(one, "__args__", (one,))) == set(getattr(other, "__args__", (other,)))


def test_the_kernel_and_its_mathematics_stand_alone() -> None:
    """They import the standard library, torch, mergekit and each other: this goes upstream."""
    folder = Path(inspect.getfile(algorithm)).parent
    files = [*sorted(folder.glob("*.py")), Path(inspect.getfile(layer_swap_kernel))]
    assert len(files) > 5
    allowed = {*sys.stdlib_module_names, "torch", "mergekit"}
    own = {f"layerswap_method.algorithm.{path.stem}" for path in files}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            for name in names:
                assert name in own or name.partition(".")[0] in allowed, f"{path.name}: {name}"
