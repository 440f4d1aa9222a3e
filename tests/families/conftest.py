"""Experts made once a session, and the checks every merged model goes through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.standins.zoo import VOCAB, make_model

Experts = Callable[..., SimpleNamespace]


@pytest.fixture(scope="session")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Experts:
    """Return a function: family, changes -> folders of a task and a language expert and a base."""
    made: dict[str, SimpleNamespace] = {}

    def make(family: str, **changes: Any) -> SimpleNamespace:
        key = repr((family, sorted(changes.items(), key=str)))
        if key not in made:
            root = tmp_path_factory.mktemp(family)
            made[key] = SimpleNamespace(
                **{
                    name: make_model(family, root / name, seed, **changes)
                    for seed, name in enumerate(("base", "task", "language"))
                }
            )
        return made[key]

    return make


@pytest.fixture(scope="session")
def loads() -> Callable[[Path], None]:
    """Return a check that transformers loads a folder whole and gets finite logits from it."""

    def check(folder: Path) -> None:
        import transformers

        config = transformers.AutoConfig.from_pretrained(folder)
        auto = (
            transformers.AutoModelForImageTextToText
            if hasattr(config, "vision_config")
            else transformers.AutoModelForCausalLM
        )
        model, info = auto.from_pretrained(folder, output_loading_info=True)
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            assert not info[problem], (problem, info[problem])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[3, 11, 12, 13]])).logits
        assert logits.shape[:2] == (1, 4)
        assert logits.shape[2] >= VOCAB - 1
        assert torch.isfinite(logits.float()).all()
        assert logits.float().std() > 0

    return check


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the list of all (model, tensor) requests that mergekit sends to its loaders."""
    from mergekit.io.lazy_tensor_loader import LazyTensorLoader

    requests: list[tuple[str, str]] = []
    original = LazyTensorLoader.get_tensor

    def get_tensor(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        requests.append((Path(self.index.base_path).name, key))
        return original(self, key, *args, **kwargs)

    monkeypatch.setattr(LazyTensorLoader, "get_tensor", get_tensor)
    return requests
