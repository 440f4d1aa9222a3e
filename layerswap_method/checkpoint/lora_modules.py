"""Which modules a LoRA changes, and by how much, as peft 0.21 reads it from an adapter's config.

peft itself would cost seconds and 250 MB to import. Names are those of a loaded model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerswap_method.checkpoint.checkpoint import is_embedding, is_head

_ALL_LINEAR = "all-linear"
_FIRST_NUMBER = r".*?\.[^.]*\.(?P<layer>\d+)\."


@dataclass(frozen=True)
class LoraModules:
    """Target modules, ranks and alphas of a config, looked up by the name of a module.

    `targets` and `excluded` are ends of names, or a pattern of whole ones. `layers` restricts ends
    to layers, whose number one of `layer_patterns` finds in a name.
    """

    rank: int
    alpha: float
    is_stabilised: bool
    ranks: Sequence[tuple[re.Pattern[str], Any]]
    alphas: Sequence[tuple[re.Pattern[str], Any]]
    targets: Collection[str] | re.Pattern[str]
    excluded: Collection[str] | re.Pattern[str]
    layers: Collection[int] | None
    layer_patterns: Sequence[re.Pattern[str]]
    whole: Sequence[re.Pattern[str]]
    """Patterns of modules that are saved whole, which no LoRA changes."""

    is_all_linear: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LoraModules:
        """Return what a config says. Raises `ValueError` with the key for what peft refuses."""
        rank, alpha = config.get("r", 8), config.get("lora_alpha", 8)
        targets = config.get("target_modules")
        layers, layer_patterns = config.get("layers_to_transform"), config.get("layers_pattern")
        if isinstance(targets, str) and (layers, layer_patterns) != (None, None):
            raise ValueError("layers_to_transform goes with a list of target_modules only")
        if layer_patterns and layers is None:
            raise ValueError("layers_pattern needs layers_to_transform")
        is_all_linear = isinstance(targets, str) and targets.lower() == _ALL_LINEAR
        return cls(
            rank=_rank("r", rank),
            alpha=_number("lora_alpha", alpha),
            is_stabilised=bool(config.get("use_rslora")),
            ranks=[*_patterns(config, "rank_pattern")],
            alphas=[*_patterns(config, "alpha_pattern")],
            targets=_names("target_modules", () if is_all_linear else targets),
            excluded=_names("exclude_modules", config.get("exclude_modules") or ()),
            layers=_layers(layers),
            layer_patterns=[
                re.compile(rf"(?:^|.*?\.){_text('layers_pattern', pattern)}\.(?P<layer>\d+)\.")
                for pattern in _listed(layer_patterns)
            ]
            or [re.compile(_FIRST_NUMBER)],
            whole=[
                re.compile(rf"(^|.*\.){_text('modules_to_save', pattern)}($|\..*)")
                for pattern in _listed(config.get("modules_to_save"))
            ],
            is_all_linear=is_all_linear,
        )

    def rank_of(self, module: str) -> int:
        """Return the rank of a module. Raises `ValueError` for one that is none."""
        return _rank("rank_pattern", _first_match(self.ranks, module, self.rank))

    def scaling_of(self, module: str) -> float:
        """Return alpha/r of a module, or alpha/sqrt(r) where it is rank-stabilised."""
        alpha = _number("alpha_pattern", _first_match(self.alphas, module, self.alpha))
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.is_stabilised else rank)

    def has(self, module: str) -> bool:
        """Return whether peft would change a module: `check_target_module_exists` of its tuners."""
        if _is_named(self.excluded, module) or any(each.match(module) for each in self.whole):
            return False
        if self.is_all_linear:
            weight = f"{module}.weight"
            return not is_head(weight) and not is_embedding(weight)
        if not _is_named(self.targets, module):
            return False
        if isinstance(self.targets, re.Pattern) or module in self.targets or self.layers is None:
            return True
        matches = (pattern.match(module) for pattern in self.layer_patterns)
        match = next(filter(None, matches), None)
        return match is not None and int(match["layer"]) in self.layers


def _first_match(
    patterns: Sequence[tuple[re.Pattern[str], Any]], module: str, default: float
) -> Any:
    """Return the value of the first pattern that ends a module's name: peft's `get_pattern_key`."""
    return next((value for pattern, value in patterns if pattern.match(module)), default)


def _is_named(names: Collection[str] | re.Pattern[str], module: str) -> bool:
    if isinstance(names, re.Pattern):
        return names.fullmatch(module) is not None
    parts = module.split(".")
    return any(".".join(parts[start:]) in names for start in range(len(parts)))


def _patterns(config: Mapping[str, Any], key: str) -> Iterator[tuple[re.Pattern[str], Any]]:
    patterns = config.get(key, {})
    if not isinstance(patterns, dict):
        raise ValueError(f"{key} is {patterns!r}, no mapping of names of modules")
    for pattern, value in patterns.items():
        yield _compiled(key, rf"(.*\.)?({pattern})$"), value


def _names(key: str, names: Any) -> Collection[str] | re.Pattern[str]:
    if isinstance(names, str):
        return _compiled(key, names)
    if not isinstance(names, list | tuple):
        raise ValueError(f"{key} is {names!r}; write the names of its modules there")
    return frozenset(_text(key, name) for name in names)


def _layers(layers: Any) -> Collection[int] | None:
    if layers is None or layers == []:
        return None
    listed = [layers] if type(layers) is int else layers
    if not isinstance(listed, list) or any(type(layer) is not int for layer in listed):
        raise ValueError(f"layers_to_transform is {layers!r}, no list of layers")
    return frozenset(listed)


def _listed(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, str) and value else value or ()


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} has {value!r}, no name of a module")
    return value


def _compiled(key: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{key} has {pattern[:80]!r}, no regular expression: {error}") from error


def _rank(key: str, rank: Any) -> int:
    if type(rank) is not int or rank < 1:
        raise ValueError(f"{key} is {rank!r}, no rank")
    return rank


def _number(key: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r}, no number")
    return float(value)
