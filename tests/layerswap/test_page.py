"""docs/python.md as a reader runs it: every block, one after the other, in a folder of his own."""

import re
from pathlib import Path

import pytest

import layerswap
from tests.standins.by_peft import LINEAR
from tests.standins.fine_tunes import train_adapter

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_block_of_the_page_runs(tiny_pocket, tmp_path, monkeypatch, capsys):
    """The pocket experts are those of the quick preset; the adapters are random ones."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "pocket").symlink_to(tiny_pocket.root)
    for seed, name in enumerate(("math-lora", "swahili-lora")):
        sizes = {"target_modules": LINEAR, "r": 4, "lora_alpha": 8}
        train_adapter(tiny_pocket.base, tmp_path / "runs" / name, seed, **sizes)
    names = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "did you mean 'pocket/layer_swap.yml'?" in printed
    assert names["plan"].layers == names["merged"].plan.layers
    assert list(names["scores"]["n"].unique()) == [20]
    assert (names["scores"]["low"] <= names["scores"]["value"]).all()
    assert len(names["compared"].comparisons) == 1
    assert names["study"].means["model"].nunique() == 5
    means = names["study"].means.set_index("model")["value"]
    assert len(names["right"]) == 20
    assert names["right"].mean().to_dict() == pytest.approx(means.to_dict())
    assert not names["difference"].is_equal
    assert names["explanation"].recipe["merge_method"] == "layer_swap"
    assert not names["found"].comparisons.empty


def test_the_page_shows_every_function():
    text = "\n".join(BLOCKS)
    functions = [name for name in layerswap.__all__ if name[0].islower()]
    assert [name for name in functions if f"layerswap.{name}(" not in text] == []
    assert len(functions) > 8
