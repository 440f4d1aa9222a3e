"""The pocket testbed: knows how to make tiny experts on the spot; knows nothing of merging.

`ablations.pocket.build.build_pocket` is the one entry point.
"""
