"""Which tensors must be loaded together. Knows names only.

An engine that fuses q, k and v into one module rebuilds that module on fresh memory when it loads
a part of it: q alone leaves random numbers where k and v were, and nothing warns. The same holds
for a bias beside its weight.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

_EXPERT = re.compile(r"^(.*\.experts)\.\d+\..+$")


def module_of(name: str, parts: Mapping[str, str]) -> str:
    """Return the engine's module that the tensor `name` becomes a part of.

    Args:
        name: a tensor's name in a checkpoint.
        parts: last component of a module's name -> that of the module it is fused into, such as
            ``q_proj -> qkv_proj``.

    >>> module_of("model.layers.0.self_attn.q_proj.bias", {"q_proj": "qkv_proj"})
    'model.layers.0.self_attn.qkv_proj'
    """
    if expert := _EXPERT.match(name):
        return expert[1]
    module, _, _ = name.rpartition(".")
    parent, _, last = module.rpartition(".")
    fused = parts.get(last, last)
    return f"{parent}.{fused}" if parent else fused


def with_siblings(
    changed: Collection[str], names: Sequence[str], parts: Mapping[str, str]
) -> tuple[str, ...]:
    """Return `changed` and every tensor that shares a module with one, module by module.

    Args:
        changed: names of tensors that differ.
        names: every tensor of the model.
        parts: see `module_of`.

    Raises:
        ValueError: if a changed tensor is not in `names`.
    """
    strange = sorted(set(changed) - set(names))
    if strange:
        raise ValueError(f"the model has no tensor {strange[0]!r}")
    modules: dict[str, list[str]] = {}
    for name in sorted(names):
        modules.setdefault(module_of(name, parts), []).append(name)
    wanted = {module_of(name, parts) for name in changed}
    return tuple(
        name for module, members in sorted(modules.items()) if module in wanted for name in members
    )
