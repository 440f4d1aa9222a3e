"""What a model brings is read and not run, and what its files lack is never made up."""

import ast
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from ablations.models.load import load_adapter, load_model
from ablations.train.model import load_base
from ablations.train.side_adapters import with_adapter
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.errors import InputError, LayerSwapError
from tests.engines.backends import BACKENDS
from tests.standins.command import told
from tests.standins.fine_tunes import edited, restored, save_adapter, train_adapter
from tests.standins.model_families import LAYERS, VOCAB, make_model
from tests.standins.scripted import write_jsonl
from tests.standins.studies import study_document, write_yaml
from tests.standins.tasks import write_drawing_task, write_tasks
from tests.standins.tokenizers import save_word_tokenizer
from tests.standins.tokenizers import words as token_names
from tests.standins.word_models import write_model

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("ablations", "layerswap_method", "tools")
    for path in (ROOT / folder).rglob("*.py")
]
DOOR = ROOT / "ablations/models/load.py"
"""The only file that may call what reads a model."""

NO_CODE = {"GenerationConfig", "PeftModel"}
"""Classes whose `from_pretrained` reads settings or tensors, and so takes no such argument."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks") / "words")


def reads(tree):
    """Yield the calls of a file that may run code of a model, and whether each says False."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        is_read = isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained"
        kind = ast.unparse(node.func.value) if is_read else ""
        if (is_read and kind not in NO_CODE) or "trust_remote_code" in given:
            yield ast.unparse(node), given.get("trust_remote_code") == "False"


def test_no_call_lets_a_model_run_its_own_code():
    assert len(SOURCES) > 150
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert path == DOOR or "from_pretrained" not in named, path
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("transformers")
            for alias in node.names
        }
        assert "pipeline" not in imported, path
        if path.parts[-2] == "mergekit_plugin":  # mergekit's own option is the user's choice
            continue
        assert all(says_false for _, says_false in reads(tree)), path
    found = list(reads(ast.parse(DOOR.read_text(encoding="utf-8"))))
    assert len(found) == 3
    # The check itself can fail.
    (call,) = reads(ast.parse("AutoConfig.from_pretrained(folder)"))
    assert not call[1]


