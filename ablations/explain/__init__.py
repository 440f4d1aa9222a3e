"""The recipe of a merge, read back from its weights and those of its parents."""
