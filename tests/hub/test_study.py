"""A study of experts on the hub: what its cells read is fetched once, and its keys stay."""

import json
import re
import shutil

import pytest
import yaml

from tests.hub.conftest import Machine, commit_of
from tests.standins.fine_tunes import train_adapter
from tests.standins.hub import running
from tests.standins.studies import study_document, write_expert, write_tasks

pytestmark = pytest.mark.slow  # commands in processes of their own, against a server

NAMES = {"base": "tiny/base", "math": "tiny/math", "swahili": "tiny/swahili"}
ADAPTERS = ["tiny/math-adapter", "tiny/swahili-adapter"]
"""Adapters of the base."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return the repositories of three experts whose layers have a few megabytes, and adapters."""
    root = tmp_path_factory.mktemp("tiny")
    for seed, name in enumerate(NAMES.values()):
        write_expert(root / name / commit_of(name), seed, layers=6, hidden=512)
    base = root / NAMES["base"] / commit_of(NAMES["base"])
    for seed, name in enumerate(ADAPTERS):
        modules = ["gate_proj", "up_proj"]
        train_adapter(base, root / name / commit_of(name), seed, target_modules=modules, r=64)
    return root


def write_study(machine, experts=NAMES, **changes):
    """Write a study of experts on the hub into the home of a machine."""
    tasks = write_tasks(machine.home / "tasks", ["words"], 4)
    setting = {"experts": experts, "include_path": str(tasks)}
    (machine.home / "experts.yml").write_text(yaml.safe_dump(setting))
    (machine.home / "small.yml").write_text(yaml.safe_dump(study_document(**changes)))
    return ["layerswap", "run", "small.yml", "--experts", "experts.yml", "--backend", "hf"]


def cells_of(machine):
    run = json.loads((machine.home / "runs" / "small-experts" / "run.json").read_text())
    return {cell["weights_key"]: cell["records"] for cell in run["cells"]}


def scores_of(machine):
    return (machine.home / "runs" / "small-experts" / "scores.csv").read_text()


def weights_of(machine):
    """Return how the models of a run came into an engine, as its records say."""
    records = [
        json.loads(path.read_text().splitlines()[0])
        for path in (machine.home / "runs" / "small-experts").glob("records/*.jsonl")
    ]
    assert records
    return {record["provenance"]["weights"] for record in records}


