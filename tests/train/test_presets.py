"""The shipped configurations: the paper's numbers, and each of them trains a tiny stand-in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations.train.config import HubRows, TrainConfig
from ablations.train.files import read_config
from ablations.train.run import train_expert
from tests.standins.tuned import train_adapter
from tests.train.runs import write_base

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes/experts"
PRESETS = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yml")
)
LANGUAGES = ("japanese", "swahili", "telugu", "bengali")
TABLE_4 = {
    "math_1": (2e-08, 4, 2048, 0.1, 1.0, "linear", 1000, 0.99),
    "math_2": (1e-07, 4, 2048, 0.01, 0.5, "linear", 1000, 0.99),
    "math_3": (4e-08, 4, 2048, 0.1, 1.0, "linear", 500, 0.999),
    "japanese_1": (1e-07, 8, 1024, 0.1, 0.5, "wsd", 1000, 0.995),
    "japanese_2": (1e-07, 8, 1024, 0.1, 0.5, "wsd", 1000, 0.99),
    "japanese_3": (2e-07, 8, 1024, 0.01, 0.5, "wsd", 1000, 0.99),
    "swahili_1": (7e-08, 8, 1024, 0.1, 0.5, "wsd", 1000, 0.99),
    "swahili_2": (2e-07, 8, 1024, 0.05, 0.5, "wsd", 1000, 0.99),
    "swahili_3": (1e-07, 8, 1024, 0.1, 1.0, "wsd", 1000, 0.999),
    "telugu_1": (7e-08, 8, 1024, 0.1, 0.5, "wsd", 1000, 0.99),
    "telugu_2": (5e-08, 8, 1024, 0.05, 0.5, "wsd", 300, 0.99),
    "telugu_3": (1e-07, 4, 2048, 0.1, 0.5, "wsd", 1000, 0.99),
    "bengali_1": (7e-08, 8, 1024, 0.1, 0.5, "wsd", 1000, 0.99),
    "bengali_2": (5e-08, 8, 1024, 0.05, 0.5, "wsd", 300, 0.99),
    "bengali_3": (1e-07, 4, 2048, 0.1, 0.5, "wsd", 1000, 0.99),
}
"""Learning rate, batch, length, weight decay, clipping, schedule, warmup, beta2 as printed."""

TABLE_3 = {
    "math": {"microsoft/orca-math-word-problems-200k"},
    "telugu": {"CohereForAI/aya_dataset"},
    "bengali": {"CohereForAI/aya_dataset", "lumatic-ai/BongChat-v1-253k"},
    "swahili": {"CohereForAI/aya_dataset", "lelapa/Inkuba-instruct", "bigscience/xP3mt"},
    "japanese": {
        *("CohereForAI/aya_dataset", "izumi-lab/llm-japanese-dataset"),
        *("platdev/ichikara-instruction", "kunishou/databricks-dolly-15k-ja"),
    },
}
"""What the hub has of the data sets; NLLB and IndicShareLlama are local files."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a working directory with a stand-in for every base, adapter and data set."""
    folder = tmp_path_factory.mktemp("presets")
    write_base(folder / "runs/pocket/base", num_hidden_layers=8, max_position_embeddings=2048)
    write_base(folder / "llama", num_hidden_layers=32, hidden_size=32, max_position_embeddings=2048)
    for base, prefix in (("llama", ""), ("runs/pocket/base", "pocket_")):
        for seed, name in enumerate(("math_lora", "swahili_lora")):
            out = folder / f"runs/experts/{prefix}{name}"
            train_adapter(folder / base, out, seed, target_modules=["q_proj"])
    (folder / "data").mkdir()
    for name in ("nllb_eng-swh", "nllb_eng-tel", "nllb_eng-ben", "nllb_eng-jpn"):
        _write(folder / f"data/{name}.jsonl", {"eng": "w1 w2", name[-3:]: "w3"})
    _write(folder / "data/indic_sharellama_ben.jsonl", {"prompt": "w1", "answer": "w2"})
    for code in ("es", "fr", "de", "sw", "en"):
        for family in ("math", "translate", "translate_back", "comprehension", "text"):
            row = {"prompt": "w1", "answer": "w2"}
            _write(folder / f"runs/smol/data/{family}_{code}.jsonl", row)
    for name, fields in {
        "microsoft/orca-math-word-problems-200k": ["question", "answer"],
        "lelapa/Inkuba-instruct": ["instruction", "inputs", "targets"],
        "bigscience/xP3mt": ["inputs", "targets"],
        "lumatic-ai/BongChat-v1-253k": ["instruction", "input", "output"],
        "izumi-lab/llm-japanese-dataset": ["instruction", "input", "output"],
        "platdev/ichikara-instruction": ["text", "output"],
        "kunishou/databricks-dolly-15k-ja": ["instruction", "input", "output"],
    }.items():
        _write(folder / name / "rows.jsonl", dict.fromkeys(fields, "w4 w5"))
    aya = [{"inputs": "w1", "targets": "w2", "language": name.title()} for name in LANGUAGES]
    _write(folder / "CohereForAI/aya_dataset/rows.jsonl", *aya)
    for name, subset in (("lelapa/Inkuba-instruct", "swahili"), ("bigscience/xP3mt", "sw")):
        card = {"configs": [{"config_name": subset, "data_files": "rows.jsonl"}]}
        (folder / name / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")
    return folder


def _write(path: Path, *rows: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) * 12)


