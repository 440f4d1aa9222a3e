"""The random experts of the study tests, for whole runs on real engines."""

from tests.study.conftest import experts, models

__all__ = ["experts", "models"]
