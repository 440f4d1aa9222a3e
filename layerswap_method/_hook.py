"""The import hook: knows when mergekit's modules have run; not what is then done to them.

`layerswap.pth` puts one small object on `sys.meta_path` at every start of an interpreter. It
imports nothing and holds its code as text, because compiling that text costs more than all the
rest; at the first import of `mergekit`, or of a module of ours, it runs the text, which loads this
file and makes the object a `LayerSwapFinder`. Nothing here raises into an import: what goes wrong
becomes one logged warning, and mergekit works on without `layer_swap`.

The callbacks wait until no watched module is half imported. mergekit imports its registry
while its own package is unfinished, and our modules import mergekit; run at once, a callback
would meet one of them half made (`import
layerswap_method.mergekit_plugin.layer_swap_kernel` in a bare interpreter is enough).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

CALLBACKS = {
    "mergekit.config": "on_config",
    "mergekit.merge_methods.registry": "on_registry",
    "mergekit.merge": "on_merge",
}
"""What `mergekit_plugin.register` is to be told: mergekit module -> its callback."""

_WATCHED = {*CALLBACKS, "mergekit.merge_methods"}
_OWN = "layerswap_method."

failure: Exception | None = None
"""Why `layer_swap` was given up in this process, if it was."""

_running: list[str] = []
_waiting: list[tuple[str, ModuleType]] = []
_handled: dict[str, ModuleType] = {}
_draining = False


class LayerSwapFinder:
    """Lets the finders after it find the watched modules, and has their execution reported."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec another finder has for a watched module, else None."""
        if (name not in _WATCHED and not name.startswith(_OWN)) or self not in sys.meta_path:
            return None
        # Only those behind this one: two such hooks that ask each other would never end.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                try:
                    _watch(spec.loader)
                except Exception as error:
                    _give_up(error)
                return spec
        return None


def install() -> None:
    """Watch mergekit's imports from now on, and report what it has imported already.

    Does nothing that was done before. Does not raise; see `failure`.
    """
    for finder in sys.meta_path:
        if type(finder).__name__ == "LayerSwapStart":  # what layerswap.pth put there
            finder.__class__ = LayerSwapFinder
    if not any(type(finder) is LayerSwapFinder for finder in sys.meta_path):
        sys.meta_path.insert(0, LayerSwapFinder())
    for name in CALLBACKS:
        module = sys.modules.get(name)
        if module is not None and name not in _running and _handled.get(name) is not module:
            _waiting.append((name, module))
    _drain()


def _watch(loader: object) -> None:
    """Have `loader` report its next execution of a module; it stays of its own type.

    Set on the instance and taken off again by the execution, so that afterwards the loader
    compares, copies and pickles as if nothing had been.
    """
    original = getattr(loader, "exec_module", None)
    if original is None or getattr(original, "by_layerswap", False):
        return

    def exec_module(module: ModuleType) -> None:
        if vars(loader).get("exec_module") is exec_module:
            del loader.exec_module  # type: ignore[attr-defined]
        name = module.__name__
        _running.append(name)
        try:
            original(module)
            if name in CALLBACKS:
                _waiting.append((name, module))
        finally:
            _running.remove(name)
            _drain()

    exec_module.by_layerswap = True  # type: ignore[attr-defined]
    loader.exec_module = exec_module  # type: ignore[attr-defined]


def _drain() -> None:
    """Run the callbacks that wait, in the order of the imports, once nothing is half made."""
    global _draining
    if _draining or not _waiting:
        return
    _draining = True
    try:
        while _waiting and not _running:
            name, module = _waiting.pop(0)
            if failure is not None:
                continue
            from layerswap_method.mergekit_plugin import register as registration

            getattr(registration, CALLBACKS[name])(module)
            _handled[name] = module
    except Exception as error:
        _give_up(error)
    finally:
        _draining = False


def _give_up(error: Exception) -> None:
    """Say once what failed and what to do, and take back what was already registered."""
    global failure
    if failure is not None:
        return
    failure = error
    _waiting.clear()
    logging.getLogger("layerswap").warning(
        "layer_swap is not available: layerswap could not join this mergekit (%s: %s). "
        "mergekit works on without it. Reinstall it with "
        "`pip install --force-reinstall --no-deps layerswap`, or remove it with "
        "`pip uninstall layerswap`.",
        type(error).__name__,
        error,
    )
    try:
        from layerswap_method.mergekit_plugin import register as registration

        registration.withdraw()
    except Exception:  # the registration itself is what is damaged: it registered nothing
        pass
