"""Laws of the rule that proposes a swap, and the command on experts that changed known layers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ablations.cli.suggest import suggest as command
from ablations.delta.suggest_rule import Suggestion, suggest_swap
from layerswap_method.layer_swap.delta_share import delta_shares
from layerswap_method.layer_swap.placements import build_plan
from tests.delta.experts import fine_tuned
from tests.standins.zoo import LAYERS, make_model

NORMS = st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1, max_size=24).map(
    lambda pairs: tuple(delta_shares(side) for side in zip(*pairs, strict=True))
)


def swap_of(winners: str) -> Suggestion:
    """The suggestion for winners written as letters: l language, t task, a tie."""
    task = [{"l": 0.1, "t": 0.3, "a": 0.2}[letter] for letter in winners]
    language = [{"l": 0.3, "t": 0.1, "a": 0.2}[letter] for letter in winners]
    return suggest_swap(task, language)


@given(NORMS, st.floats(0, 0.1))
def test_a_proposal_is_a_plan_that_every_layer_agrees_with(
    shares: tuple[tuple[float, ...], tuple[float, ...]], threshold: float
) -> None:
    found = suggest_swap(*shares, threshold)
    b, u, t_b, t_u = found.counts.values()
    if found.refusal is not None:
        assert b == u == t_b == t_u == 0
        return
    assert b + u > 0
    assert max(t_b, t_u) <= 2  # the paper's bound
    plan = build_plan(len(shares[0]), **found.counts)  # type: ignore[arg-type]
    for layer, (source, winner) in enumerate(zip(plan.sources, found.winners, strict=True)):
        difference = shares[1][layer] - shares[0][layer]
        if source == "language":
            assert difference > threshold
        if source == "average":
            assert abs(difference) <= threshold
        assert source == winner or source == "task"
    assert "task" in plan.sources


@given(NORMS, st.floats(0, 0.1))
def test_upside_down(shares: tuple[tuple[float, ...], ...], threshold: float) -> None:
    found = suggest_swap(*shares, threshold)
    turned = suggest_swap(*(side[::-1] for side in shares), threshold)
    b, u, t_b, t_u = found.counts.values()
    assert tuple(turned.counts.values()) == (u, b, t_u, t_b)
    assert (turned.refusal is None) == (found.refusal is None)


@given(NORMS)
def test_experts_that_changed_alike_give_none(shares: tuple[tuple[float, ...], ...]) -> None:
    found = suggest_swap(shares[0], shares[0])
    assert set(found.winners) == {"average"}
    assert found.refusal is not None
    assert "do not say which layers to swap" in found.refusal


@pytest.mark.parametrize(
    ("winners", "counts"),
    [
        ("lllttttttl", (3, 1, 0, 0)),
        ("lattttaall", (1, 2, 1, 2)),
        ("laaattttal", (1, 1, 2, 1)),
        ("ttttttttll", (0, 2, 0, 0)),
        ("attttttttl", (0, 1, 1, 0)),
        ("lltlltttll", (2, 2, 0, 0)),
    ],
)
def test_the_outer_runs(winners: str, counts: tuple[int, ...]) -> None:
    found = swap_of(winners)
    assert found.refusal is None
    assert tuple(found.counts.values()) == counts


@pytest.mark.parametrize(
    ("winners", "reason"),
    [
        ("tlllllt", "wins neither the first nor the last layer.* it wins only layers 1-5, inside"),
        ("ttaat", "wins neither the first nor the last layer.* and no layer at all"),
        ("llaal", "the task expert wins no layer, so there is no middle"),
        ("lllll", "the task expert wins no layer"),
        ("aaaaa", "no layer's shares differ by more than 0.001"),
    ],
)
def test_what_is_no_swap_is_said(winners: str, reason: str) -> None:
    found = swap_of(winners)
    assert found.refusal is not None

    assert re.search(reason, found.refusal)


def test_remarks_tell_what_the_outer_swap_leaves_out() -> None:
    found = swap_of("lttllttaattttttttttl")
    assert any("also wins layers 3-4 in the middle" in text for text in found.remarks)
    assert any("neither expert wins layers 7-8" in text for text in found.remarks)
    assert any("3 of 4 layers would be" in text for text in swap_of("llt" + "l").remarks)
    assert swap_of("lttttttttl").remarks == ()


def changing(*layers: int) -> object:
    return lambda name: any(f".layers.{layer}." in name for layer in layers)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A language expert that changed the first and the last two layers, a task expert the rest."""
    import torch

    root = tmp_path_factory.mktemp("suggest")
    base = make_model("llama", root / "base", 1, dtype=torch.float32)
    outer = {0, LAYERS - 2, LAYERS - 1}
    inner = set(range(LAYERS)) - outer
    return {
        "base": base,
        "language": fine_tuned(base, root / "language", 2, changes=changing(*outer)),  # type: ignore[arg-type]
        "task": fine_tuned(base, root / "task", 3, changes=changing(*inner)),  # type: ignore[arg-type]
        "inner": fine_tuned(base, root / "inner", 4, changes=changing(*inner)),  # type: ignore[arg-type]
        "stranger": make_model("llama", root / "stranger", 9, dtype=torch.float32),
    }


def run(models: dict[str, Path], *options: str, **names: str) -> Result:
    roles = {"task": "task", "language": "language", "base": "base", **names}
    words = [word for role, name in roles.items() for word in (f"--{role}", str(models[name]))]
    return CliRunner().invoke(command, [*words, *options])


