"""Tiny random bases, as in the families' tests."""

from tests.families.conftest import experts

__all__ = ["experts"]
