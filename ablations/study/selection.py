"""``--only EXPR``: which cells of a study to run. Knows the expression; not what a cell does.

EXPR is conditions joined by commas, all of which must hold: ``bottom_layers=0|3,kind=recipe``.
A condition is NAME=VALUES, NAME!=VALUES (alternatives joined by ``|``), or NAME<N, <=, >, >=.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import ge, gt, le, lt

from layerswap_method.errors import InputError, nearest

Facts = Mapping[str, str | int | float | bool]
"""What can be asked of a cell: varied parameters, kind, experts by role, label, key."""

_CONDITION = re.compile(r"\s*([\w.]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*$")
_SHOWN = 12
"""Values at most that an error lists."""

_ORDER: dict[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


def parse_selection(text: str, known: Iterable[str]) -> Callable[[Facts], bool]:
    """Return the test that `text` stands for. A cell without the name fails the condition.

    Args:
        text: the expression.
        known: names that some cell has.

    Raises:
        InputError: for an expression that does not parse or an unknown name.
    """
    names = sorted(set(known))
    conditions = [_condition(part, names) for part in text.split(",") if part.strip()]
    if not conditions:
        raise InputError("--only is empty; write for example --only bottom_layers=0,kind=recipe")
    return lambda facts: all(condition(facts) for condition in conditions)


def check_selection(text: str, facts: Collection[Facts]) -> None:
    """Check an expression before keys are known, which takes reading the experts.

    Args:
        text: the expression.
        facts: of every cell; a `key` may be empty.

    Raises:
        InputError: as `parse_selection`, or where no cell is like that, whatever its key.
    """
    holds = parse_selection(text, (name for each in facts for name in each))
    if not any(map(holds, facts)) and not re.search(r"(^|,)\s*key\b", text):
        raise nothing_selected(text, facts)


def nothing_selected(text: str, facts: Collection[Facts]) -> InputError:
    """Return the error of an expression that holds for no cell: what could be asked instead.

    Args:
        text: an expression that parses.
        facts: of every cell.
    """
    names = [name for each in facts for name in each]
    told = f"--only {text}: no cell of the study is like that"
    for part in filter(str.strip, text.split(",")):
        if not any(map(_condition(part, names), facts)):
            name, sign, value = _split(part)
            there = list(dict.fromkeys(str(each[name]) for each in facts if name in each))
            asked = value.split("|")[0]
            is_word = sign == "=" and re.search(r"[^\W\d_]", asked) is not None
            hint = nearest(asked, there) if is_word else ""
            return InputError(f"{told}{hint or ';'} {name} is {_one_of(there)}")
    return InputError(f"{told}: each condition holds for some cell, all of them for none")


def _condition(text: str, known: list[str]) -> Callable[[Facts], bool]:
    name, sign, value = _split(text)
    if name not in known:
        raise InputError(
            f"--only: no cell has {name!r}{nearest(name, known)}; cells have {', '.join(known)}"
        )
    if sign in _ORDER:
        try:
            bound = float(value)
        except ValueError:
            raise InputError(f"--only: {text.strip()!r}: {value!r} is no number") from None
        return lambda facts: _holds(facts.get(name), _ORDER[sign], bound)
    wanted = {part.strip().lower() for part in value.split("|")}
    if sign == "=":
        return lambda facts: name in facts and str(facts[name]).lower() in wanted
    return lambda facts: name in facts and str(facts[name]).lower() not in wanted


def _split(text: str) -> tuple[str, str, str]:
    """Return name, sign and value of a condition."""
    match = _CONDITION.match(text)
    if match is None:
        raise InputError(f"--only: {text.strip()!r} is no condition; write NAME=VALUE or NAME<N")
    name, sign, value = match.groups()
    return name, sign, value


def _one_of(values: list[str]) -> str:
    more = f" or one of {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return f"{', '.join(values[:_SHOWN])}{more}"


def _holds(
    value: str | int | float | None, compare: Callable[[float, float], bool], bound: float
) -> bool:
    return isinstance(value, (int, float)) and compare(float(value), bound)
