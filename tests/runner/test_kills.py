"""One kill of a study on the real engine; `make kill-study` makes thirty."""

from pathlib import Path

import pytest

from tests.runner.kill_study import run


@pytest.mark.slow
def test_a_killed_study_on_transformers_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    kills = run(tmp_path, "hf", count=1, seed=2, weights=2)
    assert kills.cells == 14
    assert kills.while_evaluating == 1
    assert 0 < kills.progress[0] < 14
    assert kills.processes > 0
