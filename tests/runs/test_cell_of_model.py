"""The cell that has a model's scores; how the card finds it is in `tests/hub_card`."""

from types import SimpleNamespace

import pytest
import yaml

from ablations.runs.cell_of_model import check_same_model
from ablations.study.identity import Fingerprints
from layerswap_method.errors import InputError
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.methods.read import read_recipe, read_recipe_file
from tests.standins import merging
from tests.standins.word_models import write_model


@pytest.fixture
def model(tmp_path):
    """A merge of two random models of one shape."""
    experts = {role: write_model(tmp_path / role, n) for n, role in enumerate(("task", "language"))}
    document = merging.recipe(experts, {"bottom_layers": 1, "top_layers": 0}, dtype="float32")
    merging.write(document, tmp_path / "model")
    return tmp_path / "model"


def test_a_cell_of_other_models_or_layers_is_refused(model, tmp_path):
    recipe = yaml.safe_load((model / "mergekit_config.yml").read_text())

    def check(*sources, **changes):
        plan = LayerPlan(sources) if sources else None
        scored = read_recipe({**recipe, **changes})
        cell = SimpleNamespace(label="b=2", plan=plan, recipe=scored)
        merged = read_recipe(read_recipe_file(model / "mergekit_config.yml").document)
        check_same_model(SimpleNamespace(path=tmp_path), cell, model, merged, Fingerprints(None))

    def experts(*references, **parameters):
        roles = zip(("task", "language"), references, strict=True)
        return [{"model": str(e), "parameters": {"role": r, **parameters}} for r, e in roles]

    given = [entry["model"] for entry in recipe["models"]]
    check("language", "task", models=experts(*given, weight=1.0))
    share = {"placement": "delta_share", "delta_unit": "module"}
    for changes, message in (
        ({"models": experts(tmp_path, tmp_path.parent)}, "is a merge of other models than"),
        ({"models": experts(*given[::-1])}, r"'role': '(task|language)'.* the folder has .*'role'"),
        ({"models": experts(*given, weight=0.5)}, r"'weight': 0.5.*; the folder has .*: 1.0"),
        ({"parameters": {"non_layer": "task"}}, "has {'non_layer': 'task'}; the folder has"),
        ({"base_model": str(tmp_path), "parameters": share}, "has {'delta_unit': 'module'}"),
        ({"parameters": {"task_weight": 3.0}}, "has {'task_weight': 3.0}; the folder has"),
        ({"merge_method": "linear"}, "'merge_method': 'linear'"),
    ):
        with pytest.raises(InputError, match=message):
            check("language", "task", **changes)
    with pytest.raises(InputError, match="'placement': 'delta_share'"):
        check(base_model=str(tmp_path), parameters=share)
    with pytest.raises(InputError, match=r"is another merge than .* 2 layers: language 0-1;"):
        check("language", "language")
    of_the_hub = {"models": experts("org/math", "org/math@1+org/es"), "base_model": "org/math"}
    (model / "mergekit_config.yml").write_text(yaml.safe_dump({**recipe, **of_the_hub}))
    check("language", "task")  # here they are folders
    check("language", "task", **of_the_hub)
    other = {**of_the_hub, "models": experts("org/math", "org/math@1+org/sw@2")}
    with pytest.raises(InputError, match=r"of other models than .*: org/math, org/sw;"):
        check("language", "task", **other)
    adapted = {**recipe, "models": experts(given[0], "+".join(given))}
    (model / "mergekit_config.yml").write_text(yaml.safe_dump(adapted))
    check("language", "task", models=experts(given[0], "+".join(f"{path}/." for path in given)))
