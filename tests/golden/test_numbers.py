"""Merged tensors and scores are those that belong to METHOD_VERSION and SCORING_VERSION."""

import pytest

from tests.golden.numbers import WHERE, current, problem, stored


@pytest.mark.parametrize("name", WHERE)
def test_a_changed_number_needs_a_raised_version(name):
    if name == "SCORING_VERSION":
        pytest.importorskip("py3langid")
    known, now = stored()[name], current(name)
    assert len(set(map(str, known["numbers"].values()))) > 10
    assert problem(name, known, now) is None
