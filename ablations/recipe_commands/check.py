"""All faults of a recipe that can be seen before a merge. Merges nothing, downloads no weights.

`layerswap_method.methods.check` checks what the models must share, as it does for a merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from ablations.recipe_commands.find import find_recipe, is_gallery_file, open_recipe, recipe_files
from ablations.recipe_commands.findings import UNCHECKED, Finding, Level
from ablations.recipe_commands.model_facts import ModelFacts, is_on_hub, look_up
from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.lora import added_elsewhere, tie_problems
from layerswap_method.checkpoint.vocabulary import tokens_without_rows
from layerswap_method.errors import InputError, counted, size_text
from layerswap_method.hub.downloads import Downloads, describe_needs, download_choice
from layerswap_method.mergekit_plugin.recipe_errors import check_form
from layerswap_method.methods.check import check_models
from layerswap_method.methods.read import RecipeFile, read_recipe
from layerswap_method.methods.table import OUR_METHODS, merge_open_models, why_mergekit
from layerswap_method.recipe.document import OtherRecipe, Recipe, value_problems
from layerswap_method.recipe.references import (
    PLUS,
    Model,
    is_folder,
    is_hub_id,
    is_there,
    named_models,
    resolve_from,
)
from layerswap_method.tensors import OpenModel
from layerswap_method.write.donor_files import donor_files, tokenizer_problems
from layerswap_method.write.layout import lay_out_files


class CheckedRecipe(NamedTuple):
    """A recipe and the findings on it."""

    recipe: Path
    findings: Sequence[Finding]
    """Errors first."""


@dataclass(frozen=True)
class CheckedRecipes:
    """Recipes and the findings on them; as text one line per finding, and how many there are."""

    recipes: tuple[CheckedRecipe, ...]

    @property
    def errors(self) -> int:
        """Number of errors."""
        return self._count("error")

    @property
    def warnings(self) -> int:
        """Number of warnings."""
        return self._count("warning")

    def _count(self, level: Level) -> int:
        return sum(f.level == level for _, findings in self.recipes for f in findings)

    def __str__(self) -> str:
        lines = [
            f"{path}: {f.level}: {f.message.removeprefix(f'{path}: ')}"
            for path, findings in self.recipes
            for f in findings
        ]
        counts = {"recipe": len(self.recipes), "error": self.errors, "warning": self.warnings}
        recipes, *others = (counted(number, noun) for noun, number in counts.items())
        unchecked = {
            f.message for _, findings in self.recipes for f in findings if UNCHECKED in f.message
        }
        if unchecked:
            others.append(f"{counted(len(unchecked), 'model')} not checked")
        return "\n".join([*lines, f"{recipes}: {', '.join(others)}"])


def check_recipes(names: Sequence[str], *, hub: bool = True) -> CheckedRecipes:
    """Return the recipes that are named, each with its findings; see `check_recipe`.

    Args:
        names: files, folders of recipes, or shipped recipes by name.
        hub: whether configs and headers are fetched from the hub.

    Raises:
        InputError: for a name of no recipe.
    """
    return CheckedRecipes(
        tuple(CheckedRecipe(path, check_recipe(path, hub=hub)) for path in _recipes_of(names))
    )


def _recipes_of(names: Sequence[str]) -> list[Path]:
    """Return the recipes that are named: files, all of a folder, or shipped ones by name."""
    recipes: list[Path] = []
    for path in map(Path, names):
        if path.is_dir():
            inside = recipe_files(path)
            if not inside:
                raise InputError(f"{path}: holds no recipe (*.yml)")
            recipes += inside
        else:
            recipes.append(path if path.is_file() else find_recipe(str(path)))
    return list(dict.fromkeys(recipes))


def check_recipe(recipe: Path | Mapping[str, Any], *, hub: bool = True) -> list[Finding]:
    """Return the findings on one recipe, a file or its content, errors first.

    With `hub`, configs and headers of models that are not on this machine are fetched from the hub.
    """
    try:
        opened, findings = open_recipe(recipe), list[Finding]()
        shipped = isinstance(recipe, Path) and is_gallery_file(recipe)
        source = Downloads(download_choice(), headers_only=True) if hub else None
        with nullcontext() if source is None else source.fetching():
            findings += _findings(opened, source=source, shipped=shipped)
    except InputError as error:
        findings = [*_errors(error)]
    return sorted(dict.fromkeys(findings), key=lambda finding: get_args(Level).index(finding.level))


def _findings(file: RecipeFile, *, source: Downloads | None, shipped: bool) -> Iterator[Finding]:
    document, recipe = file.document, None
    try:
        recipe = _read(document)
    except InputError as error:
        yield from _errors(error)
    named = () if recipe is None else recipe.references
    facts: dict[str, ModelFacts] = {}
    for reference in dict.fromkeys([*named, *named_models(document)]):
        if "+" in reference and is_folder(resolve_from(reference, None)):
            yield Finding("warning", f"{reference}: mergekit-yaml will not find it: {PLUS}")
        try:
            facts[reference] = model = look_up(
                reference, hub=source is not None, source=source, recipe=file.path
            )
        except InputError as error:  # a checkpoint that cannot be read
            yield from _errors(error)
            continue
        notes, finding = _notes(reference), model.finding
        if shipped and finding is not None and finding.level == "error":
            # The gallery's models are made by its own commands.
            notes = [finding.message, UNCHECKED, *notes]
        elif finding is not None and finding.level == "note":
            notes = [finding.message, *notes]
        elif finding is not None:
            yield finding
        if notes:
            yield Finding("note", f"{reference}: {'; '.join(notes).removeprefix(f'{reference}: ')}")
    try:
        yield from _depth_findings(recipe, facts)
        models = {
            name: model.checkpoint for name, model in facts.items() if model.checkpoint is not None
        }
        if models:
            yield from _merge_findings(document, recipe, models)
        base = models.get(str(recipe.base_model)) if recipe is not None else None
        with_adapters = [(model, facts[name].adapter) for name, model in models.items()]
        for checkpoint, adapter in with_adapters:
            if adapter is not None and base is not None:
                elsewhere = added_elsewhere(checkpoint.name, checkpoint, base)
                yield from () if elsewhere is None else [Finding("note", elsewhere)]
        for problem in tie_problems(with_adapters):
            yield Finding("error", problem)
        if source is not None:
            yield from _download_findings(recipe, facts, source)
    except (InputError, ValueError) as error:
        yield from _errors(error if isinstance(error, InputError) else InputError(str(error)))


def _notes(reference: str) -> list[str]:
    """Return what a reader should know of a reference: which of its parts name no revision."""
    unpinned = [
        part
        for part in reference.split("+")
        if is_hub_id(part) and "@" not in part and not is_there(part)
    ]
    if not unpinned:
        return []
    pinned = " and ".join(f"{part}@COMMIT" for part in unpinned)
    return [f"it names no revision, so a later download may give another model: write {pinned}"]


def _errors(error: InputError) -> Iterator[Finding]:
    return (Finding("error", problem) for problem in error.problems or (error.message,))


def _read(document: Mapping[str, Any]) -> Recipe | None:
    """Return a recipe of this project's methods, None for others; mergekit's types judge those."""
    is_ours = document["merge_method"] in OUR_METHODS
    if not is_ours:
        check_form(document)
        InputError.raise_any("recipe", value_problems(document))
    recipe = read_recipe(document)
    return recipe if is_ours else None


def _depth_findings(recipe: Recipe | None, facts: Mapping[str, ModelFacts]) -> Iterator[Finding]:
    """Yield layer counts that do not fit the models, and models of different depths."""
    depths = {name: model.depth for name, model in facts.items() if model.depth is not None}
    if len(set(depths.values())) > 1:
        shown = ", ".join(f"{name} {depth}" for name, depth in depths.items())
        yield Finding(
            "error", f"the models have different depths ({shown}); merging needs one parent"
        )
        return
    for depth in set(depths.values()):
        plan = None if recipe is None else recipe.layer_plan(depth)
        for warning in () if recipe is None or plan is None else recipe.plan_warnings(plan):
            yield Finding("warning", warning)


def _merge_findings(
    document: Mapping[str, Any], recipe: Recipe | None, models: Mapping[str, Checkpoint]
) -> Iterator[Finding]:
    """Yield how the models on this machine do not fit together."""
    checked = check_models(recipe or OtherRecipe.unread(document, "it is mergekit's"), models)
    for problem in checked.problems:
        yield Finding("error", problem)
    for warning in checked.warnings:
        yield Finding("warning", warning)
    for note in checked.notes:
        yield Finding("note", note)
    for warning in tokens_without_rows(models.values()):
        yield Finding("warning", warning)
    if recipe is not None:
        local = {
            name: model.path
            for name, model in models.items()
            if not is_on_hub(name.partition("+")[0])
        }
        for problem in tokenizer_problems(recipe, local):
            yield Finding("error", problem)
        first, *_ = models.values()
        first.depth()
        try:
            donor_files(checked.donor.path)
        except InputError as error:
            yield from _errors(error)


def _download_findings(
    recipe: Recipe | None, facts: Mapping[str, ModelFacts], source: Downloads
) -> Iterator[Finding]:
    """Yield how much of the models will be downloaded for a merge, and the disk that it needs."""
    models = {name: model.files for name, model in facts.items() if model.files is not None}
    references = facts if recipe is None else recipe.references
    if any(reference not in models for reference in references):
        return
    reason = _why_whole(recipe, models)
    if recipe is None or reason is not None:
        folders = [folder for model in models.values() for folder in model.folders]
        needs = [*source.needs({}, folders)]
        if needs:
            yield Finding("note", f"the models are downloaded whole: {reason}")
        size = 0
    else:
        merge = merge_open_models(recipe, {name: _open(facts[name]) for name in recipe.references})
        needs = [*source.needs(merge.ranges)]
        size = lay_out_files(merge, Path()).nbytes
    for line in describe_needs(needs):
        yield Finding("note", line)
    if needs and size:
        yield Finding("note", f"the merge itself needs {size_text(size)} of disk")


def _open(facts: ModelFacts) -> OpenModel:
    """Return a model as a merge opens it; what the check has read of it is not read again."""
    assert facts.files is not None
    if facts.adapter is None and facts.checkpoint is not None:
        return OpenModel(checkpoint=facts.checkpoint)
    return OpenModel.read(facts.files)


def _why_whole(recipe: Recipe | None, models: Mapping[str, Model]) -> str | None:
    """Return why a merge reads all of its models, of which `models` are the files, if it does."""
    if recipe is None:
        return "the merge method is mergekit's"
    reason = recipe.why_whole()
    read = {reference: models[reference] for reference in recipe.references}
    by_mergekit = why_mergekit(recipe, read)
    if reason is None and by_mergekit is not None:
        return f"only mergekit can merge this recipe: {by_mergekit}"
    return reason
