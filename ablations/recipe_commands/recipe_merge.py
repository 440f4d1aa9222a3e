"""A recipe merged from its files, or by mergekit where files are not enough."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.machine.progress import Step, show_step
from ablations.models.find import find_model
from ablations.recipe_commands.recipe_plan import RecipePlan, plan_recipe
from layerswap_method.errors import LayerSwapError
from layerswap_method.merge import WriteOptions, merge_from_files
from layerswap_method.mergekit_plugin.recipe_errors import check_form
from layerswap_method.mergekit_plugin.run import mergekit_command
from layerswap_method.methods.read import RecipeFile
from layerswap_method.output import PLAN_FILE
from layerswap_method.progress import Bar, Log, no_bar
from layerswap_method.recipe.references import working_folder


class MergekitFailed(LayerSwapError):
    """mergekit-yaml, to which a recipe was passed on, has failed and said why on stderr."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"mergekit-yaml ended with exit code {exit_code}; its messages say why")
        self.exit_code = exit_code


@dataclass(frozen=True)
class Merged:
    """The result of `merge` or `swap-adapters`; as a path it is the folder."""

    folder: Path
    """The new model, or the new adapter."""

    lines: tuple[str, ...]
    """The lines of the log: which expert gave what, and what was measured."""

    @property
    def plan(self) -> RecipePlan | None:
        """Which expert supplied which layer; None of another method than layer_swap."""
        is_swap = (self.folder / PLAN_FILE).is_file()
        return plan_recipe(str(self.folder)) if is_swap else None

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return str(self)  # so a notebook shows it

    def __str__(self) -> str:
        return "\n".join(self.lines)


def merge_recipe(
    recipe: RecipeFile,
    out: str,
    options: WriteOptions,
    log: Log,
    *,
    mergekit_options: Sequence[str] = (),
    bar: Bar = no_bar,
    download: str | None = None,
) -> None:
    """Merge a recipe.

    Args:
        recipe: from `open_recipe`.
        out: the folder of the merge.
        options: how it is written.
        log: is called with what the merge is, and with what was measured.
        mergekit_options: options of mergekit-yaml, which then merges the recipe.
        bar: shows progress in bytes.
        download: what is fetched of models of the hub, as in `merge_from_files`.

    Raises:
        InputError: for a recipe, a model, a folder or an option that is wrong.
        MergekitFailed: where mergekit had to merge the recipe, and failed.
    """
    here = working_folder()  # a relative folder is this one's, wherever the process goes
    reason: str | None = "there are options after --"
    if not mergekit_options:
        find = functools.partial(find_model, recipe=recipe.path, folder=here)
        reason = merge_from_files(recipe, out, find, log, options, bar=bar, download=download)
    if reason is not None:
        check_form(recipe.document)
        _by_mergekit(recipe, out, options, log, mergekit_options, reason)


def _by_mergekit(
    recipe: RecipeFile,
    out: str,
    options: WriteOptions,
    log: Log,
    more: Sequence[str],
    reason: str,
) -> None:
    with contextlib.ExitStack() as stack:
        path = recipe.path
        if path is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "recipe.yml"
            path.write_text(recipe.text, encoding="utf-8")
        command = mergekit_command(path, out, options, more, reason)
        log(f"{recipe.name} is passed on to mergekit-yaml: {reason}")
        show_step(Step(""))  # mergekit shows its own bars
        done = subprocess.run(command, check=False)
    if done.returncode:
        raise MergekitFailed(done.returncode)
