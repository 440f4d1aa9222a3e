"""What can be wrong with a study beyond its form and the form of its recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ablations.models.find import build_hint
from ablations.study.cells import task_folder
from ablations.study.schema import BASELINE_ROLES, EXPERTS, ROLES, Pools, Study
from ablations.tasks.catalog import choose, list_tasks
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.references import is_folder, named_models, no_such_folder, resolve_from


def with_benchmarks(study: Study) -> Study:
    """Return the study with the tasks of its benchmarks among `evaluate.languages`.

    Raises:
        InputError: for an unknown benchmark, a language that has none of its tasks, or experts
            without a language.
    """
    evaluate, codes = study.evaluate, study.experts.language
    if not evaluate.benchmarks:
        return study
    if not isinstance(codes, dict):
        raise InputError(
            "evaluate.benchmarks needs experts.language by language: {sw: [NAME, ...]}"
        )
    languages = dict(evaluate.languages)
    for code in codes:
        tasks = (task.name for task in choose(list_tasks(), [code], evaluate.benchmarks))
        languages[code] = tuple(dict.fromkeys((*languages.get(code, ()), *tasks)))
    evaluate = evaluate.model_copy(update={"languages": languages})
    return study.model_copy(update={"evaluate": evaluate})


def expert_names(study: Study) -> tuple[str, ...]:
    """Return every expert that the study names, the base of its first setting first, each once."""
    pools = [study.pools(setting) for setting in study.settings()]
    names = (name for role in ROLES for each in pools for name in each.names(role))
    models = (name for name in named_models(study.recipe or {}) if name not in ROLES)
    return tuple(dict.fromkeys((*names, *models)))


def study_problems(study: Study, places: tuple[Path | None, ...] = ()) -> Iterator[str]:
    """Yield what is wrong with the study itself.

    Args:
        study: as read, with what its experts file sets.
        places: folders of the files that were read, in which its paths were looked for.
    """
    if study.recipe is None and not study.baseline:
        yield "the study has neither a recipe nor a baseline: nothing to evaluate"
    if study.recipe is None and study.vary:
        yield "vary needs a recipe to vary"
    evaluate, codes = study.evaluate, study.experts.language
    if not evaluate.tasks and not evaluate.languages:
        yield "evaluate names no tasks; write tasks: [NAME, ...] or benchmarks: [mgsm, ...]"
    if evaluate.languages and not isinstance(codes, dict):
        first = next(iter(evaluate.languages))
        yield (
            f"evaluate.languages needs experts.language by language: {{{first}: [NAME, ...]}} in "
            "place of a list"
        )
    elif isinstance(codes, dict) and evaluate.languages:
        for code in [code for code in evaluate.languages if code not in codes]:
            near = nearest(code, codes)
            yield f"evaluate.languages has {code!r}, which experts.language does not have{near}"
        for code in [code for code in codes if code not in evaluate.languages]:
            if not evaluate.tasks:
                yield f"experts.language has {code!r}, for which evaluate names no task"
    yield from _pool_problems(study)
    yield from _primary_problems(study)
    place = next((each for each in places if each is not None), None)
    folder = task_folder(evaluate)
    if not is_folder(folder):
        given = evaluate.include_path or str(folder)
        above = resolve_from(Path(given).parent, place)
        siblings = [each.name for each in above.iterdir()] if is_folder(above) else []
        near = nearest(folder.name, siblings)
        hint = "" if near else build_hint(given)
        yield f"evaluate.include_path: {no_such_folder(given, near, place)}{hint}"
    if evaluate.data_dir is not None and not is_folder(evaluate.data_dir):
        yield f"evaluate.data_dir: {no_such_folder(evaluate.data_dir, folder=place)}"


def _pool_problems(study: Study) -> Iterator[str]:
    """Yield what is wrong with experts that the settings choose, and with their facts."""
    settings = study.settings()
    pools = [study.pools(setting) for setting in settings]
    varied = dict.fromkeys(name for setting in settings for name in setting)
    chosen = [name for name in varied if name.startswith(EXPERTS)]
    for name in chosen:
        role = name.removeprefix(EXPERTS)
        if study.recipe is not None and role not in {"base", *named_models(study.recipe)}:
            yield f"vary names {name}, but no model of the recipe is {role}"
        if twice := next((each for each in pools if _has_twice(each, role)), None):
            yield f"{name} has the same name twice: {', '.join(twice.names(role))}"
        sizes = sorted({len(each.names(role)) for each in pools} - {0, 1})
        if len(sizes) > 1 and not (role == "language" and study.experts.languages()):
            yield (
                f"vary: {name} has pools of {' and '.join(map(str, sizes))} experts; experts at "
                "the same place are compared, so write pools of one size, or of one expert"
            )
    for fact in study.report.facts:
        holder, _, key = fact.rpartition(".")
        if holder not in chosen:
            varying = ", ".join(chosen) or "no experts"
            yield (
                f"report.facts: {fact}: write experts.ROLE.FACT of a role that varies; vary names "
                f"{varying}"
            )
            continue
        role = holder.removeprefix(EXPERTS)
        for expert in dict.fromkeys(name for each in pools for name in each.names(role)):
            known = study.experts.facts.get(expert, {})
            if key not in known:
                has = f"; it has {', '.join(known)}" if known else ""
                yield (
                    f"report.facts: {fact}: expert {expert!r} has no fact {key!r}"
                    f"{nearest(key, known)}{has}. Write it in the experts file: "
                    f"{expert}: {{path: ..., facts: {{{key}: NUMBER}}}}"
                )


def _has_twice(pools: Pools, role: str) -> bool:
    names = pools.names(role)
    return len(set(names)) < len(names)


def _primary_problems(study: Study) -> Iterator[str]:
    """Yield what the primary comparisons name and the study does not have."""
    primary, settings = study.report.primary, study.settings()
    for rival in primary.against:
        if rival in BASELINE_ROLES and rival not in study.baseline:
            yield f"report.primary.against names {rival}; add it to baseline"
    if "better_expert" in primary.against and not (
        {"task_expert", "language_expert"} & set(study.baseline)
    ):
        yield (
            "report.primary.against names better_expert; add task_expert or language_expert to "
            "baseline"
        )
    if "first_setting" in primary.against and len(settings) < 2:
        yield "report.primary.against names first_setting; vary has no second setting"
    if primary.setting is not None and primary.setting not in settings:
        listed = "; ".join(str(dict(each)) for each in settings[:4])
        yield f"report.primary.setting is not a setting of vary, which begins with {listed}"
    varied = dict.fromkeys(name for setting in settings for name in setting)
    for name in primary.parameters:
        if name not in varied:
            near = nearest(name, varied)
            yield f"report.primary.parameters names {name!r}, which vary does not have{near}"
    if primary.parameters and "first_setting" not in primary.against:
        yield "report.primary.parameters is about first_setting; add it to report.primary.against"
    for pair in primary.contrasts:
        if not all(1 <= number <= len(settings) for number in pair) or pair[0] == pair[1]:
            yield (
                f"report.primary.contrasts has {list(pair)}; write the numbers of two settings of "
                f"vary, from 1 to {len(settings)}"
            )
