"""Builds pocket testbeds: pretrains a base, has experts trained on it; nothing of merging.

`ablations.pocket_build.build.build_pocket` is the one entry point.
"""
