"""The paper's benchmarks on one model, resumable; what `layerswap evaluate` runs."""
