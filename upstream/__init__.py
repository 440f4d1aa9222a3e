"""Proposals to mergekit itself: the method in one file, with its guide, example and tests."""
