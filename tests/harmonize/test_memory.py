"""A model that is harmonised never sits whole in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fresh_process import printed
from tests.harmonize.models import random_model

CODE = """
import resource, sys
from ablations.cli import main

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def harmonize(one, other, out):
    main(["harmonize", one, other, "--out", out], standalone_mode=False)

small, wide, large, *outs = sys.argv[1:]
harmonize(small, wide, outs[0])
before = peak()
harmonize(large, wide, outs[1])
print("grown", peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    sizes = {"hidden_size": 192, "intermediate_size": 1024}
    wide = random_model(tmp_path / "wide", 0, hidden_size=256, num_hidden_layers=1)
    small = random_model(tmp_path / "small", 1, num_hidden_layers=1, **sizes)
    large = random_model(tmp_path / "large", 2, num_hidden_layers=24, **sizes)
    outs = [str(tmp_path / "out" / name) for name in ("first", "second")]
    text = printed(CODE, str(small), str(wide), str(large), *outs, seed=1)
    written = (Path(outs[1]) / "large" / "model.safetensors").stat().st_size
    grown = int(text.split("grown")[1])
    assert written > 100_000_000
    assert grown < written / 4
