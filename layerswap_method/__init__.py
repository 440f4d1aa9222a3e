"""Layer swapping (arXiv 2410.01335) as a mergekit merge method. Imports nothing heavy."""

NOT_ON_WINDOWS = "layerswap does not run on Windows; use Linux, such as WSL on Windows"

__version__ = "0.1.0"

METHOD_VERSION = 5
"""Raised in the change that alters a merged tensor. It is part of what identifies a score."""


def register() -> None:
    """Make `layer_swap` and `delta_revert` known to mergekit in this process.

    Not needed after `pip install`, which does it at the start of every interpreter. It is the way
    where Python reads no `.pth` file: a folder on `PYTHONPATH`, `pip install --target`,
    `python -S`. Works before and after mergekit was imported; a second call does nothing.

    Raises `LayerSwapError` where it could not be made to work.
    """
    from layerswap_method import autoload

    autoload.install()
    if autoload.failure is not None:
        from layerswap_method.errors import LayerSwapError

        raise LayerSwapError(
            "layer_swap could not be registered with mergekit: "
            f"{type(autoload.failure).__name__}: {autoload.failure}"
        ) from autoload.failure
