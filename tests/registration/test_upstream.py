"""The day mergekit ships a `layer_swap` of its own, ours stands aside and changes nothing."""

import shutil
from pathlib import Path

import mergekit
import pytest

from tests.registration.environment import Environment

UPSTREAM = """

from mergekit.merge_methods import base, easy_define


@easy_define.merge_method(name="layer_swap", pretty_name="Upstream")
def _upstream(group: base.TensorGroup) -> torch.Tensor:
    return group.entries[0].tensor


register(_upstream)
"""
LOOK = """
import inspect
import mergekit.merge, mergekit.plan
from mergekit import merge_methods
print(merge_methods.get("layer_swap").spec.pretty_name)
for function in (mergekit.plan.MergePlanner.plan_layer, mergekit.merge.run_merge):
    print(function.__module__, hasattr(function, "__wrapped__"))
import layerswap_method
layerswap_method.register()
"""


@pytest.fixture
def with_upstream(with_wheel: Environment) -> Environment:
    """mergekit itself, with a registration of that name where it makes its own."""
    copy = with_wheel.site_packages / "mergekit"
    shutil.copytree(Path(mergekit.__file__).parent, copy)
    registry = copy / "merge_methods" / "registry.py"
    registry.write_text(f"import torch\n{registry.read_text()}{UPSTREAM}")
    return with_wheel


@pytest.mark.slow
def test_steps_aside_with_one_warning(with_upstream: Environment) -> None:
    done = with_upstream.code(LOOK)
    assert done.stdout.splitlines() == [
        "Upstream",
        "mergekit.plan False",
        "mergekit.merge False",
    ]
    warnings = [line for line in done.stderr.splitlines() if "layerswap" in line]
    assert len(warnings) == 1
    assert "has a merge method `layer_swap` of its own" in warnings[0]
    assert "pip uninstall layerswap" in warnings[0]


@pytest.mark.slow
def test_the_warning_is_no_python_warning(with_upstream: Environment) -> None:
    """`-W error` turns Python warnings into errors; a plug-in must not break such a run."""
    importing = "import warnings; import mergekit.merge_methods as m; print(len(m.__all__) > 0)"
    strict = f"import torch, transformers, warnings; warnings.simplefilter('error')\n{importing}"
    assert with_upstream.code(strict).stdout.strip() == "True"
