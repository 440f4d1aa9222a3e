"""What is remembered of measured changes."""

from __future__ import annotations

import pytest

from layerswap_method.deltas import known


def test_what_is_measured_is_kept_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_known", {})
    for number in range(2 * known._KEPT):
        assert known.known(number, lambda number=number: number) == number
    assert len(known._known) == known._KEPT
    newest = 2 * known._KEPT - 1
    assert known.known(newest, lambda: pytest.fail("measured twice")) == newest
    assert known.known(0, lambda: "anew") == "anew"
