"""Tiny models."""

from tests.standins.experts import experts

__all__ = ["experts"]
