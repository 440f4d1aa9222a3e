"""One judgement of whether a base is the base, from a sample of the weights of both."""

import shutil

import pytest

from ablations.models.compat import check_compatibility
from ablations.recipe_commands.check import check_recipe
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.origin import FAR, sampled_change
from layerswap_method.deltas.pair import read_pair
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import Model
from tests.standins.fine_tunes import rewritten, train_adapter, tune
from tests.standins.merging import merge_of, recipe, revert_recipe, write_recipe
from tests.standins.model_families import make_model

COUNTS = {"bottom_layers": 2, "top_layers": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a base, two fine-tunes of it, and the state that the base was trained from."""
    root = tmp_path_factory.mktemp("origin")
    base = make_model("llama", root / "base", 1)
    tuned = {n: tune(base, root / n, i, 0.002, None) for i, n in enumerate(("task", "language"))}
    earlier = rewritten(base, root / "earlier", lambda name, t: t if t.ndim < 2 else t * 0.55)
    return {"base": base, "earlier": earlier, **tuned}


def change_of(models, name, base):
    return sampled_change(*(read_checkpoint(n, models[n]).tensors for n in (name, base)))


def test_the_sampled_change_is_that_of_all_weights(models):
    assert change_of(models, "base", "base") == 0
    assert change_of(models, "base", "earlier") == pytest.approx(0.45 / 0.55, rel=0.01)
    assert 0 < change_of(models, "task", "base") < 0.5 < FAR < change_of(models, "task", "earlier")


def test_an_earlier_state_is_the_wrong_base_for_all_who_ask(models, tmp_path):
    experts = {role: models[role] for role in ("task", "language")}
    said = f"{models['earlier']} is not the base of {models['task']}, or {models['task']} was"
    for non_layer in ("average", "base"):
        document = recipe(experts, {**COUNTS, "non_layer": non_layer}, models["earlier"])
        found = check_recipe(write_recipe(tmp_path / "recipe.yml", document), hub=False)
        assert [finding.level for finding in found] == ["warning", "warning"]
        assert found[0].message.startswith(said)
        assert [*merge_of(document).warnings] == [finding.message for finding in found]
        assert not check_recipe(
            write_recipe(tmp_path / "recipe.yml", document | {"base_model": str(models["base"])}),
            hub=False,
        )
    revert = revert_recipe(models["task"], models["earlier"], {"bottom_layers": 1})
    assert merge_of(revert).warnings[0].startswith(said)
    with pytest.raises(InputError) as caught:
        read_pair(*(Model(str(models[n]), models[n]) for n in ("task", "earlier")))
    assert caught.value.message.startswith(said)
    with pytest.raises(InputError, match=r"descends from it \(.*: no \(0.8\d+\), no \(0.8\d+\);"):
        check_compatibility([str(path) for path in experts.values()], str(models["earlier"]))
    compared = check_compatibility([str(path) for path in experts.values()], str(models["base"]))
    assert all(change < 0.1 for change in compared.changes)


def test_one_expert_of_another_parent_is_named_alone(models, tmp_path):
    other = make_model("llama", tmp_path / "other", 9)
    document = recipe({"task": models["task"], "language": other}, COUNTS, models["base"])
    (warning,) = merge_of(document).warnings
    assert f"{models['base']} is not the base of {other}, or" in warning
    assert "is 1.4" in warning


def test_what_an_adapter_changes_counts(models, tmp_path):
    adapter = train_adapter(models["base"], tmp_path / "adapter", 1, 3.0, r=4)
    expert = Model("expert", models["base"], adapter)
    with pytest.raises(InputError, match="is not the base of expert, or"):
        read_pair(expert, Model("base", models["base"]))
    assert read_pair(expert, Model("base", models["base"]), is_its_base=True).expert == "expert"


def test_models_of_other_shapes_have_no_change_to_sample(models, tmp_path):
    other = make_model("llama", tmp_path / "other", 9, hidden_size=32, vocab_size=100)
    tensors = [read_checkpoint("m", folder).tensors for folder in (other, models["base"])]
    only_layers = [{n: t for n, t in side.items() if "mlp.up_proj" in n} for side in tensors]
    assert sampled_change(*only_layers) is None


def test_an_expert_that_changes_nothing_is_named(models, tmp_path):
    copy = shutil.copytree(models["base"], tmp_path / "again" / "base")
    adapter = train_adapter(models["base"], tmp_path / "zero", 1, 0.0, target_modules=["q_proj"])
    adapted = f"{models['base']}+{adapter}"
    for expert, why in ((copy, "in a sample of its matrices it is"), (adapted, "every lora_B")):
        document = recipe({"task": models["task"], "language": expert}, COUNTS, models["base"])
        (warning,) = merge_of(document).warnings
        assert warning.startswith(f"{expert} changes nothing: ")
        assert why in warning
        found = check_recipe(write_recipe(tmp_path / "recipe.yml", document), hub=False)
        assert [(finding.level, finding.message) for finding in found] == [("warning", warning)]
    trained = train_adapter(models["base"], tmp_path / "one", 1, target_modules=["q_proj"])
    on_copy = recipe({"task": models["task"], "language": f"{copy}+{trained}"}, COUNTS, copy)
    assert not merge_of(on_copy).warnings


def test_values_that_are_not_finite_are_named_with_their_tensor(models, tmp_path):
    name = "model.layers.3.mlp.down_proj.weight"
    broken = rewritten(models["task"], tmp_path / "nan", lambda n, t: t / 0 if n == name else t)
    document = recipe({"task": broken, "language": models["language"]}, COUNTS, models["base"])
    (warning,) = merge_of(document).warnings
    assert warning.startswith(f"{broken}: values of {name} are NaN or infinite")
    found = check_recipe(write_recipe(tmp_path / "recipe.yml", document), hub=False)
    assert [finding.message for finding in found] == [warning]


def test_an_adapter_on_another_model_than_the_base_is_a_note(models, tmp_path):
    adapter = train_adapter(models["task"], tmp_path / "adapter", 1, target_modules=["q_proj"])
    expert = f"{models['task']}+{adapter}"
    document = recipe({"task": expert, "language": models["language"]}, COUNTS, models["base"])
    note = f"{expert}: its adapter is added to another model than base_model {models['base']}"
    assert any(line.startswith(note) for line in merge_of(document).lines)
    found = check_recipe(write_recipe(tmp_path / "recipe.yml", document), hub=False)
    assert [finding.level for finding in found] == ["note"]
    assert found[0].message.startswith(note)