HOSTILE = """
from pathlib import Path
Path({mark!r}).write_text("ran")
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig):
    model_type = "own_llama"
class Model(LlamaForCausalLM):
    config_class = Config
class Words(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def hostile(tmp_path):
    """Return three models whose files name a module next to them, and the file that it writes."""
    mark, models = tmp_path / "ran", {}
    for seed, name in enumerate(("base", "math", "swahili")):
        folder = models[name] = write_model(tmp_path / name, seed)
        (folder / "own.py").write_text(HOSTILE.format(mark=str(mark)))
        classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
        edited(folder, model_type="own_llama", auto_map=classes, architectures=["Model"])
        words = {"AutoTokenizer": [None, "own.Words"]}
        edited(folder, "tokenizer_config.json", tokenizer_class="Words", auto_map=words)
    return models, mark


COMMANDS = {
    "evaluate": ("evaluate", "{base}", "--include-path", "{tasks}", "--tasks", "words_generate"),
    "run": ("run", "{study}", "--experts", "{experts}", "--backend", "hf", "--out", "out"),
    "train": ("train", "{train}", "--out", "out"),
    "evaluate --metadata": (
        "evaluate",
        "{whole}",
        "--include-path={drawing}",
        "--tasks=drawn",
        "--metadata=tokenizer={base}",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_models_own_code_never_runs_whatever_is_answered(name, hostile, whole, words, tmp_path):
    models, mark = hostile
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"question": "w1", "reply": "w2"}] * 8)
    documents = {
        "study": study_document(evaluate={"tasks": ["words_generate"]}),
        "experts": {
            "experts": {name: str(folder) for name, folder in models.items()},
            "include_path": str(words),
        },
        "train": {
            "base": str(models["base"]),
            "samples": 4,
            "held_out": 2,
            "batch_size": 2,
            "data": [{"path": str(rows), "prompt": "{question}", "answer": "{reply}"}],
        },
    }
    (tmp_path / "drawing").mkdir()
    drawing = write_drawing_task(tmp_path / "drawing")
    places = {"base": models["base"], "tasks": words, "whole": whole, "drawing": drawing}
    for kind, document in documents.items():
        places[kind] = write_yaml(tmp_path / f"{kind}.yml", document)
    command = [word.format(**places) for word in COMMANDS[name]]
    done = subprocess.run(
        [sys.executable, "-c", "from ablations.cli import main; main()", *command],
        cwd=tmp_path,
        input="y\n" * 20,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert not mark.exists(), done.stdout
    assert done.returncode != 0
    assert "its files name Python code of its own (auto_map), which is never run" in done.stdout


HEAD, KEYS = "lm_head.weight", "model.layers.1.self_attn.k_proj.weight"


def without(folder, to, *names):
    """Copy a model or an adapter whose file lacks some tensors."""
    return restored(folder, to, lambda t: {name: t[name] for name in t if name not in names})


def renamed(folder, to):
    """Copy a model whose tensors have names that no class knows."""
    return restored(folder, to, lambda t: {f"net.{name}": t[name] for name in t})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lacks", [(HEAD,), (KEYS,), None])
def test_weights_that_no_file_gives_are_not_evaluated(backend, lacks, whole, words, tmp_path):
    change = renamed if lacks is None else without
    model = change(whole, tmp_path / "model", *(lacks or ()))
    command = ("evaluate", model, "--include-path", words, "--tasks", "words_generate")
    places = ("--out", tmp_path / "out", "--answers", tmp_path / "answers", "--backend", backend)
    code, text = told(*command, *places)
    assert code == 1, text
    assert f"its files lack {(lacks or (HEAD,))[0]}" in text
    assert "save it again as a whole" in text
    assert not list(tmp_path.rglob("records/*"))
    assert not list(tmp_path.rglob("answers/*/*.jsonl"))


def test_a_live_engine_starts_on_no_such_weights(words, tmp_path):
    experts = {}
    for seed, name in enumerate(("base", "math", "swahili")):
        write_model(tmp_path / "whole" / name, seed)
        experts[name] = str(without(tmp_path / "whole" / name, tmp_path / name, HEAD))
    study = write_yaml(
        tmp_path / "study.yml", study_document(evaluate={"tasks": ["words_generate"]})
    )
    setting = {"experts": experts, "include_path": str(words)}
    places = ("--experts", write_yaml(tmp_path / "experts.yml", setting), "--out", tmp_path / "out")
    code, text = told("run", study, *places, "--answers", tmp_path / "answers", "--backend", "hf")
    assert code == 1, text
    assert "its files lack lm_head.weight" in text
    assert not list(tmp_path.rglob("records/*"))


def test_such_weights_are_not_trained(whole, tmp_path):
    with pytest.raises(LayerSwapError, match=r"its files lack lm_head\.weight, in whose place"):
        load_base(without(whole, tmp_path / "model", HEAD))


def test_a_tied_head_needs_no_tensor(tmp_path):
    folder = write_model(tmp_path / "tied", tie_word_embeddings=True)
    assert load_model(folder).lm_head.weight is not None


@pytest.mark.parametrize("kind", ["lora", "prefix"])
def test_an_adapter_that_gives_less_than_its_config_says_is_refused(kind, whole, tmp_path):
    config = {
        "lora": peft.LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        "prefix": peft.PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
    }
    adapter = tmp_path / kind
    model = peft.get_peft_model(load_model(whole), config[kind])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    model.save_pretrained(adapter)
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    read = load_adapter(load_model(whole), adapter)
    for name, tensor in peft.get_peft_model_state_dict(read).items():
        assert torch.equal(tensor, tensors[name])
    lost = sorted(tensors)[-1]
    save_file({name: tensors[name] for name in tensors if name != lost}, file)
    with pytest.raises((LayerSwapError, KeyError), match=lost.removesuffix(".weight")):
        load_adapter(load_model(whole), adapter)
    with pytest.raises(LayerSwapError, match=lost.removesuffix(".weight")):
        with_adapter(load_base(whole), adapter)


def test_a_lora_that_lacks_a_tensor_is_not_evaluated(whole, words, tmp_path):
    adapter = train_adapter(whole, tmp_path / "lora", target_modules=["q_proj", "v_proj"], r=2)
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    kept = {name: tensor for name, tensor in tensors.items() if ".1.self_attn.q_proj" not in name}
    assert len(kept) == len(tensors) - 2
    save_file(kept, file)
    command = ("evaluate", f"{whole}+{adapter}", "--include-path", words, "--backend", "hf")
    places = ("--out", tmp_path / "out", "--answers", tmp_path / "answers")
    code, text = told(*command, "--tasks", "words_generate", *places)
    assert code == 2
    assert "lacks the matrices of model.layers.1.self_attn.q_proj, which its adapter_config" in text
    assert not list(tmp_path.rglob("records/*"))


def with_tensors(folder, to, **added):
    """Copy a model whose file has more tensors."""
    return restored(folder, to, lambda tensors: {**tensors, **added})


UP = "model.layers.1.mlp.up_proj.weight"


def test_weights_whose_scales_nothing_applies_are_refused(whole, tmp_path):
    scales = {f"{UP}_scale_inv": torch.ones(1, 1)}
    with pytest.raises(InputError, match=r"up_proj\.weight_scale_inv\), which nothing applies"):
        load_model(with_tensors(whole, tmp_path / "scaled", **scales))


def test_tensors_that_the_model_has_no_place_for_are_named(whole, tmp_path, caplog):
    apart = {"mtp.fc.weight": torch.ones(2), "visual.a.weight": torch.ones(2)}
    load_model(with_tensors(whole, tmp_path / "apart", **apart))
    assert not caplog.records
    more = {"model.layers.1.mlp.extra.weight": torch.ones(2)}
    load_model(with_tensors(whole, tmp_path / "more", **more))
    assert "1 tensors that the model has no place for" in caplog.text
    assert "model.layers.1.mlp.extra.weight" in caplog.text


def test_a_quantisation_that_is_none_is_named(whole, tmp_path):
    model = restored(whole, tmp_path / "left", dict)
    edited(model, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(InputError, match=r"remove quantization_config from its config\.json"):
        load_model(model)
    load_model(edited(model, quantization_config=None))  # as the message advises


def test_more_tokens_than_rows_are_said_with_both_numbers(whole, tmp_path, caplog):
    model = restored(whole, tmp_path / "wide", dict)
    rows = load_model(model).config.vocab_size
    edited(model, vocab_size=rows + 16)
    with pytest.raises(InputError, match=rf"vocab_size {rows + 16} .*has {rows} rows"):
        load_model(model)
    load_model(edited(model, vocab_size=rows))  # as the message advises
    assert not caplog.records
    save_word_tokenizer(model, [f"w{number}" for number in range(rows - 2)])
    load_model(model)  # four special tokens come first
    assert "wide: 2 tokens of its tokenizer (" in caplog.text
    assert f"have no row in its model.embed_tokens.weight, which has {rows}; a" in caplog.text


@pytest.mark.slow
def test_an_adapter_of_the_text_class_on_a_model_that_sees_is_evaluated_as_merged(words, tmp_path):
    """Its matrices are of model.layers.N, the files' of language_model.model.layers.N."""
    base = make_model("gemma3_vl", tmp_path / "base", 0, dtype=torch.float32)
    save_word_tokenizer(base, token_names(VOCAB))
    prefix, tensors = "language_model.model.layers", {}
    shapes = read_checkpoint("base", base).shapes
    for layer in range(LAYERS):
        outputs, inputs = shapes[f"{prefix}.{layer}.self_attn.q_proj.weight"]
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{module}.lora_A.weight"] = torch.ones(2, inputs)
        tensors[f"{module}.lora_B.weight"] = torch.ones(outputs, 2)
    adapter = save_adapter(tmp_path / "adapter", tensors, 2, 4, ["q_proj"])
    command = ("evaluate", f"{base}+{adapter}", "--include-path", words, "--backend", "hf")
    places = ("--out", tmp_path / "out", "--answers", tmp_path / "answers")
    code, text = told(*command, "--tasks", "words_generate", *places)
    assert code == 0, text
    assert "words_generate exact_match" in text
