"""Faults of a study beyond its form, and notes for a reader of its scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from ablations.engines.chat import has_template
from ablations.models.find import Expert, build_hint
from ablations.study.cells import Cell, ExpandedCell, MadeCell
from ablations.study.made_by import made_by
from ablations.study.schema import BASELINE_ROLES, EXPERTS, ROLES, Study
from ablations.tasks.catalog import choose, list_tasks
from ablations.tasks.names import language_name
from ablations.tasks.suites import PLACEHOLDER, in_languages, suite_task
from ablations.train.folder import MEASURED
from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.tokens import has_tokenizer
from layerswap_method.errors import InputError, nearest, nearest_of
from layerswap_method.methods.check import donor_of
from layerswap_method.recipe.references import is_folder, named_models, no_such_folder


def with_tasks_by_language(study: Study) -> tuple[Study, list[str]]:
    """Return the study with the tasks that a language stands for, and what is wrong with them.

    Those of its benchmarks, and those whose names have ``{lang}``, are among `evaluate.languages`
    then, as far as there are any.
    """
    evaluate, codes = study.evaluate, study.experts.language
    primary = study.report.primary
    templates = tuple(name for name in evaluate.tasks if PLACEHOLDER in name)
    named = (*templates, *primary.tasks, *chain(*evaluate.languages.values()))
    if not evaluate.benchmarks and not any(PLACEHOLDER in name for name in named):
        return study, []
    problems: list[str] = []
    if not isinstance(codes, dict):
        cause = "evaluate.benchmarks" if evaluate.benchmarks else f"{PLACEHOLDER} in a task's name"
        problems.append(f"{cause} needs experts.language by language: {{sw: [NAME, ...]}}")
        codes = {}
    languages: dict[str, tuple[str, ...]] = {}
    for code in dict.fromkeys((*evaluate.languages, *codes)):
        tasks = list(evaluate.languages.get(code, ()))
        try:
            if code in codes:
                tasks += templates
            tasks = list(in_languages(tasks, [code]))
            if code in codes and evaluate.benchmarks:
                tasks += [task.name for task in choose(list_tasks(), [code], evaluate.benchmarks)]
        except InputError as error:
            problems.append(error.message)
        languages[code] = tuple(name for name in dict.fromkeys(tasks) if PLACEHOLDER not in name)
    comparisons = tuple(name for name in primary.tasks if PLACEHOLDER not in name)
    if not problems:
        comparisons = in_languages(primary.tasks, list(codes))
    tasks_update = {
        "tasks": tuple(name for name in evaluate.tasks if name not in templates),
        "languages": languages,
    }
    report = {"primary": primary.model_copy(update={"tasks": comparisons})}
    return study.model_copy(
        update={
            "evaluate": evaluate.model_copy(update=tasks_update),
            "report": study.report.model_copy(update=report),
        }
    ), problems


def expert_names(study: Study) -> tuple[str, ...]:
    """Return every expert that the study names, the base of its first setting first, each once."""
    every = [study.pools(setting) for setting in study.settings()]
    names = (name for role in ROLES for pools in every for name in pools.names(role))
    models = (name for name in named_models(study.recipe or {}) if name not in ROLES)
    return tuple(dict.fromkeys((*names, *models)))


def study_problems(
    study: Study, places: tuple[Path | None, ...] = (), *, has_all_tasks: bool = True
) -> Iterator[str]:
    """Yield what is wrong with the study itself.

    Args:
        study: as read, with what its experts file sets, and `with_tasks_by_language`.
        places: folders of the files that were read, in which its paths were looked for.
        has_all_tasks: whether that had no problem; else the study may be without tasks for it.
    """
    evaluate = study.evaluate
    if study.recipe is None and not study.baseline:
        yield "the study has neither a recipe nor a baseline: nothing to evaluate"
    if study.recipe is None and study.vary:
        yield "vary needs a recipe to vary"
    if has_all_tasks:
        yield from task_problems(study)
    yield from _fact_problems(study)
    yield from _primary_problems(study)
    place = next((place for place in places if place is not None), None)
    for tasks in map(str, evaluate.include_path):
        if not is_folder(tasks):
            hint = build_hint(tasks)
            yield f"evaluate.include_path: {no_such_folder(tasks, place)}{hint}"
    if evaluate.data_dir is not None and not is_folder(evaluate.data_dir):
        yield f"evaluate.data_dir: {no_such_folder(str(evaluate.data_dir), place)}"


def task_problems(study: Study) -> Iterator[str]:
    """Yield which tasks are lacking, and which languages of tasks have no experts."""
    evaluate, codes = study.evaluate, study.experts.languages()
    if not evaluate.tasks and not evaluate.languages:
        yield "evaluate names no tasks; write tasks: [NAME, ...] or benchmarks: [mgsm, ...]"
    elif evaluate.languages and not codes:
        yield (
            "evaluate.languages needs experts.language by language: "
            f"{{{next(iter(evaluate.languages))}: [NAME, ...]}} in place of a list"
        )
    if evaluate.languages and codes:
        languages = list(dict.fromkeys(codes.values()))
        for code in [code for code in evaluate.languages if code not in languages]:
            valid = nearest_of(code, languages)
            yield f"evaluate.languages has {code!r}, which experts.language does not have{valid}"
        for code in [code for code in languages if code not in evaluate.languages]:
            if not evaluate.tasks:
                yield f"experts.language has {code!r}, for which evaluate names no task"


def _fact_problems(study: Study) -> Iterator[str]:
    """Yield roles that vary and no model has, and facts that varied experts do not have."""
    varied = [name for name in _varied(study) if name.startswith(EXPERTS)]
    for role in (name.removeprefix(EXPERTS) for name in varied):
        if study.recipe is not None and role not in {"base", *named_models(study.recipe)}:
            yield f"vary names {EXPERTS}{role}, but no model of the recipe is {role}"
    facts, every = study.experts.facts, [study.pools(setting) for setting in study.settings()]
    for fact in study.report.facts:
        holder, _, key = fact.rpartition(".")
        if holder not in varied:
            yield (
                f"report.facts: {fact}: write experts.ROLE.FACT of a role that varies; vary names "
                f"{', '.join(varied) or 'no experts'}"
            )
            continue
        names = [name for pools in every for name in pools.names(holder.removeprefix(EXPERTS))]
        stated = {name: facts.get(name, {}) for name in names}
        if lacking := [name for name in stated if key not in stated[name]]:
            valid = {fact for name in stated for fact in stated[name]}
            hint = "." if key in valid else nearest(key, valid) or "."
            advice = f"Write it in the experts file: NAME: {{path: ..., facts: {{{key}: NUMBER}}}}"
            if key in MEASURED:
                advice = (
                    "It is in the folder of an expert that layerswap train finished; for others "
                    "layerswap delta EXPERT... --base BASE --text FILE writes an experts file"
                )
            yield f"report.facts: {fact}: {', '.join(lacking)} without it{hint} {advice}"


def _varied(study: Study) -> list[str]:
    return list(dict.fromkeys(name for setting in study.settings() for name in setting))


def _primary_problems(study: Study) -> Iterator[str]:
    """Yield what the primary comparisons name and the study does not have."""
    primary, settings, varied = study.report.primary, study.settings(), _varied(study)
    for rival in primary.against:
        named = f"report.primary.against names {rival}"
        if rival in BASELINE_ROLES and rival not in study.baseline:
            yield f"{named}; add it to baseline"
        experts = ("task_expert", "language_expert")
        if rival == "better_expert" and not set(experts) & set(study.baseline):
            yield f"{named}; add {' or '.join(experts)} to baseline"
        if rival == "first_setting" and len(settings) < 2:
            yield f"{named}; vary has no second setting"
    if primary.setting is not None and primary.setting not in settings:
        listed = "; ".join(str(dict(setting)) for setting in settings[:4])
        yield f"report.primary.setting is not a setting of vary, which begins with {listed}"
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


def made_cells(
    cells: Iterable[ExpandedCell], experts: Mapping[str, Expert], checkpoints: Sequence[Checkpoint]
) -> list[MadeCell]:
    """Return cells with who makes each model, and the folder whose config and tokenizer it has.

    A merge has those of its `donor_of`. One whose recipe makes a tokenizer has no folder: what it
    has is known only after the merge. `checkpoints` are those of the experts; () where nothing is
    merged.

    Raises:
        InputError: for an adapter whose config is damaged.
    """
    by_reference = {expert.reference: expert for expert in experts.values()}
    pairs = zip(experts.values(), checkpoints, strict=False)
    headers = {expert.reference: checkpoint for expert, checkpoint in pairs}
    made = []
    for cell in cells:
        recipe, folder = cell.recipe, None
        maker = made_by(recipe, by_reference)
        if recipe.unmerged is not None:
            folder = by_reference[recipe.unmerged].folder
        elif maker == "files":
            folder = donor_of(recipe, {name: headers[name] for name in recipe.references}).path
        elif not recipe.makes_tokenizer:  # mergekit gives it the base's
            base = by_reference.get(str(recipe.base_model))
            folder = None if base is None else base.folder
        made.append(MadeCell(**cell.expanded(), made_by=maker, donor=folder))
    return made


def lacking_tokenizers(folders: Iterable[Path], experts: Mapping[str, Expert]) -> Iterator[str]:
    """Yield which models need a tokenizer and have none: the base, and the donors in `folders`."""
    base = next(iter(experts.values())).folder
    for folder in dict.fromkeys([base, *folders]):
        if not has_tokenizer(folder):
            names = ", ".join(n for n, expert in experts.items() if expert.folder == folder)
            yield (
                f"expert {names}: {folder} has no tokenizer files (tokenizer.json, or "
                "tokenizer.model, or vocab.json with merges.txt); copy those of the model that it "
                "was trained from into it"
            )


def language_notes(study: Study, cells: Iterable[Cell], stated: Mapping[str, str]) -> Iterator[str]:
    """Yield which tasks are in a language of which there is no expert; English is in every study.

    `stated` are the codes in the metadata of tasks; tasks of lm-eval's suites have them in names.
    """
    codes = dict.fromkeys(study.experts.languages().values())
    others: dict[str, list[str]] = {}
    for task in dict.fromkeys(task for cell in cells for task in cell.record_keys):
        of_suite = suite_task(task)
        code = stated.get(task) or ("" if of_suite is None else of_suite.language)
        if codes and code and code.partition("_")[0] not in ("en", *codes):
            others.setdefault(code, []).append(task)
    names = ", ".join(f"{language_name(code)} ({code})" for code in codes)
    for code, tasks in others.items():
        yield (
            f"{', '.join(tasks)}: in {language_name(code)} ({code}), and the language experts are "
            f"of {names}"
        )


def plan_notes(study: Study, experts: Mapping[str, Expert], cells: Iterable[Cell]) -> Iterator[str]:
    """Yield which cells are one model, and which models may get other prompts than in training."""
    labels: dict[str, list[str]] = {}
    for cell in cells:
        labels.setdefault(cell.weights_key, []).append(cell.label)
    for same in labels.values():
        if len(same) > 1:
            yield f"the same weights, evaluated once: {'; '.join(same)}"
    base = study.experts.base if len(experts) > 1 else None
    chatty = [n for n, expert in experts.items() if n != base and has_template(expert.folder)]
    if chatty and not study.evaluate.apply_chat_template:
        yield (
            f"no prompt is written with a chat template, and there is one in {', '.join(chatty)}; "
            "evaluate.apply_chat_template: true writes prompts with it"
        )
