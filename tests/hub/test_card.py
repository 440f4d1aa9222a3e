"""`layerswap card`: mergekit's card, completed, as huggingface_hub's own classes read it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from huggingface_hub import ModelCard, parse_eval_result_entries

from ablations.cli import main
from ablations.hub.scores import check_same_model
from ablations.runner.records import load_run
from layerswap_method import __version__
from layerswap_method.errors import InputError
from layerswap_method.plan import LayerPlan
from tests.evaluate.test_run import pytestmark  # noqa: F401 - engines warn

TASK = "layerswap_mgsm_sw"


def card(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["card", *map(str, arguments), "--offline"])
    return result.exit_code, result.output


def metadata(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = ModelCard.load(model / "README.md").data.to_dict()
    return found


def test_mergekits_front_matter_stays_and_is_completed(model: Path) -> None:
    before = metadata(model)
    code, said = card(model)
    assert code == 0, said
    after = metadata(model)
    assert {key: after[key] for key in before} == before
    assert after["tags"] == ["mergekit", "merge"]
    assert after["library_name"] == "transformers"
    assert after["base_model_relation"] == "merge"
    assert after["language"] == ["en", "sw"]
    assert "license" not in after
    assert "model-index" not in after
    assert "the recipe names folders that others lack" in said
    text = (model / "README.md").read_text()
    assert "No licence is stated for this model, because not every merged model states one" in text
    assert "layers: language 0; task 1" in text
    assert "### Models Merged" in text
    assert f"merged by `layer_swap` of layerswap {__version__}." in text


def test_the_command_for_adapters_is_one_that_works(model: Path) -> None:
    recipe = model / "mergekit_config.yml"
    document = yaml.safe_load(recipe.read_text())
    document["models"][0]["model"] += "+./adapter"
    recipe.write_text(yaml.safe_dump(document))
    card(model)
    assert "./merged --lora-merge-cache ./adapters\n" in (model / "README.md").read_text()


def test_a_second_call_writes_the_same(model: Path) -> None:
    card(model)
    first = (model / "README.md").read_text()
    card(model)
    assert (model / "README.md").read_text() == first


@pytest.mark.parametrize(
    ("stated", "licence", "note"),
    [
        (("mit", "mit"), "mit", "All merged models are under mit"),
        (("mit", "llama3.1"), None, "the merged models' licences differ"),
    ],
)
def test_the_licence_is_that_of_all_models_or_none(
    tmp_path: Path, merged: Path, stated: tuple[str, str], licence: str | None, note: str
) -> None:
    model = shutil.copytree(merged, tmp_path / "model")
    recipe = model / "mergekit_config.yml"
    text = recipe.read_text()
    for role, name in zip(("task", "language"), stated, strict=True):
        folder = shutil.copytree(merged.parent / role, tmp_path / role)
        (folder / "README.md").write_text(f"---\nlicense: {name}\n---\n")
        text = text.replace(str(merged.parent / role), str(folder))
    recipe.write_text(text)
    assert card(model)[0] == 0
    assert metadata(model).get("license") == licence
    assert note in (model / "README.md").read_text()
    assert card(model, "--license", "apache-2.0")[0] == 0
    assert metadata(model)["license"] == "apache-2.0"


@pytest.mark.slow
def test_scores_stand_in_the_table_the_index_and_the_results(
    merged: Path, scored: Path, tmp_path: Path
) -> None:
    kept = shutil.copytree(merged, tmp_path / "kept")
    ids = [f"--benchmark={TASK}=owner/mgsm:sw", "--benchmark=layerswap_belebele_sw=owner/belebele"]
    code, said = card(merged, "--results", scored, *ids)
    assert code == 0, said
    (cell,) = load_run(scored).cells
    record = next(each for each in cell.tasks if each.task == TASK)
    score = record.evaluation.scores[0]
    data = ModelCard.load(merged / "README.md").data
    results: Any = data.eval_results
    assert {each.dataset_name for each in results} == {TASK, "layerswap_belebele_sw"}
    found = next(each for each in results if each.metric_name == f"{score.metric} ({score.filter})")
    assert found.metric_value == round(100 * score.value, 2)
    assert not any("truncated" in each.metric_name for each in results)
    (entry,) = parse_eval_result_entries(
        yaml.safe_load((merged / ".eval_results" / "owner--mgsm.yaml").read_text())
    )
    assert (entry.dataset_id, entry.task_id) == ("owner/mgsm", "sw")
    assert entry.value == found.metric_value
    assert "8-shot" in str(entry.notes)
    text = (merged / "README.md").read_text()
    low, high = score.interval.low, score.interval.high  # type: ignore[union-attr]
    assert f"[{100 * low:.1f}, {100 * high:.1f}] | {score.n} | 8-shot" in text
    assert "An interval (95%) is over the items of the task" in text
    shutil.rmtree(merged)  # as the other tests expect it
    shutil.copytree(kept, merged)


@pytest.mark.slow
def test_scores_of_another_model_are_refused(model: Path, scored: Path) -> None:
    code, said = card(model, "--results", scored)
    assert code == 2
    assert "no cell was read from" in said
    code, said = card(model, "--results", scored, "--cell", "bose")
    assert code == 2
    assert "did you mean 'base'?" in said
    assert card(model, "--results", scored, "--cell", "base")[0] == 0
    code, said = card(model, "--results", scored, "--cell", "base", "--benchmark=x_sw=a/b")
    assert code == 2
    assert "x_sw was not evaluated" in said


@pytest.mark.slow
def test_scores_from_before_a_change_are_refused(
    merged: Path, scored: Path, tmp_path: Path
) -> None:
    kept = shutil.copytree(merged, tmp_path / "kept")
    try:
        config = merged / "config.json"
        config.write_text(config.read_text().replace("1e-06", "1e-05"))
        code, said = card(merged, "--results", scored)
        assert code == 2
        assert "are of other weights, config or tokenizer than" in said
        assert "layerswap evaluate" in said
    finally:
        shutil.rmtree(merged)  # as the other tests expect it
        shutil.copytree(kept, merged)


def test_a_cell_of_other_layers_is_refused(model: Path, tmp_path: Path) -> None:
    def cell(*sources: str) -> Any:
        models = [{"model": "/one"}, {"model": "/other"}]
        return SimpleNamespace(label="b=2", plan=LayerPlan(sources), merge={"models": models})

    run: Any = SimpleNamespace(path=tmp_path)
    check_same_model(run, cell("language", "task"), model)
    with pytest.raises(InputError, match=r"is another merge than .* 2 layers: language 0-1;"):
        check_same_model(run, cell("language", "language"), model)


def test_benchmarks_need_results(model: Path) -> None:
    before = (model / "README.md").read_text()
    code, said = card(model, "--benchmark", f"{TASK}=a/b")
    assert code == 2
    assert "it needs --results RUN" in said
    assert (model / "README.md").read_text() == before


def test_a_folder_that_is_no_merge(tmp_path: Path, model: Path) -> None:
    code, said = card(tmp_path / "model" / "..")
    assert code == 2
    assert "holds no README.md" in said
    (model / "README.md").write_text("---\nbase_model: [\n---\n")
    code, said = card(model)
    assert code == 2
    assert "is not a card that the hub can read" in said


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("mergekit_config.yml", b"models: []", "is not a recipe; it has no merge_method:"),
        ("mergekit_config.yml", b"\xff", "cannot be read: it is not UTF-8 text"),
        ("README.md", b"\xff", "is not a card that the hub can read"),
        ("layer_swap_plan.json", b"{", "is damaged; merge the recipe again"),
        ("layer_swap_plan.json", b'{"layers": []}', "is damaged; merge the recipe again"),
    ],
)
def test_a_damaged_file_is_named(model: Path, file: str, content: bytes, message: str) -> None:
    (model / file).write_bytes(content)
    code, said = card(model)
    assert code == 2
    assert f"{model / file}: {message}" in said
