"""What can go wrong with a live engine. Knows no engine.

LayerSwapError
└── SwapFailed      the weights did not get into the engine; a checkpoint on disk may do
"""

from __future__ import annotations

from layerswap_method.errors import LayerSwapError


class SwapFailed(LayerSwapError):
    """A model could not be put into a live engine. Its scores were not computed."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        """Say why.

        Args:
            message: what failed and what to do.
            lasting: whether no other model of this architecture can be put in either.
        """
        super().__init__(message)
        self.lasting = lasting
