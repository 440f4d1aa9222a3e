"""Everything that meets mergekit: kernels, registration, checks, and what `run_merge` does."""
