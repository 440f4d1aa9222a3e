"""Experts to stream: the tiny random models of the families' tests."""

from tests.families.conftest import experts

__all__ = ["experts"]
