"""`layerswap merge`: a recipe merged without mergekit's executor, from files to files."""
