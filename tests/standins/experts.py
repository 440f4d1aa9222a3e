"""Tiny models as fixtures of the whole session, for every folder. Do not write to them."""

import shutil
from types import SimpleNamespace

import pytest

# torch, transformers and peft are imported where they are used: every folder imports this file.


@pytest.fixture(scope="session")
def experts(tmp_path_factory):
    """Return a function: family, changes -> folders of a base and two unrelated models."""
    from tests.standins.model_families import make_model

    made = {}

    def make(family, **changes):
        key = repr((family, sorted(changes.items(), key=str)))
        if key not in made:
            root = tmp_path_factory.mktemp(family)
            names = enumerate(("base", "task", "language"))
            folders = {n: make_model(family, root / n, seed, **changes) for seed, n in names}
            made[key] = SimpleNamespace(**folders)
        return made[key]

    return make


@pytest.fixture(scope="session")
def trio(tmp_path_factory):
    """Return a Llama in bfloat16 and two fine-tunes of it, with tokenizers."""
    import torch

    from tests.standins.fine_tunes import tune
    from tests.standins.model_families import VOCAB, make_model
    from tests.standins.tokenizers import save_word_tokenizer, words

    root = tmp_path_factory.mktemp("trio")
    base = make_model("llama", root / "base", 0)
    save_word_tokenizer(base, words(VOCAB), chat_template="{{ messages }}")
    tuned = {
        role: tune(base, root / role, seed, 0.02, torch.bfloat16)
        for seed, role in enumerate(("task", "language"))
    }
    return SimpleNamespace(base=base, **tuned)


@pytest.fixture
def trio_copy(trio, tmp_path):
    """Return a copy of `trio` that a test may change."""
    copies = {name: tmp_path / "models" / name for name in vars(trio)}
    for name, folder in copies.items():
        shutil.copytree(getattr(trio, name), folder)
    return SimpleNamespace(**copies)


def content(folder):
    """Return file name -> bytes of a folder, to see that nothing changed."""
    files = (file for file in sorted(folder.iterdir()) if file.is_file())
    return {file.name: file.read_bytes() for file in files}


def left_in(folder):
    return sorted(path.name for path in folder.glob(".layerswap-*"))


def assert_loads(folder):
    """Fail unless transformers loads a folder whole and gets finite logits from it."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    sees = hasattr(config, "vision_config")
    auto = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[problem], (problem, info[problem])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[3, 11, 12, 13]])).logits.float()
    assert logits.shape[:2] == (1, 4)
    assert logits.isfinite().all()
    assert logits.std() > 0
