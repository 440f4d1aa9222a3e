"""A real model on a laptop: SmolLM2-135M, experts trained on it, and tasks for them.

`ablations.smol.build.build_smol` is the one entry point.
"""
