"""Every shipped study: its header, and a dry run on stand-ins of every experts file it fits."""

import json
import os
import shutil
import struct
from pathlib import Path

import peft
import pytest
import transformers
import yaml

from ablations.study.checks import expert_names
from ablations.study.files import STUDIES, read_experts_file, read_study
from ablations.train import fusion
from tests.standins.command import output_of
from tests.standins.fine_tunes import train_adapter
from tests.standins.scripted import DATA
from tests.standins.studies import write_expert, write_tasks

FILES = sorted(path for path in STUDIES.rglob("*.yml") if path.parent.name != "experts")
assert FILES
EXPERTS = sorted((STUDIES / "experts").rglob("*.yml"))
HEADER = ("# What:", "# Run:", "# Needs:", "# Source:", "# Expected:")
FIT_ONE_MACHINE = {"gpu_memory_utilization", "kv_cache_gib", "dtype", "limit"}


def name_of(path):
    return path.relative_to(STUDIES).as_posix()


def tasks_of(study):
    return {*study.evaluate.tasks}.union(*study.evaluate.languages.values())


@pytest.mark.parametrize("path", [*FILES, *EXPERTS], ids=name_of)
def test_the_header_says_what_it_must(path):
    lines = path.read_text().splitlines()
    assert lines[0].startswith(HEADER[0])
    for field in HEADER:
        assert any(line.startswith(field) for line in lines), f"no line {field}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_study_is_named_as_its_file_and_fits_its_experts_and_tasks(path):
    named = read_study(path)
    study, file = named.study, read_experts_file(named.experts_file)
    assert study.name == path.stem
    assert set(expert_names(study)) <= set(file.experts)
    assert set(study.report.primary.tasks) <= tasks_of(study).union(file.tasks)
    document = yaml.safe_load(path.read_text())
    evaluate = document["evaluate"]  # nothing in it fits the pocket only
    said = {*document.get("recipe", {}), *evaluate, *evaluate.get("options", {})}
    assert not said & FIT_ONE_MACHINE


READ = {path: read_study(path) for path in FILES}
LISTED = {path: {*read_experts_file(path).experts} for path in EXPERTS}
FITTING = [
    (path, experts)
    for path, named in READ.items()
    for experts, listed in LISTED.items()
    if listed.issuperset(expert_names(named.study))
]
PLAN_1 = {"expert_divergence", "peft", "peft_beside", "disjoint", "transition_divergence"}


def test_the_8b_experts_file_has_what_the_studies_of_regimes_and_divergence_need():
    assert {s.stem for s, e in FITTING if e.stem == "llama_8b_trained"} >= PLAN_1


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Return a working directory with a stand-in for every model and adapter of every file."""
    folder = tmp_path_factory.mktemp("everything")
    lists = [read_experts_file(path).tasks for path in EXPERTS]
    names = {n for tasks in lists for n in (tasks.values() if isinstance(tasks, dict) else tasks)}
    names = names.union(*(tasks_of(read_study(path).study) for path in FILES))
    for testbed in ("pocket", "smol"):
        own = sorted(name for name in names if name.startswith(testbed))
        write_tasks(folder / f"runs/{testbed}/tasks", own)
    written: dict[int, Path] = {}
    for path in dict.fromkeys(path for _, path in FITTING):
        layers = {"pocket": 8, "qwen25": 28}.get(path.stem.partition("_")[0], 32)
        for seed, entry in enumerate(read_experts_file(path).experts.values()):
            base, _, adapter = entry.path.partition("+")
            model = folder / base.partition("@")[0]
            if not model.exists() and layers not in written:
                write_expert(model, seed, layers=layers, hidden=8, positions=4096)
                written[layers] = model
            elif not model.exists():
                shutil.copytree(written[layers], model)
                change_last_value(model / "model.safetensors", seed / 1000)
            if adapter and not (folder / adapter).exists():
                write_adapter(model, folder / adapter, seed)
            if (expert := adapter or base).startswith("runs/"):
                facts = {"relative_norm": 0.1, "drift": 0.2}  # as `layerswap train` leaves them
                record = {"schema_version": 1, "finished": True, "facts": facts}
                (folder / expert / "training.json").write_text(json.dumps(record))
    return folder


def change_last_value(file, value):
    with file.open("r+b") as weights:
        weights.seek(-4, os.SEEK_END)
        weights.write(struct.pack("<f", value))


def write_adapter(base, folder, seed):
    if "prefix" in folder.name:
        config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        peft.get_peft_model(model, config).save_pretrained(folder)
    else:
        train_adapter(base, folder, seed, target_modules=["q_proj"])
    if "fusion" in folder.name:
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        lora = folder.with_name("lora")
        shutil.move(folder, lora)
        fusion.build(model, base, {"a": lora}).write(folder, str(base))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("study", "experts"),
    [
        pytest.param(
            study,
            experts,
            id=f"{study.stem}-{experts.stem}",
            marks=() if READ[study].experts_file == experts else pytest.mark.slow,
        )
        for study, experts in FITTING
    ],
)
def test_a_dry_run_with_every_experts_file_that_fits_lists_cells_and_writes_nothing(
    study, experts, everything, monkeypatch
):
    monkeypatch.chdir(everything)
    before = sorted(everything.rglob("*"))
    arguments = ["run", study.stem, "--experts", experts.stem, "--dry-run", "--backend", "hf"]
    output = output_of(*arguments, "--data-dir", DATA)
    assert read_study(study).study.question in output
    assert "cost: " in output
    assert sorted(everything.rglob("*")) == before


def test_the_layer_counts_are_those_of_the_paper():
    document = yaml.safe_load((STUDIES / "layer_count.yml").read_text())
    counts = [(each["bottom_layers"], each["top_layers"]) for each in document["vary"]]
    assert counts == [(0, 0), (3, 1), (5, 2), (8, 4)]
    assert document["reference_layers"] == 32


def test_the_page_lists_every_shipped_study():
    page = (STUDIES.parents[1] / "docs" / "studies.md").read_text(encoding="utf-8")
    table = page.partition("## Shipped studies\n")[2].partition("\n## ")[0]
    missing = [path.stem for path in FILES if f"`{path.stem}`" not in table]
    assert missing == [], "docs/studies.md, Shipped studies: name what these need"
