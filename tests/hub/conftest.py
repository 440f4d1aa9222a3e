"""A merge by `layerswap merge`, and its scores by lm-eval: what cards and uploads are made of."""

import shutil

import pytest
import yaml
from click.testing import CliRunner

from ablations.cli import main
from ablations.evaluate.run import evaluate_model
from ablations.study.schema import Evaluate
from tests.standins import merging
from tests.standins.scripted import DATA
from tests.standins.talkers import write_model

HEADER = """# What:     two talkers
# Languages: en, sw
"""


def merge(root):
    """Merge two random models of one shape and return the folder."""
    experts = {
        role: write_model(root / role, seed) for seed, role in enumerate(("task", "language"))
    }
    document = merging.recipe(experts, {"bottom_layers": 1, "top_layers": 0}, dtype="float32")
    recipe = root / "recipe.yml"
    recipe.write_text(HEADER + yaml.safe_dump(document, sort_keys=False))
    out = root / "merged"
    done = CliRunner().invoke(main, ["merge", str(recipe), str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    return merge(tmp_path_factory.mktemp("merge"))


@pytest.fixture(scope="module")
def scored(merged, tmp_path_factory):
    """A run folder with the scores of `merged`."""
    root = tmp_path_factory.mktemp("scores")
    data = shutil.copytree(DATA, root / "data")
    asked = Evaluate(benchmarks=("mgsm", "belebele"), data_dir=str(data))
    how = {"languages": ("sw",), "backend": "hf", "out": root / "out"}
    return evaluate_model(str(merged), asked, **how).out


@pytest.fixture
def model(merged, tmp_path):
    """A copy of `merged` as it was written."""
    return shutil.copytree(merged, tmp_path / "model")
