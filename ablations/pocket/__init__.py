"""The pocket world: languages, exercises, tasks and tokens. Knows no model and no training.

`ablations.pocket_build` makes models of it.
"""
