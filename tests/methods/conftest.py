"""Tiny models."""

from tests.standins.experts import experts, own_trio, trio

__all__ = ["experts", "own_trio", "trio"]
