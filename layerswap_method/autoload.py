"""The import hook: has mergekit's modules completed right after they have run.

`layerswap.pth` puts one small object on `sys.meta_path` at every start of an interpreter, which
imports nothing; at the first import of `mergekit` it loads this file and becomes a
`LayerSwapFinder`. Nothing here raises into an import: what goes wrong becomes one logged warning,
and mergekit works on without `layer_swap`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from layerswap_method import NOT_ON_WINDOWS

_CALLBACKS = {
    "mergekit.config": "on_config",
    "mergekit.merge_methods.registry": "on_registry",
    "mergekit.merge": "on_merge",
}
"""Module of mergekit -> the function of `mergekit_plugin.registration` that completes it."""

failure: Exception | None = None
"""Why `layer_swap` was given up in this process, if it was."""


class LayerSwapFinder:
    """Lets the finders after it find the watched modules, and completes them after they ran."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec another finder has for a watched module, else None."""
        if name not in _CALLBACKS or self not in sys.meta_path:
            return None
        # Finders before this one are not asked: two such hooks that ask each other would never end.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                _watch(spec.loader)
                return spec
        return None


def install() -> None:
    """Watch mergekit's imports from now on, and complete what has been imported already.

    A second call does nothing. Does not raise; see `failure`.
    """
    for finder in sys.meta_path:
        if type(finder).__name__ == "LayerSwapStart":  # what layerswap.pth put there
            finder.__class__ = LayerSwapFinder
    if not any(type(finder) is LayerSwapFinder for finder in sys.meta_path):
        sys.meta_path.insert(0, LayerSwapFinder())
    for name in _CALLBACKS:
        if name in sys.modules:
            _complete(sys.modules[name])


def _watch(loader: Any) -> None:
    """Have a module completed after `loader`, which is then as it was, has executed it."""
    original = getattr(loader, "exec_module", None)
    if original is None or failure is not None:
        return

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        original(module)
        _complete(module)

    loader.exec_module = exec_module


def _complete(module: ModuleType) -> None:
    if failure is not None:
        return
    try:
        from layerswap_method.mergekit_plugin import registration

        getattr(registration, _CALLBACKS[module.__name__])(module)
    except Exception as error:
        _give_up(error)


def _give_up(error: Exception) -> None:
    """Log once what failed and what to do, and take back what was already registered."""
    global failure
    if failure is not None:
        return
    failure = error
    remedy = (
        "mergekit works on without it. Reinstall it with "
        "`pip install --force-reinstall --no-deps layerswap`, or remove it with "
        "`pip uninstall layerswap`."
    )
    logging.getLogger("layerswap").warning(
        "layer_swap is not available: layerswap could not register with this mergekit (%s: %s). %s",
        type(error).__name__,
        error,
        f"{NOT_ON_WINDOWS}." if sys.platform == "win32" else remedy,
    )
    with suppress(Exception):  # where the registration is what is damaged, it registered nothing
        from layerswap_method.mergekit_plugin import registration

        registration.withdraw()
