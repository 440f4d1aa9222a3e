"""Every row of the mutation run finds its line and its tests, wherever they have moved."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_mutation_finds_its_line_and_its_tests():
    rows = list(runpy.run_path(str(ROOT / "tests/benchmarks/mutations.py"))["rows"]())
    assert len(rows) > 70
    stale = [
        f"{file}: {old}"
        for file, old, _, tests in rows
        if not (ROOT / "tests" / tests).exists()
        or (ROOT / file).read_text(encoding="utf-8").count(old) != 1
    ]
    assert stale == []
