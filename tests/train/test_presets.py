"""The shipped training files: the paper's numbers, and each of them trains a tiny stand-in."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ablations.cli import main
from ablations.tasks.catalog import list_tasks
from ablations.train.config import read_config
from tests.standins.tuned import train_adapter
from tests.train.runs import write_base

FOLDER = Path(__file__).parents[2] / "recipes/experts"
PRESETS = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yml")
)
PAPER = json.loads((files("ablations.paper") / "training.json").read_text(encoding="utf-8"))
CODES = {"math": "math", "jpn": "japanese", "swh": "swahili", "tel": "telugu", "ben": "bengali"}
TABLE_4 = {
    f"{CODES[row.split()[0]]}_{row[-1]}": dict(
        zip(PAPER["table_4"]["columns"], values, strict=True)
    )
    for row, values in PAPER["table_4"]["rows"].items()
}
SCHEDULES = {"linear": "linear", "wsd": "warmup_stable_decay"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a working directory with a stand-in for every base, adapter and data set."""
    folder = tmp_path_factory.mktemp("presets")
    write_base(folder / "runs/pocket/base", num_hidden_layers=8, max_position_embeddings=2048)
    write_base(folder / "llama", num_hidden_layers=32, hidden_size=32, max_position_embeddings=2048)
    for base, prefix in (("llama", ""), ("runs/pocket/base", "pocket_")):
        for seed, name in enumerate(("math_lora", "swahili_lora")):
            out = folder / f"runs/experts/{prefix}{name}"
            train_adapter(folder / base, out, seed, target_modules=["q_proj"])
    for name in PRESETS:
        for source in yaml.safe_load((FOLDER / f"{name}.yml").read_text()).get("data", ()):
            if "path" in source or "hub" in source:
                write_source(folder, source)
    return folder


def write_source(folder, source):
    """Add rows to the stand-in of a file or data set, with the fields that a source reads."""
    file = folder / source.get("path", f"{source.get('hub')}/rows.jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    texts = source.get("prompt", "{prompt}") + source.get("answer", "{answer}")
    row = dict.fromkeys(re.findall(r"\{(.+?)\}", texts), "w4 w5") | source.get("where", {})
    with file.open("a") as rows:
        rows.write((json.dumps(row) + "\n") * 12)
    if "subset" in source:
        card = {"configs": [{"config_name": source["subset"], "data_files": "rows.jsonl"}]}
        (file.parent / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")


def read(name, place, monkeypatch, *settings):
    monkeypatch.chdir(place)
    return read_config(str(FOLDER / f"{name}.yml"), settings)


@pytest.mark.parametrize("name", TABLE_4)
def test_the_fifteen_experts_have_the_numbers_of_tables_3_and_4(name, place, monkeypatch):
    config = read(name, place, monkeypatch)
    trainer = config.trainer
    assert {
        "learning_rate": trainer["learning_rate"],
        "batch_size": config.batch_size,
        "seq_length": config.max_length,
        "weight_decay": trainer["weight_decay"],
        "max_grad_norm": trainer["max_grad_norm"],
        "schedule": trainer["lr_scheduler_type"],
        "warmup": trainer["warmup_steps"],
        "adam_beta2": trainer["adam_beta2"],
    } == {**TABLE_4[name], "schedule": SCHEDULES[TABLE_4[name]["schedule"]]}
    assert trainer["save_steps"] * config.batch_size == 5000
    assert 30_000 <= config.samples <= 40_000
    assert config.regime.kind == "full"
    if "lr_scheduler_kwargs" in trainer:
        steps = config.samples / config.batch_size
        assert trainer["lr_scheduler_kwargs"]["num_decay_steps"] == round(steps / 10)
    published = {entry.partition(" (")[0] for entry in PAPER["table_3"][name[:-2]]}
    # NLLB and IndicShareLlama are files of the user; translated instructions are not published.
    hub = {source.hub for source in config.data if source.hub}
    assert hub == {
        entry
        for entry in published
        if "/" in entry and entry not in ("allenai/nllb", "ai4bharat/indic-align")
    }
    translation = [source for source in config.data if "nllb" in (source.path or "")]
    assert len(translation) == (0 if "math" in name else 2)
    others = [read(f"{name[:-1]}{i}", place, monkeypatch).seed for i in (1, 2, 3)]
    assert len(set(others)) == 3


@pytest.mark.parametrize("name", TABLE_4)
def test_the_fifteen_experts_are_selected_as_in_section_3_1(name, place, monkeypatch):
    select = read(name, place, monkeypatch).select
    assert select.keep == 3
    kind = name[:-2]
    if kind == "math":
        english, average = select.tasks
        assert english == "layerswap_mgsm_en"
        assert len(set(average)) == 10
        assert select.secondary == ()
    else:
        code = {"japanese": "ja", "swahili": "sw", "telugu": "te", "bengali": "bn"}[kind]
        flores = (f"layerswap_flores_en-{code}", f"layerswap_flores_{code}-en")
        assert select.tasks == (f"layerswap_belebele_{code}", flores)
        names = (f"layerswap_{benchmark}_{code}" for benchmark in ("mbpp", "mmlu", "mgsm"))
        assert select.secondary == tuple(names)
    known = {task.name for task in list_tasks()}
    for entry in (*select.tasks, *select.secondary):
        assert {entry} <= known if isinstance(entry, str) else set(entry) <= known


@pytest.mark.parametrize("name", PRESETS)
def test_the_header_says_what_it_is_and_how_to_run_it(name):
    lines = (FOLDER / f"{name}.yml").read_text(encoding="utf-8").splitlines()
    header = "\n".join(line for line in lines if line.startswith("#"))
    assert re.findall(r"^# (\w+):", header, re.MULTILINE) == [
        *("What", "Run", "Needs", "Source", "Expected")
    ]
    assert f"layerswap train {name} " in header
    assert "ot measured by us" in header
    assert max(map(len, lines)) <= 100


SOME = ["math_1", "swahili_1", "regimes/swahili_disjoint", "regimes/fusion_swahili"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name",
    [*SOME, *(pytest.param(n, marks=pytest.mark.slow) for n in PRESETS if n not in SOME)],
)
def test_a_preset_trains_a_stand_in(name, place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    base = "runs/pocket/base" if name.startswith("pocket/") else "llama"
    settings = ["samples=8", "held_out=1", "trainer.save_steps=1", "measure=false", "select=null"]
    options = [word for setting in settings for word in ("--set", setting)]
    call = ["train", name, "--base", base, "--out", str(tmp_path / "out"), *options]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out/training.json").read_text())
    assert record["finished"]
    assert sum(record["rows_by_source"].values()) == 8
