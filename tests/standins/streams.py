"""The merge of a recipe under the name that the engines' tests use."""

from tests.standins.merging import merge_of as stream_of

__all__ = ["stream_of"]
