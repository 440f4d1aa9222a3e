"""The checks of a `delta_revert` merge, its threshold, and what it says about itself.

Knows the order of the checks; what happens around the merge is in `run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerswap_method.delta_revert.recipe import RevertRecipe, read_revert_recipe, reverted_layers
from layerswap_method.delta_revert.report import _announcement, _outcome
from layerswap_method.delta_revert.spec import NAME
from layerswap_method.mergekit_plugin.api import recipe_fields
from layerswap_method.mergekit_plugin.checks import MergeInputs, check_checkpoints, read_inputs
from layerswap_method.mergekit_plugin.delta_revert_kernel import start_tally
from layerswap_method.mergekit_plugin.run import Prepared
from layerswap_method.output import REVERT_PLAN_FILE

if TYPE_CHECKING:
    pass


def prepare(
    merge_config: Any, options: Any, document: Mapping[str, Any] | None, out: Path
) -> Prepared:
    """Return a `delta_revert` merge that mergekit can carry out, its threshold measured.

    Raises:
        InputError: listing every problem of the first kind found (recipe, then references, then
            checkpoints), before any output exists.
    """
    recipe = read_revert_recipe(merge_config, document, known=recipe_fields())
    references = [recipe.expert, recipe.base_model]
    inputs = read_inputs(NAME, references, merge_config, options, out)
    check_checkpoints(NAME, inputs, merge_config, options)
    num_layers = inputs.checkpoints[1].depth()
    layers = reverted_layers(recipe.spec, num_layers)
    threshold = _threshold(recipe, inputs)
    parameters = {k: v for k, v in (merge_config.parameters or {}).items() if k != "keep_fraction"}
    if threshold is not None:
        parameters["threshold"] = threshold
    tally = start_tally()
    return Prepared(
        merge_config=merge_config.model_copy(update={"parameters": parameters}),
        lines=tuple(_announcement(recipe, layers, num_layers, threshold)),
        plan_file=REVERT_PLAN_FILE,
        outcome=lambda: _outcome(recipe, layers, num_layers, threshold, tally),
    )


def _threshold(recipe: RevertRecipe, inputs: MergeInputs) -> float | None:
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

    expert, base = (StreamInput(c.name, c.path) for c in inputs.checkpoints)
    pair = open_pair(expert, base)
    return spec.threshold if spec.keep_fraction is None else measure_rows(pair).threshold(spec)
