"""`layerswap share`: one file that is read and rerun elsewhere."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ablations.cli import main
from ablations.hub.bundle import STUDY, pack, portable_experts, unpacked
from ablations.runner.records import load_run
from ablations.runner.run import RunOptions, run_study
from ablations.study.files import read_study
from ablations.study.schema import Study
from layerswap_method.errors import InputError
from tests.report.runs import study_of, write_run
from tests.runner.conftest import experts, models, other_generation
from tests.runner.fakes import scores_by_label
from tests.standins.studies import study_document, write_yaml

__all__ = ["experts", "models", "other_generation"]

VARIED = {"vary": {"bottom_layers": [1, 2]}, "baseline": ["base", "soup"]}


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A run whose scores nobody computed."""
    folder = tmp_path / "made_up"
    write_run(folder, study_of(**VARIED), lambda point, task: 0.5, items=30)
    return folder


def cli(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(word) for word in words])
    return result.exit_code, result.output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_bundle_is_reported_and_rerun_elsewhere(
    tmp_path: Path, experts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_yaml(tmp_path / "small.yml", study_document(**VARIED))
    first = tmp_path / "first"
    result = run_study(str(study), RunOptions(experts=experts, out=first, backend="hf"))
    assert not result.summary.failed
    code, said = cli("share", first)
    assert code == 0
    bundle = tmp_path / "first.zip"
    assert f"{bundle}: 4 cells" in said
    assert "other people do not have these experts' folders: " in said
    with unpacked(bundle) as folder:
        about = json.loads((folder / "bundle.json").read_text())
    assert about["experts"].keys() == {"base", "math", "swahili"}
    assert all(f"content {hashed[:12]}" in said for hashed in about["experts"].values())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    code, said = cli("run", bundle, "--backend", "hf")
    assert code == 0, said
    assert scores_by_label(elsewhere / "runs" / "small") == scores_by_label(first)
    assert "4 cells" in cli("run", bundle, "--backend", "hf", "--dry-run")[1]


def test_a_bundle_shows_the_report_of_the_run(made_up: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "out" / "made.zip"
    assert cli("share", made_up, "--out", bundle)[0] == 0
    assert cli("report", bundle, "--format", "md,csv")[0] == 0
    assert cli("report", made_up, "--format", "md,csv")[0] == 0
    shown = tmp_path / "out" / "made-report"
    names = sorted(path.name for path in shown.iterdir())
    assert names == sorted(path.name for path in (made_up / "report").iterdir())
    for name in names:
        if name.endswith(".csv"):
            assert (shown / name).read_bytes() == (made_up / "report" / name).read_bytes()


def test_the_content_is_small_whole_and_always_the_same(made_up: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    list(pack(made_up, first))
    (made_up / ".work").mkdir()
    (made_up / ".work" / "scratch.safetensors").write_bytes(b"x")
    list(pack(made_up, second))
    assert first.read_bytes() == second.read_bytes()
    with unpacked(first) as folder:
        study = Study.model_validate(yaml.safe_load((folder / STUDY).read_text()))
        run = load_run(folder)
        assert study.model_copy(update={"experts_file": None}) == run.study
        assert scores_by_label(folder) == scores_by_label(made_up)
        packages = (folder / "environment.txt").read_text().splitlines()
        assert any(line.startswith("torch==") for line in packages)
        assert not (folder / ".work").exists()
    assert not folder.exists()


def test_a_model_of_the_hub_is_named_with_its_commit(made_up: Path) -> None:
    run = load_run(made_up)
    cache = "/home/me/hub/models--org--a--b/snapshots/0123abc"
    head = run.head.model_copy(update={"experts": {"math": f"{cache}+/mine/adapter"}})
    assert portable_experts(run.model_copy(update={"head": head})) == {
        "math": "org/a--b@0123abc+/mine/adapter"
    }


def test_what_is_no_bundle_or_no_run(made_up: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.zip"):
        list(pack(made_up, tmp_path / "bundle.tar"))
    assert cli("share", tmp_path)[0] == 2
    other = tmp_path / "other.zip"
    other.write_text("no zip")
    for command in ("report", "run"):
        code, said = cli(command, other)
        assert code == 2
        assert "cannot be read as a bundle" in said
    with zipfile.ZipFile(other, "w") as content:
        content.writestr("../evil.txt", "x")
    code, said = cli("report", other)
    assert code == 2
    assert "is not a bundle of layerswap share: it holds '../evil.txt'" in said
    assert not (tmp_path.parent / "evil.txt").exists()


@pytest.mark.parametrize("flaw", ["damaged", "encrypted"])
def test_a_bundle_that_cannot_be_unpacked(made_up: Path, tmp_path: Path, flaw: str) -> None:
    bundle = tmp_path / "made.zip"
    list(pack(made_up, bundle))
    content = bytearray(bundle.read_bytes())
    if flaw == "damaged":
        content[200:260] = bytes(60)
    else:
        for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            content[content.index(mark) + flags] |= 1
    bundle.write_bytes(content)
    code, said = cli("report", bundle)
    assert code == 2
    assert f"{bundle}: cannot be read as a bundle" in said


def test_a_bundle_cannot_allow_programs_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"tasks": ["pocket_math_sw"], "allow_code_execution": True, "code_isolation": "none"}
    write_run(tmp_path / "made", study_of(evaluate=asked), lambda point, task: 0.5, items=30)
    bundle = tmp_path / "made.zip"
    list(pack(tmp_path / "made", bundle))
    read = list[Any]()

    def remembered(study: str, options: RunOptions) -> str:
        read.append(read_study(Path(study), options.settings).study)
        return ""

    monkeypatch.setattr("ablations.runner.run.dry_run", remembered)
    assert cli("run", bundle, "--dry-run")[0] == 0
    assert cli("run", bundle, "--dry-run", "--allow-code-execution")[0] == 0
    shown = [(e.evaluate.allow_code_execution, e.evaluate.code_isolation) for e in read]
    assert shown == [(False, "bwrap"), (True, "bwrap")]
