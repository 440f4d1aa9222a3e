"""What can be wrong with experts that a study's settings choose. Knows names; opens no expert."""

from __future__ import annotations

from collections.abc import Iterator

from ablations.study.documents import PLACEHOLDERS
from ablations.study.schema import BASELINE_ROLES, EXPERTS, Pools, Setting, Study
from layerswap_method.errors import nearest, nearest_of
from layerswap_method.recipe.references import named_models


def varied_expert_problems(study: Study) -> Iterator[str]:
    """Yield what is wrong with `experts.ROLE` in `vary`, and with the facts that are asked for."""
    settings = study.settings()
    yield from dict.fromkeys(problem for each in settings for problem in _value_problems(each))
    varied = {name for setting in settings for name in setting if name.startswith(EXPERTS)}
    roles = [role for role in PLACEHOLDERS if f"{EXPERTS}{role}" in varied]
    if study.recipe is not None:
        named = set(named_models(study.recipe))
        for role in roles:
            if role not in named and role != "base":
                yield f"vary names {EXPERTS}{role}, but no model of the recipe is {role}"
    pools = [study.pools(setting) for setting in settings]
    yield from _missing(study, pools)
    yield from _language_problems(study, pools)
    for role in roles:
        yield from _size_problems(study, role, pools)
    yield from _fact_problems(study, roles)


def _value_problems(setting: Setting) -> Iterator[str]:
    roles = [f"{EXPERTS}{role}" for role in PLACEHOLDERS]
    for name, value in setting.items():
        if not name.startswith(EXPERTS):
            if isinstance(value, tuple):
                yield f"vary: {name} is {list(value)}; only experts can be a list of names"
        elif name not in roles:
            yield f"vary: unknown {name!r}{nearest_of(name, roles)}"
        elif isinstance(value, tuple):
            if name == "experts.base":
                yield f"vary: {name} is {list(value)}; a cell has one base"
            elif len(set(value)) < len(value):
                yield f"vary: {name} has the same name twice: {', '.join(value)}"
        elif not isinstance(value, str):
            yield f"vary: {name} is {value!r}; write the name of an expert, or a list of names"


def _missing(study: Study, pools: list[Pools]) -> Iterator[str]:
    """Yield the roles for which some setting has no expert."""
    needed = {role for kind in study.baseline for role in BASELINE_ROLES[kind]}
    needed |= set(named_models(study.recipe or {}))
    for role in PLACEHOLDERS:
        if role not in needed:
            continue
        if not all(each.names(role) for each in pools):
            yield (
                f"{EXPERTS}{role} is missing: name an expert, or name {EXPERTS}{role} in every "
                "setting of vary"
            )


def _language_problems(study: Study, pools: list[Pools]) -> Iterator[str]:
    codes = study.experts.languages()
    for name in dict.fromkeys(name for each in pools for name in each.language_names()):
        if codes and name not in codes:
            yield (
                f"vary: experts.language names {name!r}{nearest(name, codes)}, whose language is "
                "not known; add it to experts.language below its language code"
            )


def _size_problems(study: Study, role: str, pools: list[Pools]) -> Iterator[str]:
    """Yield pools that cannot be compared pair by pair."""
    codes = study.experts.languages()
    for code in dict.fromkeys(codes.values()) if role == "language" and codes else (None,):
        sizes = {
            sum(code is None or codes.get(name) == code for name in each.names(role))
            for each in pools
        }
        if len(sizes - {0, 1}) > 1:
            listed = " and ".join(map(str, sorted(sizes - {0, 1})))
            yield (
                f"vary: {EXPERTS}{role} has pools of {listed} experts; experts at the same place "
                "are compared, so write pools of one size, or of one expert"
            )


def _fact_problems(study: Study, roles: list[str]) -> Iterator[str]:
    varied = [f"{EXPERTS}{role}" for role in roles]
    facts = study.experts.facts
    for name in study.report.facts:
        holder, _, fact = name.rpartition(".")
        if holder not in varied:
            told = f"vary names {', '.join(varied)}" if varied else "vary names no experts"
            yield f"report.facts: {name}: write experts.ROLE.FACT of a role that varies; {told}"
            continue
        pools = [study.pools(setting) for setting in study.settings()]
        for expert in dict.fromkeys(
            expert for each in pools for expert in each.names(holder.removeprefix(EXPERTS))
        ):
            known = facts.get(expert, {})
            if fact not in known:
                there = f"; it has {', '.join(known)}" if known else "; it has none"
                yield (
                    f"report.facts: {name}: expert {expert!r} has no fact {fact!r}"
                    f"{nearest(fact, known)}{there}. Write it in the experts file: "
                    f"{expert}: {{path: ..., facts: {{{fact}: NUMBER}}}}"
                )
