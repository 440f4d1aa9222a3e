"""A kernel that does what the planner decided, where it did. Knows mergekit's interface only."""

from __future__ import annotations

from typing import Any

import torch
from mergekit.merge_methods.base import FunctionalGroupMergeMethod, TensorGroup

PLANNED = "planned"
"""Where a tensor's task carries what the planner decided: ``group -> tensor``. No recipe and no
caller can set it, for it is none of the method's parameters."""


class PlannedMethod(FunctionalGroupMergeMethod):  # type: ignore[misc]
    """A merge method of ours: a planned tensor as planned, any other by the kernel alone."""

    def merge_group(self, group: TensorGroup, /, **parameters: Any) -> torch.Tensor:
        """Return one output tensor; see the kernel."""
        planned = parameters.pop(PLANNED, None)
        result: torch.Tensor = (
            self.implementation(group, **parameters) if planned is None else planned(group)
        )
        return result
