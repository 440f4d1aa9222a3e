"""What comes before a `delta_revert` merge: its checks in order, its threshold.

What happens around the merge is in `run`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerswap_method.checkpoints.headers import Checkpoint
from layerswap_method.delta_revert.recipe import RevertRecipe, read_revert_recipe, reverted_layers
from layerswap_method.delta_revert.report import log_lines, outcome, plan_record
from layerswap_method.delta_revert.rows import Tally
from layerswap_method.delta_revert.spec import NAME
from layerswap_method.mergekit_plugin.checks import (
    check_checkpoints,
    read_checkpoints,
    read_configs,
)
from layerswap_method.mergekit_plugin.planner import RevertJob, RevertPlanner
from layerswap_method.output import REVERT_PLAN_FILE, Prepared


def prepare(
    merge_config: Any, options: Any, document: Mapping[str, Any] | None, out: Path
) -> Prepared:
    """Return a `delta_revert` merge that mergekit can carry out, its threshold measured.

    Raises:
        InputError: listing every problem of the first kind found (recipe, then references, then
            checkpoints), before any output exists.
    """
    recipe = read_revert_recipe(merge_config, document)
    references = [recipe.expert, recipe.base_model]
    configs = read_configs(NAME, references, merge_config, options, out)
    checkpoints = read_checkpoints(references, options, out)
    check_checkpoints(NAME, checkpoints, configs, merge_config, options)
    num_layers = checkpoints[1].depth()
    layers = reverted_layers(recipe.spec, num_layers)
    threshold = _threshold(recipe, checkpoints)
    tally = Tally()
    job = RevertJob(recipe.spec, layers, threshold, recipe.expert, recipe.base_model, tally)
    record = plan_record(recipe, layers, num_layers, threshold)
    return Prepared(
        planner=functools.partial(RevertPlanner, job=job),
        lines=tuple(log_lines(recipe.spec, record)),
        plan_file=REVERT_PLAN_FILE,
        outcome=lambda: outcome(recipe.spec, record, tally),
    )


def _threshold(recipe: RevertRecipe, checkpoints: Sequence[Checkpoint]) -> float | None:
    """Return the threshold below which rows go back; None where rows are not looked at.

    For `keep_fraction` both checkpoints are read once, in blocks.

    Raises:
        InputError: where the base is not the expert's, or a tensor cannot be read.
    """
    spec = recipe.spec
    if not spec.by_row:
        return None
    from layerswap_method.checkpoints.model_files import StreamInput
    from layerswap_method.delta_revert.measure import measure_rows
    from layerswap_method.deltas.open_pair import open_pair

    expert, base = (StreamInput(c.name, c.path) for c in checkpoints)
    pair = open_pair(expert, base)
    return spec.threshold if spec.keep_fraction is None else measure_rows(pair).threshold(spec)
