"""The baselines that a study's merges are compared with. Knows the study; reads no score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ablations.report.design import Model, describe_value, families, setting_key
from ablations.study.schema import BASELINE_ROLES, BaselineKind, Pools, Study

_MOST_BASELINES = 16
"""That are shown one by one; of more, those of a kind are averaged."""


def baselines(study: Study) -> tuple[Model, ...]:
    """Return the models that the recipe is compared with: of each kind one for the same experts.

    Without a recipe, the experts are what is compared: one model for each name, or for those that
    differ by a number at their end.
    """
    if study.recipe is None:
        (setting, *_) = study.settings()
        return tuple(m for kind in study.baseline for m in _alone(kind, study.pools(setting)))
    found = dict.fromkeys(
        baseline_of(kind, study.pools(setting))
        for kind in study.baseline
        for setting in study.settings()
    )
    return tuple(
        model
        for like in _by_kind(found).values()
        for model in (like if len(like) == 1 else map(partial(_with_experts, like), like))
    )


def baseline_of(kind: BaselineKind, experts: Pools | Model) -> Model:
    """Return a baseline of the same experts as a setting or model."""
    roles, label = BASELINE_ROLES[kind], kind_text(kind)
    names = experts.language if isinstance(experts, Model) else experts.language_names()
    return Model(
        *(kind, setting_key({}), label, label),
        experts.task if "task" in roles else (),
        names if "language" in roles else (),
        experts.base if "base" in roles else "",
    )


def reference_kind(study: Study) -> BaselineKind | None:
    """Return the baseline that figures measure from: the soup, or what is nearest to it.

    Without a recipe it is the base: the experts are what is compared.
    """
    if study.recipe is None:
        return "base" if "base" in study.baseline else None
    order: tuple[BaselineKind, ...] = ("soup", "task_expert", "language_expert", "base")
    return next((kind for kind in order if kind in study.baseline), None)


def against_base(study: Study) -> Iterator[tuple[Model, Model]]:
    """Yield every model of a study without a recipe, with the base; nothing of other studies."""
    models = baselines(study) if study.recipe is None else ()
    for base in models:
        if base.kind == "base":
            yield from ((each, base) for each in models if each != base)


def baseline_rows(study: Study) -> dict[str, tuple[Model, ...]]:
    """Return what stands in one row: label -> the baselines of a kind, or one without a recipe."""
    models = baselines(study)
    if study.recipe is None:
        return {model.label: (model,) for model in models}
    return {name: tuple(like) for name, like in _by_kind(models).items()}


def shown_baselines(study: Study) -> dict[str, tuple[Model, ...]]:
    """Return the rows of the first screen: each baseline by itself, unless there are many."""
    models = baselines(study)
    if len(models) > _MOST_BASELINES:
        return baseline_rows(study)
    return {model.label: (model,) for model in models}


def of_like_experts(model: Model, others: Sequence[Model]) -> tuple[Model, ...]:
    """Return those of `others` that come from the same experts; all where none does."""
    like = [
        each
        for each in others
        if all(
            getattr(each, role) == getattr(model, role)
            for role in model.roles
            if role in each.roles
        )
    ]
    return tuple(like or others)


def _by_kind(models: Iterable[Model]) -> dict[str, list[Model]]:
    """Return the label of a kind of baseline -> its models, in their order."""
    found: dict[str, list[Model]] = {}
    for model in models:
        found.setdefault(kind_text(model.kind), []).append(model)
    return found


def kind_text(kind: str) -> str:
    """Return a kind of baseline, or another rival of the swap, in words."""
    return "TIES" if kind == "ties" else kind.replace("_", " ")


def _alone(kind: BaselineKind, experts: Pools) -> Iterator[Model]:
    """Yield a baseline for the experts of each name, called by them where there are several."""
    whole = baseline_of(kind, experts)
    roles = [role for role in ("task", "language") if getattr(whole, role)]
    found = families(getattr(whole, roles[0])) if len(roles) == 1 else []
    if len(found) < 2:
        yield whole
        return
    for names in found:
        label = describe_value(names)
        model = replace(whole, label=label, short=label)
        yield replace(model, task=names) if roles == ["task"] else replace(model, language=names)


def _with_experts(like: Sequence[Model], model: Model) -> Model:
    """Return a baseline whose label names the experts in which it differs from its like."""
    telling = [role for role in model.roles if len({getattr(each, role) for each in like}) > 1]
    names = "+".join(describe_value(getattr(model, role)) for role in telling)
    return replace(model, label=f"{model.label} {names}", short=f"{model.short} {names}")