def test_there_are_presets_for_all_that_is_asked() -> None:
    assert set(TABLE_4) <= set(PRESETS)
    assert len(TABLE_4) == 15
    assert sum(name.startswith("divergence/") for name in PRESETS) == 10
    assert "joint_swahili" in PRESETS
    for kind in ("lora", "dora", "prefix", "frozen", "disjoint"):
        assert {f"regimes/math_{kind}", f"regimes/swahili_{kind}"} <= set(PRESETS)


@pytest.mark.parametrize("name", TABLE_4)
def test_the_fifteen_experts_have_the_numbers_of_tables_3_and_4(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    config = read_config(str(FOLDER / f"{name}.yml"))
    found = (
        *(config.learning_rate, config.batch_size, config.max_length, config.weight_decay),
        *(config.max_grad_norm, config.schedule, config.warmup_steps, config.adam_beta2),
    )
    assert found == TABLE_4[name]
    assert config.save_every == 5000
    assert 30_000 <= config.samples <= 40_000
    assert config.regime.kind == "full"
    hub = {source.hub for source in config.data if isinstance(source, HubRows)}
    assert hub == TABLE_3[name[:-2]]
    translation = [source for source in config.data if "nllb" in getattr(source, "path", "")]
    assert len(translation) == (0 if "math" in name else 2)


def test_the_seeds_of_a_kind_of_expert_differ(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    for kind in TABLE_3:
        seeds = [read_config(str(FOLDER / f"{kind}_{i}.yml")).seed for i in (1, 2, 3)]
        assert len(set(seeds)) == 3


@pytest.mark.parametrize("name", PRESETS)
def test_the_header_says_what_it_is_and_how_to_run_it(name: str) -> None:
    lines = (FOLDER / f"{name}.yml").read_text(encoding="utf-8").splitlines()
    header = "\n".join(line for line in lines if line.startswith("#"))
    fields = re.findall(r"^# (\w+):", header, re.MULTILINE)
    assert fields == ["What", "Run", "Needs", "Source", "Expected"]
    assert f"layerswap train {name} --out runs/experts/" in header
    assert "ot measured by us" in header
    assert max(map(len, lines)) <= 100


def _train(name: str, here: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(here)
    base = "runs/pocket/base" if name.startswith("pocket/") else "llama"
    settings = ["samples=8", "held_out=1", "save_every=4", f"base={base}", "measure=false"]
    config = read_config(str(FOLDER / f"{name}.yml"), settings)
    assert isinstance(config, TrainConfig)
    return train_expert(config, out)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name", ["math_1", "swahili_1", "regimes/swahili_disjoint", "regimes/fusion_swahili"]
)
def test_a_preset_trains_a_stand_in(
    name: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _train(name, here, tmp_path / "out", monkeypatch)
    assert record["finished"]
    assert sum(record["rows_by_source"].values()) == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_a_stand_in(
    name: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _train(name, here, tmp_path / "out", monkeypatch)["finished"]
