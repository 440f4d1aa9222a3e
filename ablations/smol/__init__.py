"""A real model on a laptop: SmolLM2-135M, data for experts of it, and tasks for them.

`ablations.smol.build.build_smol` is the one entry point.
"""
