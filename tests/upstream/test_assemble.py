"""The assembled file in a copy of mergekit that knows nothing of us: the same tensors, its tests.

`tests/mergekit_plugin/test_kernels.py` says that the sources import nothing but the standard
library, torch, mergekit and each other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from layerswap_method import upstream as upstream_package
from layerswap_method.errors import InputError
from layerswap_method.upstream.assemble import SOURCES, formatted, main, method_file, write
from tests.registration.environment import Environment
from tests.standins import merging
from tests.standins.oracle import assert_same, stored
from tests.standins.zoo import make_model
from tests.upstream.conftest import copy_of_mergekit

GUIDE = """# Merge Method Guide
  - [Arcee Fusion (`arcee_fusion`)](#arcee-fusion-arcee_fusion)
  - [Passthrough (`passthrough`)](#passthrough-passthrough)

### Passthrough (`passthrough`)

**Concept:** A no-op.
"""


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Environment:
    """mergekit with the pull request, without our package."""
    environment = copy_of_mergekit(tmp_path_factory.mktemp("upstream") / "venv", packages)
    assert environment.code("import layerswap_method", check=False).returncode == 1
    write(environment.site_packages)
    return environment


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four random Llamas of six layers, in bfloat16."""
    root = tmp_path_factory.mktemp("models")
    sizes = {"num_hidden_layers": 6, "dtype": torch.bfloat16}
    return [make_model("llama", root / str(seed), seed, **sizes) for seed in range(4)]


NEW_TEST = Path(upstream_package.__file__).parent / "new" / "tests" / "test_layer_swap.py"


@pytest.mark.parametrize("text", [method_file(), NEW_TEST.read_text()], ids=["method", "test"])
def test_what_is_written_is_in_mergekits_style(text: str) -> None:
    assert formatted(text) == text


def test_the_file_is_whole_and_says_nothing_of_us() -> None:
    text = method_file()
    assert text.startswith("# Copyright (C) 2026 Arcee AI\n# SPDX-License-Identifier: LGPL-3.0")
    assert "layerswap" not in text
    assert "type: ignore" not in text
    assert "noqa" not in text
    module = ast.parse(text)
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    assert {"layer_swap", "swap_plan", "weighted_average", "parse_layers"} <= defined
    assert "format_layers" not in defined, "what the method does not use is left out"


def test_a_source_that_takes_a_name_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from layerswap_method.upstream import assemble

    monkeypatch.setattr(assemble, "SOURCES", (*SOURCES, SOURCES[0]))
    with pytest.raises(assemble.LayerSwapError, match=r"_MOST_LAYERS.* is defined in two"):
        method_file()


def test_the_guide_gets_a_section_and_a_line(tmp_path: Path, packages: Path) -> None:
    clone = copy_of_mergekit(tmp_path / "venv", packages).site_packages
    (clone / "docs").mkdir()
    guide = clone / "docs" / "merge_methods.md"
    guide.write_text(GUIDE)
    assert main([str(clone)]) == 0
    text = guide.read_text()
    entry = "  - [Layer Swapping (`layer_swap`)](#layer-swapping-layer_swap)\n"
    assert text.index(entry) < text.index("  - [Passthrough")
    assert text.index("\n### Layer Swapping (`layer_swap`)\n") < text.index("\n### Passthrough")
    registry = (clone / "mergekit/merge_methods/registry.py").read_text()
    assert registry.count("layer_swap") == 3  # the module and the name in the import, the entry
    with pytest.raises(InputError, match="has layer_swap already"):
        write(clone)


def test_what_is_no_mergekit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "holds no mergekit/merge_methods/registry.py" in capsys.readouterr().err
    assert main([]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("roles", "parameters", "dtype"),
    [
        ("tl", {"bottom_layers": 2, "top_layers": 1}, "bfloat16"),
        (
            "tltl",
            {
                "bottom_layers": 1,
                "top_layers": 1,
                "bottom_transition": 1,
                "top_transition": 1,
                "task_weight": 3.0,
                "layer_norms": "average",
            },
            "bfloat16",
        ),
        (
            "tl",
            {
                "placement": "layers",
                "language_layers": "1,3-4",
                "swap_modules": "mlp",
                "non_layer": "base",
            },
            "bfloat16",
        ),
    ],
)
def test_every_tensor_is_ours(
    upstream: Environment,
    models: list[Path],
    tmp_path: Path,
    roles: str,
    parameters: dict[str, Any],
    dtype: str,
) -> None:
    folders: dict[str, list[Path]] = {"task": [], "language": []}
    for letter, folder in zip(roles, models, strict=False):
        folders["task" if letter == "t" else "language"].append(folder)
    recipe = merging.recipe(folders, parameters, models[3], dtype=dtype)
    if roles == "tltl":  # the base is an expert, too
        recipe["models"][0]["parameters"]["weight"] = 2.0
    ours = merging.merge(recipe, tmp_path / "ours")
    assert (ours / "layer_swap_plan.json").is_file()
    path = tmp_path / "recipe.yml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    upstream.run("mergekit-yaml", path, tmp_path / "theirs", "--no-copy-tokenizer")
    assert not (tmp_path / "theirs" / "layer_swap_plan.json").exists()
    assert_same(stored(tmp_path / "theirs"), stored(ours))


def pytest_there(environment: Environment, *what: str) -> str:
    """Run tests of the copy and return the last line of what pytest says."""
    paths = [str(environment.site_packages / name) for name in what]
    # None of our plug-ins, settings or cache.
    flags = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "/dev/null")
    done = environment.run(environment.python, "-m", "pytest", *flags, *paths, timeout=3600)
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_the_new_tests_pass_there(upstream: Environment) -> None:
    assert "12 passed" in pytest_there(upstream, "tests/test_layer_swap.py")


@pytest.mark.slow
@pytest.mark.network
def test_mergekits_own_tests_pass_there(tmp_path: Path, packages: Path) -> None:
    """Its release has them all but `tests/common.py`; it comes from the package index."""
    environment = copy_of_mergekit(tmp_path / "venv", packages)
    name = f"mergekit=={version('mergekit')}"
    flags = ["--quiet", "--no-deps", "--no-binary", "mergekit", "--dest", str(tmp_path), name]
    subprocess.run([sys.executable, "-m", "pip", "download", *flags], check=True)
    (archive,) = tmp_path.glob("mergekit-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "release", filter="data")
    (release,) = (tmp_path / "release").iterdir()
    for test in (release / "tests").glob("test_*.py"):
        (environment.site_packages / "tests" / test.name).write_text(test.read_text())
    write(environment.site_packages)
    said = pytest_there(environment, "tests")
    assert "passed" in said
    assert "failed" not in said
