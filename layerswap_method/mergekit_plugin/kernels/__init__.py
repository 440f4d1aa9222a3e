"""The merge methods in mergekit's own style: one output tensor from the tensors of the models."""

import mergekit.merge_methods  # noqa: F401 - first: it imports these kernels while they are empty
