"""Merged tensors and scores are those that belong to METHOD_VERSION and SCORING_VERSION."""

from __future__ import annotations

import pytest

from tests.golden.numbers import WHERE, current, problem, stored


@pytest.mark.parametrize("name", WHERE)
def test_a_changed_number_needs_a_raised_version(name: str) -> None:
    if name == "SCORING_VERSION":
        pytest.importorskip("py3langid")
    known, now = stored()[name], current(name)
    assert len(set(map(str, known["numbers"].values()))) > 10
    assert problem(name, known, now) is None


def test_what_is_to_be_done_is_said() -> None:
    known = {"version": 1, "numbers": {"a": 0.5, "b": 1.0}}
    changed = {"version": 1, "numbers": {"a": 0.5, "b": 0.9}}
    raised = {"version": 2, "numbers": {"a": 0.5, "b": 0.9}}
    more = {"version": 1, "numbers": {"a": 0.5, "b": 1.0, "c": 0.1}}
    told = problem("METHOD_VERSION", known, changed) or ""
    assert told.startswith("b: changed, and METHOD_VERSION is still 1")
    assert "raise METHOD_VERSION in layerswap_method/__init__.py" in told
    assert "run python -m tests.golden.numbers" in (problem("METHOD_VERSION", known, raised) or "")
    assert "run python -m tests.golden.numbers" in (problem("METHOD_VERSION", known, more) or "")
    assert problem("METHOD_VERSION", known, known) is None
