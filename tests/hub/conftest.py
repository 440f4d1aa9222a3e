"""Models on a hub of this machine, and commands of processes that know it and no other."""

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.standins import merging
from tests.standins.fine_tunes import train_adapter
from tests.standins.hub import running

BASE, TASK, LANGUAGE, WIDE = "acme/base", "acme/task", "acme/language", "acme/wide"
TIED, TIED_LANGUAGE = "acme/tied", "acme/tied_language"
ADAPTER, ADAPTER_LANGUAGE, DORA = "acme/adapter", "acme/adapter_language", "acme/dora"
"""Adapters of BASE: two LoRAs and a DoRA."""

SETTINGS = {
    "swap": {"bottom_layers": 2, "top_layers": 1},
    "transitions": {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1},
    "one_vocabulary": {"bottom_layers": 2, "top_layers": 1, "non_layer": "task"},
    "bottom": {"bottom_layers": 3, "top_layers": 0, "non_layer": "task"},
    "top": {"bottom_layers": 0, "top_layers": 4, "non_layer": "task"},
    "float32": {"language": WIDE},
    "tied": {"task": TIED, "language": TIED_LANGUAGE, "base": TIED},
    "adapters": {"task": f"{BASE}+{ADAPTER}", "language": f"{BASE}+{ADAPTER_LANGUAGE}"},
    "magnitude": {"weighting": "magnitude"},
}
"""Name -> what a recipe has of a setting."""

_SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 64,
}


def commit_of(name):
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()


def write_repository(root, name, seed, dtype=torch.bfloat16, *, tied=False):
    """Write a fine-tune in several files, so large that a few of its layers are no small gap.

    All have one base, which seed 0 is. A tied one stores its output embedding, too.
    """
    from safetensors.torch import load_file, save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**_SHAPE, tie_word_embeddings=tied))
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.002 if seed else 0)
    model = model.to(dtype)
    folder = root / name / commit_of(name)
    model.save_pretrained(folder, max_shard_size=6_000_000 * dtype.itemsize // 2)
    if tied:
        index = folder / "model.safetensors.index.json"
        listed = json.loads(index.read_text())
        file = folder / listed["weight_map"]["model.embed_tokens.weight"]
        tensors = load_file(file)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, file, {"format": "pt"})
        listed["weight_map"]["lm_head.weight"] = file.name
        index.write_text(json.dumps(listed))
    vocabulary = {f"t{number}": number for number in range(_SHAPE["vocab_size"])}
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def repositories(tmp_path_factory):
    """Return the folder of the hub's repositories. Do not write to it."""
    root = tmp_path_factory.mktemp("repositories")
    for seed, name in enumerate((BASE, TASK, LANGUAGE)):
        write_repository(root, name, seed)
    write_repository(root, WIDE, 3, torch.float32)
    for seed, name in enumerate((TIED, TIED_LANGUAGE)):
        write_repository(root, name, seed, tied=True)
    base = root / BASE / commit_of(BASE)
    for seed, (name, *modules) in enumerate(
        [(ADAPTER, "gate_proj", "up_proj"), (ADAPTER_LANGUAGE, "gate_proj", "embed_tokens")]
    ):
        train_adapter(base, root / name / commit_of(name), seed, 0.01, target_modules=modules, r=64)
    train_adapter(base, root / DORA / commit_of(DORA), use_dora=True, target_modules=["q_proj"])
    return root


@pytest.fixture
def hub(repositories):
    with running(repositories, token="hf_secret") as hub:
        yield hub


class Machine:
    """A machine with a cache of its own, whose only hub is a stand-in."""

    def __init__(self, home, hub):
        self.home, self.hub = home, hub
        self.prefix = []
        """Words that every command begins with."""
        self.cache = home / "hf" / "hub"
        self.own_cache = home / "hf" / "hub-layerswap"
        home.mkdir(parents=True, exist_ok=True)

    def start(self, program, *words, **variables):
        """Start a program of this Python environment, or `python`, and return its process."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "LAYERSWAP_"))}
        kept.pop("TRANSFORMERS_OFFLINE", None)
        environment = kept | {
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_HOME": str(self.home / "hf"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "LAYERSWAP_DOWNLOAD": "ranges",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **variables,
        }
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = [*self.prefix, str(Path(sys.executable).parent / program), *map(str, words)]
        return subprocess.Popen(command, cwd=self.home, env=environment, **how)

    def run(self, program, *words, **variables):
        """Return the exit code and the output of a program."""
        process = self.start(program, *words, **variables)
        output = process.communicate()[0]
        assert "Traceback" not in output, output
        return process.returncode, output

    def merge(self, recipe, out, *options, **variables):
        """Merge, and return the folder of the merge."""
        code, output = self.run("layerswap", "merge", recipe, out, *options, **variables)
        assert code == 0, output
        return self.home / out

    def start_fetching(self, name, **variables):
        """Start to fetch ranges of all files of a model in pieces; see `standins.fetching`."""
        return self.start("python", "-m", "tests.standins.fetching", name, **variables)

    def fetch(self, name, **variables):
        """Fetch them, and return the exit code and the output."""
        process = self.start_fetching(name, **variables)
        output = process.communicate()[0]
        return process.returncode, output

    def download(self, *names):
        """Download models whole, as `hf download` does."""
        code = "import sys; from huggingface_hub import snapshot_download\n"
        code += "for name in sys.argv[1:]: snapshot_download(name)"
        assert self.run("python", "-c", code, *names)[0] == 0

    def recipe(self, task=TASK, language=LANGUAGE, base=BASE, name="recipe.yml", **parameters):
        """Write a recipe of hub ids, in bfloat16, and return its file."""
        models = {"task": task, "language": language}
        given = parameters or {"bottom_layers": 2, "top_layers": 1}
        document = merging.recipe(models, given, base=base, dtype="bfloat16")
        file = self.home / name
        file.write_text(f"# by its author\n{yaml.safe_dump(document, sort_keys=False)}")
        return file

    def allocated(self):
        """Return the bytes that our folder takes on the disk."""
        files = (file for file in self.own_cache.rglob("*") if not file.is_symlink())
        return sum(file.stat().st_blocks * 512 for file in files)


@pytest.fixture
def machine(hub, tmp_path):
    return Machine(tmp_path / "machine", hub)


@pytest.fixture(scope="session")
def with_all(repositories, tmp_path_factory):
    """Return a machine whose cache of the hub has every model whole."""
    with running(repositories) as hub:
        machine = Machine(tmp_path_factory.mktemp("with_all"), hub)
        machine.download(BASE, TASK, LANGUAGE, WIDE, TIED, TIED_LANGUAGE)
        machine.download(ADAPTER, ADAPTER_LANGUAGE)
        yield machine


def content(folder):
    """Return name -> hash of the files of a merge, without the card."""
    files = (file for file in sorted(folder.iterdir()) if file.name != "README.md")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="session")
def expected(with_all):
    """Return a function: name of a setting -> content of the merge of whole models, made once."""

    @functools.cache
    def merged(setting):
        return content(with_all.merge(with_all.recipe(**SETTINGS[setting]), setting))

    return merged
