"""Recipes with a setting that has no effect, no meaning or no number: each is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.mergekit_plugin.conftest import Experts, Merge, Refused, save_llama
from tests.mergekit_plugin.test_errors import LANGUAGE, with_models


@pytest.mark.parametrize("name", ["task_weight", "language_weight"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1", "is '1'; it must be one number, and this is text (YAML reads 1e-6 and quoted"),
        ("1e-3", "write 0.001"),
        ("1e-6", "write 1.0e-06"),
        ("1e30", "write 1.0e+30"),
        ("heavy", "is 'heavy'; it must be one number"),
        (True, "is True; it must be one number"),
        (float("inf"), "is inf"),
    ],
)
def test_weights_of_roles_are_numbers(
    experts: Experts, refused: Refused, name: str, value: object, message: str
) -> None:
    refused(experts.recipe(parameters={name: value}), f"{name} is ", message)


@pytest.mark.parametrize("text", ["0.001", "1.0e-06", "1.0e+30"])
def test_yaml_reads_the_numbers_we_advise(text: str) -> None:
    assert yaml.safe_load(text) == float(text)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("1e-6", "weight is '1e-6'; it must be one number, and this is text"),
        ("much", "weight is 'much'; it must be one number"),
        (True, "weight is True; it must be one number"),
        (10**400, "it must be one number"),
        (float("inf"), "weight is inf; it must be a finite number"),
        ({"value": 1, "filter": "mlp"}, "weight is a list or filter, which mergekit"),
        ([{"value": 1, "filter": "mlp"}], "weight is a list or filter, which mergekit"),
    ],
)
def test_weights_of_models_are_numbers(
    experts: Experts, refused: Refused, weight: object, message: str
) -> None:
    refused(with_models(experts, {"role": "task", "weight": weight}, LANGUAGE), message)


def test_the_role_of_a_base(experts: Experts, refused: Refused) -> None:
    said = refused(
        with_models(experts, {"role": "base"}, LANGUAGE),
        "role is 'base'; the base is named by base_model: at the recipe's top",
    )
    assert "did you mean" not in said


def test_a_role_that_is_a_filter(experts: Experts, refused: Refused) -> None:
    role = {"value": "task", "filter": "mlp"}
    refused(with_models(experts, {"role": role}, LANGUAGE), "role is a list or filter,")


def test_a_weight_of_the_base(experts: Experts, refused: Refused) -> None:
    recipe = experts.recipe()
    recipe["models"].append({"model": str(experts.base), "parameters": {"weight": 2}})
    refused(recipe, f"models[2] ({experts.base}): weight has no effect on the base")


def test_the_base_written_in_two_ways(experts: Experts, merge: Merge, refused: Refused) -> None:
    recipe = experts.recipe(base_model=f"{experts.base}/")
    recipe["models"].append({"model": str(experts.base)})
    refused(recipe, f"is the base_model; write it in the same way ({experts.base}/)")
    recipe["models"][2]["model"] = f"{experts.base}/"
    assert merge(recipe).exit_code == 0


def test_one_model_in_both_roles_however_it_is_written(
    experts: Experts, refused: Refused, tmp_path: Any
) -> None:
    link = tmp_path / "link"
    link.symlink_to(experts.task)
    for other in (str(experts.task), f"{experts.task}/", str(link)):
        recipe = experts.recipe()
        recipe["models"][1]["model"] = other
        refused(
            recipe,
            f"models[1] ({other}) is listed twice",
        )


def test_a_key_that_is_a_number(experts: Experts, refused: Refused) -> None:
    recipe: dict[Any, Any] = experts.recipe()
    refused({**recipe, 1: 2}, "the recipe has the unknown key 1, which mergekit ignores")


def test_a_key_that_stands_twice(experts: Experts, refused: Refused) -> None:
    # mergekit-yaml has dropped the first by the time it hands over its configuration.
    text = yaml.safe_dump(experts.recipe(), sort_keys=False)
    lines = text.splitlines()
    second = next(i for i, line in enumerate(lines, start=1) if "bottom_layers" in line)
    lines[second:second] = ["  bottom_layers: 3", "  top_layers: 0"]
    refused(
        "\n".join(lines),
        "layer_swap recipe: 2 problems",
        f"line {second + 1} has the key 'bottom_layers' again (first in line {second})",
        f"line {second + 3} has the key 'top_layers' again (first in line {second + 2})",
    )


def test_unknown_keys_inside_tokenizer(experts: Experts, refused: Refused) -> None:
    tokens = {
        "w1": {"forse": True, "source": {"kind": "zero", "token": "x"}},
        "w2": {"source": {"kind": "model_token", "model": str(experts.task), "tokn": "x"}},
    }
    tokens["w2"]["source"]["token"] = "y"
    tokenizer = {"sorce": "base", "tokens": tokens}
    refused(
        experts.recipe(tokenizer=tokenizer),
        "4 problems",
        "tokenizer has the unknown key 'sorce', which mergekit ignores; did you mean 'source'?",
        "tokenizer.tokens.w1 has the unknown key 'forse', which mergekit ignores; did you mean",
        "tokenizer.tokens.w1.source has the unknown key 'token', which mergekit ignores",
        "tokenizer.tokens.w2.source has the unknown key 'tokn', which mergekit ignores; did you",
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer", {"source": "base"}),
        ("tokenizer", {"source": "union"}),
        ("tokenizer_source", "union"),
        ("chat_template", "chatml"),
    ],
)
def test_a_setting_that_needs_a_tokenizer_and_a_base_without(
    experts: Experts, refused: Refused, key: str, value: object
) -> None:
    refused(
        experts.recipe(**{key: value}),
        f"{experts.base} has no tokenizer (tokenizer.json, tokenizer.model or vocab.json), "
        f"which {key}: needs; copy its files there",
        options=["--copy-tokenizer"],
    )


def test_the_tokenizer_of_a_model_that_is_only_its_source(
    experts: Experts, merge: Merge, refused: Refused, tmp_path: Path
) -> None:
    donor = save_llama(tmp_path / "donor", seed=7)
    refused(
        experts.recipe(tokenizer={"source": str(donor)}),
        "4 problems",
        f"{donor} has no tokenizer",
        f"{experts.task} has no",
    )
    without = merge(experts.recipe())  # no setting asks for one
    assert without.exit_code == 0, without.output
