"""No parameter is ignored: files, mergekit's executor, the kernel and pages."""

import functools
import itertools
import re
from pathlib import Path

import pytest
import torch
import yaml
from mergekit.merge_methods import registry
from mergekit.merge_methods.base import TensorGroup

from layerswap_method.mergekit_plugin.kernels import plain
from layerswap_method.methods.delta_revert import RevertSpec
from layerswap_method.methods.layer_swap import ExpertParameters, LayerSwapSpec
from layerswap_method.methods.table import OUR_METHODS
from tests.standins.fine_tunes import tune
from tests.standins.merging import by_mergekit, recipe, revert_recipe, tensors_of
from tests.standins.model_families import LAYERS
from tests.standins.oracle import assert_same, stored

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "merging.md").read_text(encoding="utf-8")

SHARE, RANDOM = {"placement": "delta_share"}, {"placement": "random"}
COUNTS = {"bottom_layers": 2, "top_layers": 1}
SWAPS = {
    # parameter: two of its values (None leaves it out), and what else the recipe has
    "bottom_layers": (2, 3, {"top_layers": 1}),
    "top_layers": (1, 2, {"bottom_layers": 2}),
    "bottom_transition": (1, None, COUNTS),
    "top_transition": (1, None, COUNTS),
    "task_weight": (3.0, None, COUNTS),
    "language_weight": (0.25, None, COUNTS),
    "weighting": ("magnitude", None, COUNTS),
    "placement": ("middle", None, COUNTS),
    "language_layers": ("0,2", "1", {"placement": "layers"}),
    "seed": (1, 2, {**COUNTS, **RANDOM}),
    "delta_unit": ("module", None, SHARE),
    "delta_threshold": (0.5, None, SHARE),
    "delta_blend": (0.75, None, SHARE),
    "non_layer": ("task", "base", COUNTS),
    "layer_norms": ("average", None, COUNTS),
    "swap_modules": ("mlp", None, COUNTS),
}
REVERTS = {
    "threshold": (1e-3, 5e-3, {}),
    "keep_fraction": (0.25, 0.75, {}),
    "revert_layers": ("0,2", "1", {}),
    "bottom_layers": (1, 2, {}),
    "top_layers": (1, 2, {}),
    "revert_modules": ("mlp", "norm", {}),
}
ONE_TENSOR_CANNOT_TELL = ("weighting", "keep_fraction")
EXPERTS = {"role": ("task", "language"), "weight": (4.0, None)}
"""Of the second task expert of a recipe."""


@pytest.fixture(scope="module")
def folders(trio, tmp_path_factory):
    """Return a base and three experts of it that moved differently far, in float32."""
    root = tmp_path_factory.mktemp("folders")
    names = ("first", "second", "language")
    made = {}
    for seed, name in enumerate(names):
        move = functools.partial(moved, size=1e-3 * (1 + seed))
        made[name] = tune(trio.base, root / name, seed, move)
    return {"base": trio.base, **made}


def moved(tensor, size):
    """Return how far a tensor moves; not all layers and modules as far."""
    return size * (1 + len(tensor) % 3 + (".layers.4." in tensor))


def written(name, value, others):
    return others if value is None else {**others, name: value}


def swap_of(folders, parameters, **expert):
    models = {"task": [folders["first"], folders["second"]], "language": folders["language"]}
    document = recipe(models, parameters, folders["base"], dtype="float32")
    document["models"][1]["parameters"] |= expert
    return document


def documents(folders):
    """Yield the name of each parameter, and two recipes that differ in it."""
    for name, (one, other, rest) in SWAPS.items():
        both = [swap_of(folders, written(name, value, rest)) for value in (one, other)]
        yield f"layer_swap {name}", both
    for name, (one, other, rest) in REVERTS.items():
        both = [written(name, value, rest) for value in (one, other)]
        expert = folders["second"], folders["base"]
        recipes = [revert_recipe(*expert, values, dtype="float32") for values in both]
        yield f"delta_revert {name}", recipes
    for name, values in EXPERTS.items():
        both = [swap_of(folders, COUNTS, **written(name, value, {})) for value in values]
        yield f"models {name}", both


