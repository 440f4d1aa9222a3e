"""Every shipped study: its header, and a dry run on experts of the right names."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import peft
import pytest
import transformers
import yaml
from click.testing import CliRunner

from ablations.cli import main
from ablations.pocket.build import EXPERTS_OF_A_SEED
from ablations.study.checks import expert_names
from ablations.study.experts import read_experts_file
from ablations.study.files import STUDIES
from ablations.study.schema import Study
from ablations.train import fusion
from layerswap_method.recipe.references import named_models
from tests.standins.scripted import DATA
from tests.standins.studies import write_expert, write_tasks, write_yaml
from tests.standins.tuned import train_adapter
from tests.study.test_files import load_study

FILES = sorted(path for path in STUDIES.rglob("*.yml") if path.parent.name != "experts")
assert FILES
RECIPES = Path(__file__).parents[2] / "recipes"
EXPERTS = sorted((STUDIES / "experts").rglob("*.yml"))
HEADER = ("# What:", "# Run:", "# Needs:", "# Source:", "# Expected:")


def name_of(path: Path) -> str:
    return path.relative_to(STUDIES).as_posix()


@pytest.mark.parametrize("path", [*FILES, *EXPERTS], ids=name_of)
def test_the_header_says_what_it_must(path: Path) -> None:
    lines = path.read_text().splitlines()
    head = [line for line in lines if line.startswith("#")]
    assert lines[0].startswith(HEADER[0])
    for field in HEADER:
        assert any(line.startswith(field) for line in head), f"no line {field}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_name_is_that_of_the_file(path: Path) -> None:
    assert load_study(path).name == path.stem


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_its_experts_file_has_every_expert(path: Path) -> None:
    study = load_study(path)
    assert study.experts_file is not None
    file = read_experts_file(path.parent / study.experts_file)
    assert set(expert_names(study)) <= set(file.experts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_primary_tasks_of_a_study_are_asked(path: Path) -> None:
    study = load_study(path)
    file = study.experts_file
    extra = () if file is None else read_experts_file(path.parent / file).tasks
    asked = {*study.evaluate.tasks, *extra}.union(*study.evaluate.languages.values())
    assert set(study.report.primary.tasks) <= asked


def names_in(references: Iterable[str]) -> set[str]:
    """Return the models' and adapters' own names: the last parts of their ids and paths."""
    parts = (part for reference in references for part in reference.split("+"))
    return {part.split("@")[0].rstrip("/").rpartition("/")[2] for part in parts}


def test_every_family_of_the_recipes_has_an_experts_file() -> None:
    """A recipe's models are another pair of a family that a file names, or that file's own."""
    files = [
        names_in(each.path for each in read_experts_file(path).experts.values()) for path in EXPERTS
    ]
    recipes = sorted(
        path for path in RECIPES.rglob("*.yml") if RECIPES / "experts" not in path.parents
    )
    assert len(recipes) > 40
    for path in recipes:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        models = names_in(named_models(document))
        assert any(models & names for names in files), path


@pytest.fixture(scope="module")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a working directory with stand-ins for the pocket experts in runs/pocket."""
    folder = tmp_path_factory.mktemp("work")
    for seed, name in enumerate(("base", *EXPERTS_OF_A_SEED)):
        write_expert(folder / "runs" / "pocket" / name, seed, layers=8)
    trained: dict[str, object] = {"base": "runs/pocket/base"}
    names = {name for path in EXPERTS for name in read_experts_file(path).experts} - {"base"}
    for seed, name in enumerate(sorted(names)):
        write_expert(folder / "trained" / name, seed, layers=8)
        facts = {"relative_norm": 0.1 + seed / 100, "drift": 0.2}
        trained[name] = {"path": f"trained/{name}", "facts": facts}
    write_yaml(folder / "trained.yml", {"experts": trained, "include_path": "runs/pocket/tasks"})
    tasks = {task for path in FILES for task in tasks_of(load_study(path))}
    write_tasks(folder / "runs" / "pocket" / "tasks", sorted(tasks))
    return folder


