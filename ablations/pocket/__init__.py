"""The pocket testbed: a toy world with its languages, exercises and tasks, and models of it.

`ablations.pocket.build.build_pocket` makes a testbed.
"""
