"""What is remembered of measured changes."""

from __future__ import annotations

import pytest

from layerswap_method.layer_swap import measure


def test_what_is_measured_is_kept_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_known", {})
    for number in range(2 * measure._MOST):
        assert measure._once(number, lambda number=number: number) == number
    assert len(measure._known) == measure._MOST
    newest = 2 * measure._MOST - 1
    assert measure._once(newest, lambda: pytest.fail("measured twice")) == newest
    assert measure._once(0, lambda: "anew") == "anew"
