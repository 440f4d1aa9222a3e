"""The day mergekit ships a method of ours, ours stands aside; for both it changes nothing."""

import shutil
from pathlib import Path

import mergekit
import pytest
import yaml

from tests.registration.environment import Environment

UPSTREAM = """

from mergekit.merge_methods import base, easy_define

for _name in {names}:
    @easy_define.merge_method(name=_name, pretty_name="Upstream")
    def _upstream(group: base.TensorGroup) -> torch.Tensor:
        return group.entries[0].tensor

    register(_upstream)
"""
LOOK = """
import mergekit.merge
from mergekit import merge_methods
for name in ("layer_swap", "delta_revert"):
    print(merge_methods.get(name).spec.pretty_name)
print(mergekit.merge.run_merge.__module__, hasattr(mergekit.merge.run_merge, "__wrapped__"))
import layerswap_method
layerswap_method.register()
"""


def give_methods(environment: Environment, *names: str) -> Environment:
    """Let mergekit itself have methods of these names, where it registers its own."""
    copy = environment.site_packages / "mergekit"
    shutil.copytree(Path(mergekit.__file__).parent, copy)
    registry = copy / "merge_methods" / "registry.py"
    registry.write_text(f"import torch\n{registry.read_text()}{UPSTREAM.format(names=names)}")
    return environment


@pytest.fixture
def with_upstream(with_wheel: Environment) -> Environment:
    return give_methods(with_wheel, "layer_swap", "delta_revert")


def warnings_of(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "layerswap" in line]


@pytest.mark.slow
def test_steps_aside_with_one_warning_each(with_upstream: Environment) -> None:
    done = with_upstream.code(LOOK)
    assert done.stdout.splitlines() == [
        "Upstream",
        "Upstream",
        "mergekit.merge False",
    ]
    said = warnings_of(done.stderr)
    for name, line in zip(("layer_swap", "delta_revert"), said, strict=True):
        assert f"has a merge method `{name}` of its own" in line
        assert "pip uninstall layerswap" in line


@pytest.mark.slow
def test_the_other_method_stays_ours(with_wheel: Environment, recipe: Path) -> None:
    give_methods(with_wheel, "layer_swap")
    done = with_wheel.code(LOOK)
    assert done.stdout.splitlines()[:2] == ["Upstream", "Delta Revert"]
    assert len(warnings_of(done.stderr)) == 1
    theirs = with_wheel.root / "theirs"
    merged = with_wheel.run("mergekit-yaml", recipe, theirs, "--no-copy-tokenizer")
    assert "language expert" not in merged.stderr
    assert not (theirs / "layer_swap_plan.json").exists()
    ours = recipe.with_name("revert.yml")
    document = yaml.safe_load(recipe.read_text())
    document["merge_method"] = "delta_revert"
    document["models"] = [{"model": document["models"][1]["model"]}]
    ours.write_text(yaml.safe_dump(document))
    with_wheel.run("mergekit-yaml", ours, with_wheel.root / "ours", "--no-copy-tokenizer")
    assert (with_wheel.root / "ours" / "delta_revert_plan.json").is_file()


@pytest.mark.slow
def test_the_warning_is_no_python_warning(with_upstream: Environment) -> None:
    """`-W error` turns Python warnings into errors; a plug-in must not break such a run."""
    importing = "import warnings; import mergekit.merge_methods as m; print(len(m.__all__) > 0)"
    strict = f"import torch, transformers, warnings; warnings.simplefilter('error')\n{importing}"
    assert with_upstream.code(strict).stdout.strip() == "True"
