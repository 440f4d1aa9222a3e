"""What happens around a merge of ours: every check before, plan file, card and rename after.

Knows mergekit's `run_merge` and the output folder; what is checked, planned and said is each
method's own (`layer_swap_merge`, `delta_revert_merge`). Merges by other methods pass through
untouched.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mergekit.io.tasks import LoaderCache

from layerswap_method.delta_revert.spec import NAME as DELTA_REVERT
from layerswap_method.errors import LayerSwapError, describe_error
from layerswap_method.layer_swap.spec import NAME as LAYER_SWAP
from layerswap_method.mergekit_plugin import delta_revert_merge, layer_swap_merge
from layerswap_method.mergekit_plugin.planner import check_planner
from layerswap_method.output import (
    PLAN_FILE,
    REVERT_PLAN_FILE,
    output_folder,
    temporary_output,
)
from layerswap_method.recipe.strict_yaml import parse_yaml

LOG = logging.getLogger("layerswap")

_PREPARE = {LAYER_SWAP: layer_swap_merge.prepare, DELTA_REVERT: delta_revert_merge.prepare}
"""Method -> what checks a recipe and measures what it needs."""

_PLAN_FILES = {LAYER_SWAP: PLAN_FILE, DELTA_REVERT: REVERT_PLAN_FILE}


def patch_merge(module: Any, *, applies: Callable[[str], bool]) -> None:
    """Wrap `run_merge` of the executed module `mergekit.merge`, wherever it is bound already.

    `applies` says at the time of a call whether a merge method is this project's.
    """
    original = module.run_merge
    if getattr(original, "_layerswap_patched", False):
        return

    @functools.wraps(original)
    def run_merge(
        merge_config: Any, out_path: str, options: Any, config_source: str | None = None
    ) -> None:
        method = merge_config.merge_method
        if not applies(method):
            original(merge_config, out_path, options, config_source)
            return
        check_planner()
        forget_loaders()
        out = output_folder(out_path)
        document = _document(method, config_source)
        prepared = _PREPARE[method](merge_config, options, document, out)
        _say(prepared.lines, quiet=options.quiet)
        with temporary_output(out) as folder:
            # mergekit takes config and tokenizer from the base_model.
            config = merge_config.model_copy(update={"base_model": prepared.donor})
            with (
                _failures_in_one_message(verbose=options.verbosity > 0),
                _planned_by(prepared.planner, module, config),
            ):
                shown = config_source or merge_config.to_yaml()
                original(config, str(folder), options, shown)
            if prepared.donor != merge_config.base_model:
                _write_card(folder / "README.md", merge_config, shown)
            outcome = prepared.outcome()
            text = json.dumps(outcome.record, indent=2) + "\n"
            (folder / _PLAN_FILES[method]).write_text(text, encoding="utf-8")
            _add_to_card(folder / "README.md", outcome.card)
        _say(outcome.lines, quiet=options.quiet)

    run_merge._layerswap_patched = True  # type: ignore[attr-defined]
    for name, loaded in list(sys.modules.items()):
        if name.startswith("mergekit.") and getattr(loaded, "run_merge", None) is original:
            loaded.run_merge = run_merge  # type: ignore[attr-defined]


def forget_loaders() -> None:
    """Drop the checkpoints that mergekit keeps open for the life of a process.

    It keys them by the reference alone, so a folder written anew between two merges of one
    process, or an adapter merged into another cache, would be read as it was.
    """
    LoaderCache.loaders.clear()


@contextmanager
def _planned_by(planner: Callable[..., Any], module: Any, merge_config: Any) -> Iterator[None]:
    """Have `run_merge` of `module` plan one configuration with a planner of ours."""
    usual = module.MergePlanner

    def choose(config: Any, *args: Any, **kwargs: Any) -> Any:
        return (planner if config is merge_config else usual)(config, *args, **kwargs)

    module.MergePlanner = choose
    try:
        yield
    finally:
        module.MergePlanner = usual


def _document(method: str, config_source: str | None) -> Mapping[str, Any] | None:
    """Return the recipe before mergekit parsed it, to find keys that mergekit ignored.

    Raises:
        InputError: for keys that stand twice, of which mergekit saw the last only.
    """
    document = parse_yaml(config_source, f"{method} recipe") if config_source else None
    return document if isinstance(document, dict) else None


def _say(lines: tuple[str, ...], *, quiet: bool) -> None:
    """Write to the log; shown at mergekit's default verbosity."""
    if quiet:
        return
    LOG.setLevel(logging.INFO)
    for line in lines:
        LOG.info("%s", line)


def _write_card(card: Path, merge_config: Any, shown: str) -> None:
    """Write mergekit's card of a recipe anew, where it has written one of a changed recipe."""
    from mergekit.card import generate_card

    if card.is_file():
        text = generate_card(config=merge_config, config_yaml=shown, name=card.parent.name)
        card.write_text(text, encoding="utf-8")


def _add_to_card(card: Path, section: str) -> None:
    if section and card.is_file():  # mergekit writes none with --no-write-model-card
        text = card.read_text(encoding="utf-8").rstrip("\n")
        card.write_text(f"{text}\n\n{section.strip()}\n", encoding="utf-8")


@contextmanager
def _failures_in_one_message(*, verbose: bool) -> Iterator[None]:
    """Turn what fails inside mergekit into one message; with ``-v`` its traceback is kept.

    Raises:
        LayerSwapError: for any exception but this project's own and interrupts.
    """
    try:
        yield
    except LayerSwapError:
        raise
    except Exception as error:
        if verbose:
            raise
        raise LayerSwapError(
            f"mergekit failed, and nothing was written: {describe_error(error)} (add -v for the "
            "traceback)"
        ) from error
