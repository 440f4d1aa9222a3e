"""What can be wrong with a task before it runs.

LayerSwapError
├── DataAway        a task's data is on a hub that cannot be reached
└── InputError
    └── TaskFault   a task's file, or data that it names, is wrong
"""

from __future__ import annotations

from layerswap_method.errors import InputError, LayerSwapError


class DataAway(LayerSwapError):
    """The data of a task is not on this machine, and no hub gave it."""


class TaskFault(InputError):
    """No model can run this task until its file, or the place of its data, is mended."""
