"""Experts made once a session, and a check that transformers loads a merge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.standins.zoo import make_model

Experts = Callable[..., SimpleNamespace]


@pytest.fixture(scope="session")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Experts:
    """Return a function: family, changes -> folders of a task and a language expert and a base."""
    made: dict[str, SimpleNamespace] = {}

    def make(family: str, **changes: Any) -> SimpleNamespace:
        key = repr((family, sorted(changes.items(), key=str)))
        if key not in made:
            root = tmp_path_factory.mktemp(family)
            names = enumerate(("base", "task", "language"))
            made[key] = SimpleNamespace(
                **{name: make_model(family, root / name, seed, **changes) for seed, name in names}
            )
        return made[key]

    return make


@pytest.fixture(scope="session")
def loads() -> Callable[[Path], None]:
    """Return a check that transformers loads a folder whole and gets finite logits from it."""

    def check(folder: Path) -> None:
        import transformers

        config = transformers.AutoConfig.from_pretrained(folder)
        has_images = hasattr(config, "vision_config")
        kind = "AutoModelForImageTextToText" if has_images else "AutoModelForCausalLM"
        auto = getattr(transformers, kind)
        model, info = auto.from_pretrained(folder, output_loading_info=True)
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            assert not info[problem], (problem, info[problem])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[3, 11, 12, 13]])).logits.float()
        assert logits.shape == (1, 4, config.get_text_config().vocab_size)
        assert torch.isfinite(logits).all()
        assert logits.std() > 0

    return check