def weight_files(cache, name):
    return [*cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/*.safetensors")]


def test_a_study_fetches_what_its_cells_read_and_keeps_its_keys(tiny, tmp_path):
    setting = {"baseline": [], "vary": {"bottom_layers": [0, 1], "top_layers": [1]}}
    with running(tiny) as hub:
        whole = Machine(tmp_path / "whole", hub)
        whole.download(*NAMES.values())
        code, output = whole.run(*write_study(whole, **setting))
        assert code == 0, output
        hub.forget()
        machine = Machine(tmp_path / "machine", hub)
        study = write_study(machine, **setting)
        code, output = machine.run(*study, "--dry-run")
        assert code == 0, output
        assert "tiny/swahili@" in output
        assert "of its weights will be downloaded" in output
        assert hub.bytes["store"] <= len(NAMES) * (100_000 + 31 * 270_000)  # headers and a sample
        code, output = machine.run(*study)
        assert code == 0, output
        assert cells_of(machine) == cells_of(whole)
        assert scores_of(machine) == scores_of(whole)
        assert weights_of(machine) == {"streamed"}
        assert weight_files(machine.cache, "tiny/base")  # an engine starts on it
        assert not weight_files(machine.cache, "tiny/swahili")
        (partial,) = weight_files(machine.own_cache, "tiny/swahili")
        state = partial.stat()
        assert state.st_blocks * 512 < 0.7 * state.st_size
        hub.forget()
        code, output = machine.run(*study)
        assert code == 0, output
        assert hub.bytes["store"] == 0


def test_a_card_finds_the_scores_of_a_merge_whose_models_were_never_whole(tiny, tmp_path):
    with running(tiny) as hub:
        machine = Machine(tmp_path, hub)
        study = write_study(machine, baseline=[], vary={"bottom_layers": [0, 2]})
        code, output = machine.run(*study)
        assert code == 0, output
        recipe = study_document()["recipe"] | {"base_model": NAMES["base"]}
        recipe["models"] = [
            {"model": NAMES[name], "parameters": {"role": role}}
            for name, role in (("math", "task"), ("swahili", "language"))
        ]
        recipe["parameters"] = recipe["parameters"] | {"bottom_layers": 2}
        (machine.home / "recipe.yml").write_text(yaml.safe_dump(recipe))
        out = machine.merge("recipe.yml", "out")
        hub.forget()
        card = ("layerswap", "card", out, "--offline", "--results", "runs/small-experts")
        code, output = machine.run(*card)
        assert code == 0, output
        assert "words" in (out / "README.md").read_text()
        assert hub.bytes["store"] == 0


@pytest.mark.parametrize(("model", "name"), [("task_expert", "tiny/math"), ("base", "tiny/base")])
def test_a_model_that_is_evaluated_itself_is_downloaded_whole(tiny, tmp_path, model, name):
    with running(tiny) as hub:
        machine = Machine(tmp_path, hub)
        study = write_study(machine, baseline=[model], vary={"bottom_layers": [1]})
        code, output = machine.run(*study)
        assert code == 0, output
        whole = {each for each in NAMES.values() if weight_files(machine.cache, each)}
        assert whole == {name, "tiny/base"}
        assert weights_of(machine) == {"streamed"}
        # Its folder is another one now, with the same content.
        code, output = machine.run(*study, "--dry-run")
        assert code == 0, output
        assert "cost: none; every task of these cells is finished" in output


def test_an_engine_for_what_mergekit_merges_starts_on_the_base(tiny, tmp_path):
    recipe = {"merge_method": "slerp", "base_model": "task", "parameters": {"t": 0.5}}
    recipe |= {"models": [{"model": "task"}, {"model": "language"}], "dtype": "float32"}
    with running(tiny) as hub:
        machine = Machine(tmp_path, hub)
        study = write_study(machine, baseline=[], vary=[{"t": 0.3}, {"t": 0.6}], recipe=recipe)
        code, output = machine.run(*study)
        assert code == 0, output
        assert weights_of(machine) == {"merged by mergekit-yaml, then streamed"}
        assert weight_files(machine.cache, "tiny/base")


def test_every_expert_that_the_hub_refuses_is_named(tiny, tmp_path):
    with running(tiny) as hub:
        machine = Machine(tmp_path, hub)
        study = write_study(machine)
        places = {"base": "tiny/base", "math": "tiny/none", "swahili": "tiny/swahili@mian"}
        setting = yaml.safe_load((machine.home / "experts.yml").read_text())
        (machine.home / "experts.yml").write_text(yaml.safe_dump(setting | {"experts": places}))
        code, output = machine.run(*study)
        assert code == 2
        assert "tiny/none: no such folder" in output
        assert "there is no revision mian; did you mean 'main'?" in output
        assert hub.bytes["store"] < 300_000
        hub.without_ranges = True
        (machine.home / "experts.yml").write_text(yaml.safe_dump(setting))
        shutil.rmtree(machine.own_cache)
        code, output = machine.run(*study, "--dry-run")
        assert code == 1
        assert "hf download tiny/base gets all of it" in output


@pytest.mark.parametrize("baseline", [[], ["task_expert"]])
def test_a_dry_run_says_what_a_study_of_adapters_downloads(baseline, tiny, tmp_path):
    with running(tiny) as hub:
        machine = Machine(tmp_path, hub)
        base, (math, swahili) = NAMES["base"], ADAPTERS
        experts = {"base": base, "math": f"{base}+{math}", "swahili": f"{base}+{swahili}"}
        study = write_study(machine, experts, baseline=baseline, vary={"bottom_layers": [1]})
        code, output = machine.run(*study, "--dry-run")
        assert code == 0, output
        (said,) = re.findall(r"the downloads need ([\d.]+) MB", output)
        hub.forget()
        code, output = machine.run(*study)
        assert code == 0, output
        assert hub.bytes["store"] / 1e6 == pytest.approx(float(said), rel=0.01)
        whole = {name for name in ADAPTERS if weight_files(machine.cache, name)}
        assert whole == ({math} if baseline else set())
