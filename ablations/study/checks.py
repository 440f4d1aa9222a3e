"""What can be wrong with a study beyond its form. Knows the study and names; opens no expert."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.engines.options import EngineOptions
from ablations.models.find import build_hint
from ablations.study.documents import PLACEHOLDERS, place_problem
from ablations.study.experts import ExpertsFile
from ablations.study.overrides import is_set
from ablations.study.schema import BASELINE_ROLES, EXPERTS, Study
from ablations.study.varied_experts import varied_expert_problems
from ablations.tasks.catalog import SHIPPED_TASKS, choose, list_tasks
from layerswap_method.errors import InputError, nearest
from layerswap_method.mergekit_plugin.recipe_errors import meant_method, method_problem
from layerswap_method.recipe.references import is_folder, named_models, no_such_folder


def with_experts_file(study: Study, file: ExpertsFile, settings: Collection[str] = ()) -> Study:
    """Return the study with what the experts file says of its models.

    Its tasks and task folder go before the study's; its limit and its engine options count where
    the study says none.

    Args:
        study: as read.
        file: the experts file.
        settings: keys that the command line has set; they go before both.
    """
    evaluate, options = study.evaluate, study.evaluate.options
    experts = study.experts.model_copy(update={"facts": {**study.experts.facts, **file.facts()}})
    changes: dict[str, Any] = {}
    if file.include_path is not None and not is_set(settings, "evaluate.include_path"):
        changes["include_path"] = file.include_path
    report = study.report
    if file.tasks and not is_set(settings, "evaluate.tasks"):
        if isinstance(file.tasks, dict):
            changes["tasks"] = _replaced(evaluate.tasks, file.tasks)
            tasks = {"tasks": _replaced(report.primary.tasks, file.tasks)}
            primary = report.primary.model_copy(update=tasks)
            own_tasks = _replaced(report.tasks, file.tasks)
            report = report.model_copy(update={"primary": primary, "tasks": own_tasks})
        else:
            changes["tasks"] = file.tasks
    if "limit" in file.model_fields_set and "limit" not in evaluate.model_fields_set:
        changes["limit"] = file.limit
    own = {name: getattr(options, name) for name in options.model_fields_set}
    changes["options"] = EngineOptions(**{**file.options.model_dump(exclude_unset=True), **own})
    evaluate = evaluate.model_copy(update=changes)
    return study.model_copy(update={"evaluate": evaluate, "experts": experts, "report": report})


def _replaced(tasks: Sequence[str], by: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(by.get(task, task) for task in tasks))


def other_names_problems(study: Study, file: ExpertsFile) -> Iterator[str]:
    """Yield why an experts file that was asked for would change no expert of the study."""
    names = expert_names(study)
    if not file.experts.keys() & set(names):
        some = next((name for name in file.experts if name != "base"), "base")
        yield (
            "the experts file names none of the study's experts: it has "
            f"{', '.join(file.experts)}, and the study names {', '.join(names)}. Write the names "
            f"of the experts file in the study (experts: {{task: {some}}}), or leave --experts out"
        )


def with_benchmarks(study: Study) -> Study:
    """Return the study with the tasks of its benchmarks among `evaluate.languages`.

    Raises:
        InputError: for an unknown benchmark, a language that has none of its tasks, or experts
            without a language.
    """
    evaluate = study.evaluate
    if not evaluate.benchmarks:
        return study
    codes = study.experts.language
    if not isinstance(codes, dict):
        raise InputError(
            "evaluate.benchmarks needs experts.language by language: {sw: [NAME, ...]}"
        )
    tasks = list_tasks()
    languages = {
        code: tuple(
            dict.fromkeys(
                (
                    *evaluate.languages.get(code, ()),
                    *(task.name for task in choose(tasks, [code], evaluate.benchmarks)),
                )
            )
        )
        for code in codes
    }
    changes = {"languages": {**evaluate.languages, **languages}}
    return study.model_copy(update={"evaluate": evaluate.model_copy(update=changes)})


def task_folder(study: Study) -> Path:
    """Return the folder of the task files: the shipped ones where neither file names another."""
    path = study.evaluate.include_path
    return SHIPPED_TASKS if path is None else Path(path).absolute()


def expert_names(study: Study) -> tuple[str, ...]:
    """Return every expert that the study names, the base of its first setting first, each once."""
    models = named_models(study.recipe or {})
    others = [name for name in models if name not in PLACEHOLDERS]
    return tuple(dict.fromkeys((*pooled_names(study), *others)))


def pooled_names(study: Study) -> tuple[str, ...]:
    """Return the experts of all settings, bases first, each once."""
    pools = [study.pools(setting) for setting in study.settings() or ({},)]  # of an empty grid
    names = (name for role in PLACEHOLDERS for each in pools for name in each.names(role))
    return tuple(dict.fromkeys(names))


def study_problems(
    study: Study, known: Collection[str], places: tuple[Path | None, ...] = ()
) -> Iterator[str]:
    """Yield what is wrong with the study itself.

    Args:
        study: as read, with what its experts file sets.
        known: keys of mergekit's recipes.
        places: folders of the files that were read, in which its paths were looked for.
    """
    if study.recipe is None and not study.baseline:
        yield "the study has neither a recipe nor a baseline: nothing to evaluate"
    yield from _twice("baseline", study.baseline)
    yield from _recipe_problems(study, known)
    yield from _pool_problems(study)
    yield from varied_expert_problems(study)
    yield from _primary_problems(study)
    evaluate = study.evaluate
    if not evaluate.tasks and not evaluate.languages:
        yield "evaluate names no tasks; write tasks: [NAME, ...] or benchmarks: [mgsm, ...]"
    folder = task_folder(study)
    place = next((each for each in places if each is not None), None)
    if not is_folder(folder):
        given = evaluate.include_path or folder
        above = {folder.parent, (Path(place or "") / given).parent}
        siblings = [each.name for top in above if is_folder(top) for each in top.iterdir()]
        near = nearest(folder.name, siblings)
        missing = no_such_folder(given, near, place)
        hint = "" if near else build_hint(str(evaluate.include_path))
        yield f"evaluate.include_path: {missing}{hint}"
    if evaluate.data_dir is not None and not is_folder(evaluate.data_dir):
        yield f"evaluate.data_dir: {no_such_folder(evaluate.data_dir, folder=place)}"


def _recipe_problems(study: Study, known: Collection[str]) -> Iterator[str]:
    if study.vary is not None and not study.vary:
        yield "vary is empty: write at least one parameter with one value, or leave vary out"
    settings = study.settings()
    if isinstance(study.vary, dict):
        for name, values in study.vary.items():
            if not values:
                yield f"vary.{name} has no values: the grid is empty"
            yield from _twice(f"vary.{name}", [f"{value!r}" for value in values])
    else:
        yield from _twice("vary", [str(dict(sorted(setting.items()))) for setting in settings])
    if study.recipe is None:
        if study.vary:
            yield "vary needs a recipe to vary"
        return
    method = study.recipe.get("merge_method")
    if not isinstance(method, str):
        yield "recipe has no merge_method; write merge_method: layer_swap"
        problem = None
    else:
        problem = method_problem(method)
        if problem is not None:
            yield f"recipe: {problem}"
            method = meant_method(method)
    for key in study.recipe:
        if key not in known:
            yield f"recipe has the unknown key {key!r}{nearest(key, known)}"
    varied = study.vary if isinstance(study.vary, dict) else [n for each in settings for n in each]
    for name in dict.fromkeys(varied):
        if name.startswith(EXPERTS):  # checked by themselves
            continue
        if problem is not None and not method:  # nobody knows the parameters of that method
            continue
        misplaced = place_problem({**study.recipe, "merge_method": method}, name, known)
        if misplaced is not None:
            yield f"vary: {misplaced}"
    named = set(named_models(study.recipe))
    for role in ("task", "language"):
        pool = study.experts.names(role)
        if role not in named and len(pool) > 1:
            yield f"experts.{role} has {len(pool)} names, but no model of the recipe is {role}"


def _pool_problems(study: Study) -> Iterator[str]:
    pools = study.experts
    yield from _twice("experts.task", pools.task)
    yield from _twice("experts.language", pools.language_names())
    asked = study.evaluate.languages
    if not asked:
        return
    if not isinstance(pools.language, dict):
        yield (
            "evaluate.languages needs experts.language by language: "
            f"{{{next(iter(asked))}: [NAME, ...]}} in place of a list"
        )
        return
    for code in asked:
        if code not in pools.language:
            near = nearest(code, pools.language)
            yield f"evaluate.languages has {code!r}, which experts.language does not have{near}"
    for code in pools.language:
        if code not in asked and not study.evaluate.tasks:
            yield f"experts.language has {code!r}, for which evaluate names no task"


def _primary_problems(study: Study) -> Iterator[str]:
    """Yield what the primary comparisons name and the study does not have."""
    primary = study.report.primary
    experts = {"task_expert", "language_expert"} & set(study.baseline)
    for rival in primary.against:
        if rival in BASELINE_ROLES and rival not in study.baseline:
            yield f"report.primary.against names {rival}; add it to baseline"
        if rival == "better_expert" and not experts:
            yield (
                "report.primary.against names better_expert; add task_expert or language_expert "
                "to baseline"
            )
        if rival == "first_setting" and len(study.settings()) < 2:
            yield "report.primary.against names first_setting; vary has no second setting"
    settings = study.settings()
    if primary.setting is not None and primary.setting not in settings:
        listed = "; ".join(str(dict(each)) for each in settings[:4])
        more = f"; and {len(settings) - 4} more" if len(settings) > 4 else ""
        yield f"report.primary.setting is not a setting of vary, which has {listed}{more}"
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


def _twice(place: str, names: Any) -> Iterator[str]:
    seen: list[str] = list(names)
    for name in dict.fromkeys(seen):
        if seen.count(name) > 1:
            yield f"{place} has {name} {seen.count(name)} times"