def test_every_field_is_in_the_tables():
    """A field that is added to a recipe without a line in the tables fails here."""
    tables = {"SWAPS": SWAPS, "REVERTS": REVERTS, "EXPERTS": EXPERTS}
    specs = (LayerSwapSpec, RevertSpec, ExpertParameters)
    for (table, rows), spec in zip(tables.items(), specs, strict=True):
        differing = sorted(rows.keys() ^ spec.model_fields.keys())
        assert differing == [], f"{spec.__name__} and {table} above differ: write two values of it"


def differ(one, other):
    assert one.keys() == other.keys()
    return any(not torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.slow
def test_every_parameter_changes_tensors_by_files_and_in_mergekits_executor(folders, tmp_path):
    """The executor's kernel once repeated the parameters by hand, and ignored a new one."""
    seen = set()
    for number, (name, both) in enumerate(documents(folders)):
        by_files = [tensors_of(document) for document in both]
        assert differ(*by_files), name
        for turn, (document, tensors) in enumerate(zip(both, by_files, strict=True)):
            assert_same(stored(by_mergekit(document, tmp_path / f"{number}.{turn}")), tensors)
        seen.add(name)
    assert len(seen) == len(SWAPS) + len(REVERTS) + len(EXPERTS)


def by_kernel(kernel, document):
    """Return the tensors of a recipe that one kernel makes, or None where it refuses.

    What the kernel has no parameter for is left out, as mergekit leaves it out of a recipe.
    """
    entries = [(entry["model"], entry.get("parameters", {})) for entry in document["models"]]
    listed = [*entries, (document["base_model"], {})]
    held = [stored(model) for model, _ in listed]
    parameters = {**document["parameters"], "num_layers": LAYERS}
    for own in kernel.spec.input_parameters:
        parameters[own.name] = [values.get(own.name, own.default) for _, values in listed]
    names = {parameter.name for parameter in kernel.spec.parameters}
    groups = [
        TensorGroup.from_tensors([each[name] for each in held], base_index=len(held) - 1, name=name)
        for name in held[0]
    ]
    known = {name: value for name, value in parameters.items() if name in names}
    try:
        made = kernel(groups, parameters=known)
    except ValueError:
        return None
    return dict(zip(held[0], made, strict=True))


def test_a_kernel_alone_makes_the_same_tensors_or_refuses(folders):
    refused = []
    for document in itertools.chain(*(both for _, both in documents(folders))):
        found = by_kernel(getattr(plain, document["merge_method"]), document)
        if found is None:
            refused.append(document["parameters"])
        else:
            assert_same(found, tensors_of(document))
    measured = [written for written in refused if not {*ONE_TENSOR_CANNOT_TELL} & written.keys()]
    assert len(refused) > len(measured) > 0
    assert all(written["placement"] == "delta_share" for written in measured)


def test_the_page_has_every_parameter_and_its_default():
    """docs/merging.md: the tables of both methods, and the sentence on role and weight."""
    swap, revert = (part.partition("\n## ")[0] for part in PAGE.split("## `merge_method: ")[1:])
    found = {}
    for names, defaults in re.findall(r"^\| (`[^|]*) \|([^|]*)\|", swap, re.M):
        values = [default.strip(" `") for default in defaults.split(",")]
        found |= zip(re.findall(r"`(\w+)`", names), values, strict=True)
    defaults = {name: field.default for name, field in LayerSwapSpec.model_fields.items()}
    assert found == {
        name: yaml.safe_dump(value).partition("\n")[0].removesuffix(".0").replace("null", "")
        for name, value in defaults.items()
    }, "every parameter of LayerSwapSpec has a row (name, default, meaning) in docs/merging.md"
    rows = "".join(re.findall(r"^\| (`[^|]*) \|", revert, re.M))
    named = {*re.findall(r"`(\w+)`", rows)}
    assert named == RevertSpec.model_fields.keys(), "every parameter has a row in docs/merging.md"
    for name in ExpertParameters.model_fields:
        assert f"`{name}`" in swap.partition("| parameter")[0]


def test_every_method_of_ours_has_all_that_it_needs():
    """A new method without one of these ended in a KeyError after the merge was prepared."""
    assert len(OUR_METHODS) > 1
    for name in OUR_METHODS:
        assert registry.get(name) is getattr(plain, name)
        assert f"## `merge_method: {name}`" in PAGE, f"docs/merging.md has no section on {name}"