def test_the_command_finds_the_layers_and_writes_a_recipe_that_merges(
    models: dict[str, Path], tmp_path: Path
) -> None:
    from mergekit.scripts.run_yaml import main
    from safetensors.torch import load_file

    recipe = tmp_path / "my recipes" / "first swap.yml"
    result = run(models, "--write", str(recipe))
    assert result.exit_code == 0, result.output
    told = result.output.splitlines()[-1].partition("(")[2].removesuffix(")")
    assert shlex.split(told) == ["mergekit-yaml", str(recipe), "OUT"]
    assert "proposed: b=1 u=2 t_b=0 t_u=0" in result.output
    lines = [line.split() for line in result.output.splitlines()]
    table = {int(words[0]): words for words in lines if words and words[0].isdigit()}
    assert [table[layer][-1] for layer in range(LAYERS)] == [
        "language" if layer in (0, LAYERS - 2, LAYERS - 1) else "task" for layer in range(LAYERS)
    ]
    assert sum(float(words[1]) for words in table.values()) == pytest.approx(1, abs=1e-3)
    text = recipe.read_text()
    assert all(f"# {name}:" in text for name in ("What", "Run", "Source", "Expected", "To change"))
    (command_line,) = re.findall("^# Run: +(.*)$", text, re.MULTILINE)
    assert shlex.split(command_line) == ["mergekit-yaml", str(recipe), "./merged/first swap"]
    assert yaml.safe_load(text)["dtype"] == "float32"
    assert list(recipe.parent.iterdir()) == [recipe], "a temporary file was left"

    out = tmp_path / "merged"
    words = [str(recipe), str(out), "--no-copy-tokenizer", "--quiet"]
    merged = CliRunner().invoke(main, words)
    assert merged.exit_code == 0, merged.output
    got = load_file(out / "model.safetensors")
    name = "model.layers.{}.mlp.up_proj.weight"
    for layer in range(LAYERS):
        role = "language" if layer in (0, LAYERS - 2, LAYERS - 1) else "task"
        source = load_file(models[role] / "model.safetensors")[name.format(layer)]
        assert got[name.format(layer)].equal(source)


def test_a_file_that_exists_is_kept_without_force(models: dict[str, Path], tmp_path: Path) -> None:
    recipe = tmp_path / "swap.yml"
    recipe.write_text("mine")
    result = run(models, "--write", str(recipe))
    assert result.exit_code == 2
    assert f"{recipe}: exists; add --force" in result.output
    assert recipe.read_text() == "mine"
    assert run(models, "--write", str(recipe), "--force").exit_code == 0
    assert "merge_method" in recipe.read_text()
    result = run(models, "--write", str(tmp_path))
    assert (result.exit_code, "is a folder" in result.output) == (2, True)


def test_no_swap_writes_nothing_and_says_why(models: dict[str, Path], tmp_path: Path) -> None:
    recipe = tmp_path / "swap.yml"
    swapped = {"task": "language", "language": "inner"}
    result = run(models, **swapped)
    assert result.exit_code == 0
    assert "no swap is proposed: the language expert wins neither the first" in result.output
    result = run(models, "--write", str(recipe), **swapped)
    assert result.exit_code == 1
    assert "layer" in result.output
    assert "not written, because no swap is proposed" in result.output
    assert not recipe.exists()


def test_several_experts_of_a_role_are_a_soup(models: dict[str, Path], tmp_path: Path) -> None:
    recipe = tmp_path / "swap.yml"
    result = run(models, "--task", str(models["inner"]), "--write", str(recipe))
    assert result.exit_code == 0, result.output
    entries = yaml.safe_load(recipe.read_text())["models"]
    assert [entry["parameters"]["role"] for entry in entries] == ["task", "task", "language"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"task": "stranger"}, "is not the base of"),
        ({"task": "base"}, "changed nothing|is equal to base"),
        ({"task": "nowhere"}, "no such folder"),
    ],
)
def test_models_that_do_not_fit(
    models: dict[str, Path], names: dict[str, str], message: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "swap.yml"
    result = run({**models, "nowhere": tmp_path / "nowhere"}, "--write", str(recipe), **names)
    assert result.exit_code == 2, result.output

    assert re.search(message, result.output), result.output
    assert "Traceback" not in result.output
    assert not recipe.exists()


def test_a_relative_folder_is_written_as_an_absolute_one(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models["base"].parent)
    relative = {name: Path(path.name) for name, path in models.items()}
    result = run(relative, "--write", str(tmp_path / "swap.yml"))
    assert result.exit_code == 0, result.output
    document = yaml.safe_load((tmp_path / "swap.yml").read_text())
    assert document["base_model"] == str(models["base"])


def test_the_table_goes_by_the_threshold(models: dict[str, Path]) -> None:
    result = run(models, "--threshold", "1")
    winners = [
        line.split()[-1] for line in result.output.splitlines() if line.strip()[:1].isdigit()
    ]
    assert winners == ["average"] * LAYERS


def test_an_expert_named_twice_and_a_recipe_below_a_file(
    models: dict[str, Path], tmp_path: Path
) -> None:
    result = run(models, "--task", f"{models['task']}/")
    assert result.exit_code == 2
    assert f"{models['task']} is named twice" in result.output
    (tmp_path / "file").write_text("mine")
    result = run(models, "--write", str(tmp_path / "file" / "swap.yml"))
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'} is not a folder" in result.output
