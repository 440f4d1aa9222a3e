"""What comes before a `delta_revert` merge: its checks in order, its threshold.

What happens around the merge is in `run`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerswap_method.checkpoints.headers import Checkpoint
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.delta_revert.measure import measure_rows
from layerswap_method.delta_revert.recipe import RevertDocument
from layerswap_method.delta_revert.report import log_lines, outcome, plan_record
from layerswap_method.delta_revert.rows import Kept
from layerswap_method.delta_revert.spec import RevertSpec
from layerswap_method.deltas.open_pair import open_pair
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.checks import (
    check_checkpoints,
    read_checkpoints,
    read_configs,
)
from layerswap_method.mergekit_plugin.planner import RevertPlanner
from layerswap_method.output import Prepared


def prepare(
    merge_config: Any, options: Any, document: Mapping[str, Any] | None, out: Path
) -> Prepared:
    """Return a `delta_revert` merge that mergekit can carry out, its threshold measured.

    Raises:
        InputError: listing every problem of the first kind found (recipe, then references, then
            checkpoints), before any output exists.
    """
    recipe = RevertDocument.read(merge_config, document)
    spec, references = recipe.parameters, [recipe.expert, recipe.base_model]
    configs = read_configs(references, merge_config, options, out)
    checkpoints = read_checkpoints(references, options, out)
    check_checkpoints(checkpoints, configs, merge_config, options)
    num_layers = checkpoints[1].depth()
    try:
        layers = spec.layers(num_layers)
    except ValueError as error:
        raise InputError(f"delta_revert recipe: {error}") from error
    threshold = _threshold(spec, checkpoints) if spec.by_row else None
    tally: dict[str, Kept] = {}
    record = plan_record(recipe, layers, num_layers, threshold)
    return Prepared(
        planner=functools.partial(
            RevertPlanner,
            spec=spec,
            layers=layers,
            threshold=threshold,
            models={"expert": recipe.expert, "base": recipe.base_model},
            tally=tally,
        ),
        lines=tuple(log_lines(spec, record)),
        outcome=lambda: outcome(spec, record, tally),
        donor=merge_config.base_model,
    )


def _threshold(spec: RevertSpec, checkpoints: Sequence[Checkpoint]) -> float:
    """Return the threshold below which rows go back.

    For `keep_fraction` both checkpoints are read once, in blocks.

    Raises:
        InputError: where the base is not the expert's, or a tensor cannot be read.
    """
    expert, base = (StreamInput(c.name, c.path) for c in checkpoints)
    pair = open_pair(expert, base)
    return measure_rows(pair).threshold(spec) if spec.threshold is None else spec.threshold