def tasks_of(study: Study) -> tuple[str, ...]:
    return (*study.evaluate.tasks, *(t for each in study.evaluate.languages.values() for t in each))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_dry_run_lists_cells_and_writes_nothing(
    path: Path, pocket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pocket)
    before = sorted(pocket.rglob("*"))
    arguments = ["run", name_of(path).removesuffix(".yml"), "--backend", "hf", "--dry-run"]
    if load_study(path).experts_file != "experts/pocket.yml":  # experts that a user trains
        arguments += ["--experts", "trained.yml"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert load_study(path).question in result.output
    assert "cost: " in result.output
    assert sorted(pocket.rglob("*")) == before


FITTING = [
    (study, experts)
    for study in FILES
    for experts in EXPERTS
    if set(expert_names(load_study(study))) <= set(read_experts_file(experts).experts)
]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Return a working directory with a stand-in for every model and adapter of every file."""
    folder = tmp_path_factory.mktemp("everything")
    lists = [read_experts_file(path).tasks for path in EXPERTS]
    names = {n for tasks in lists for n in (tasks.values() if isinstance(tasks, dict) else tasks)}
    names |= {task for path in FILES for task in tasks_of(load_study(path))}
    for testbed in ("pocket", "smol"):
        own = sorted(name for name in names if name.startswith(testbed))
        write_tasks(folder / f"runs/{testbed}/tasks", own)
    for path in dict.fromkeys(path for _, path in FITTING):
        layers = 8 if path.stem.startswith("pocket") else 32
        for seed, entry in enumerate(read_experts_file(path).experts.values()):
            base, _, adapter = entry.path.partition("+")
            model = folder / base.partition("@")[0]
            if not model.exists():
                write_expert(model, seed, layers=layers, hidden=8)
            if adapter and not (folder / adapter).exists():
                write_adapter(model, folder / adapter, seed)
            if (expert := adapter or base).startswith("runs/"):
                facts = {"relative_norm": 0.1, "drift": 0.2}  # as `layerswap train` leaves them
                record = {"schema_version": 1, "finished": True, "facts": facts}
                (folder / expert / "training.json").write_text(json.dumps(record))
    return folder


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


PLAN_1 = {"expert_divergence", "peft", "peft_beside", "disjoint", "transition_divergence"}


def is_quick(study, experts):
    return study.stem in PLAN_1 and experts.stem == "llama_8b_trained"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("study", "experts"),
    [
        pytest.param(
            *(study, experts),
            id=f"{study.stem}-{experts.stem}",
            marks=() if is_quick(study, experts) else pytest.mark.slow,
        )
        for study, experts in FITTING
    ],
)
def test_every_study_plans_with_every_experts_file_that_has_its_names(
    study, experts, everything, monkeypatch
):
    monkeypatch.chdir(everything)
    arguments = ["run", study.stem, "--experts", experts.stem, "--dry-run", "--backend", "hf"]
    result = CliRunner().invoke(main, [*arguments, "--data-dir", str(DATA)])
    assert result.exit_code == 0, result.output
    assert "cost: " in result.output


def test_the_8b_experts_file_has_what_the_studies_of_regimes_and_divergence_need():
    assert {s.stem for s, e in FITTING if e.stem == "llama_8b_trained"} >= PLAN_1


def test_shipped_experts_are_taken_by_name(pocket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pocket)
    arguments = ["run", "layer_count", "--backend", "hf", "--dry-run", "--experts"]
    result = CliRunner().invoke(main, [*arguments, "pocket"])
    assert result.exit_code == 0, result.output
    assert "\n  math: " in result.output


def test_the_layer_counts_are_those_of_the_paper() -> None:
    document = yaml.safe_load((STUDIES / "layer_count.yml").read_text())
    counts = [(each["bottom_layers"], each["top_layers"]) for each in document["vary"]]
    assert counts == [(0, 0), (3, 1), (5, 2), (8, 4)]
    assert document["reference_layers"] == 32
