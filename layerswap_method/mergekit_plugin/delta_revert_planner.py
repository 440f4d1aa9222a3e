"""What mergekit's planner does for `delta_revert`: each tensor's rule, and only the side it needs.

Knows the private `MergePlanner` of mergekit 0.1.5, as `planner` does, which calls
this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layerswap_method.delta_revert.recipe import RevertRecipe, read_revert_recipe, reverted_layers
from layerswap_method.delta_revert.spec import Rule
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.api import loaded_as_stored
from layerswap_method.mergekit_plugin.definitions import decoder_module
from layerswap_method.mergekit_plugin.delta_revert_kernel import (
    DTYPE_PARAMETER,
    MODEL_TYPE_PARAMETER,
    RULE_PARAMETER,
)
from layerswap_method.recipe.document import unplanned


@dataclass
class Progress:
    """Where mergekit's planner stands in a `delta_revert` recipe."""

    recipe: RevertRecipe
    layers: frozenset[int] = frozenset()
    model_type: str = ""
    in_decoder: bool = False
    layer: int | None = None


def begin(planner: Any, module_name: str, definition: Any) -> Progress:
    """Return the state at the start of one module.

    Raises:
        InputError: where layers do not fit the depth, or rows were not measured.
    """
    recipe = read_revert_recipe(unplanned(planner.config))
    if recipe.spec.keep_fraction is not None:
        raise InputError(
            "delta_revert recipe: the threshold of a keep_fraction is measured before a merge by "
            "mergekit-yaml, mergekit-multi and mergekit.merge.run_merge; use one of them"
        )
    config = planner.out_model_config.get_text_config()
    progress = Progress(recipe, model_type=str(config.model_type))
    if module_name == decoder_module(planner.arch_info):
        start, end = definition.slices[0].sources[0].layer_range
        progress.in_decoder = True
        progress.layers = reverted_layers(recipe.spec, end - start)
    return progress


def plan_tensor(
    planner: Any,
    original: Any,
    weight: Any,
    weights_in: list[Any],
    models: list[Any],
    cfg_reader: Any,
) -> None:
    """Plan one tensor with its rule; a side that it does not need is not read."""
    progress: Progress = planner._layerswap
    recipe = progress.recipe
    layer = progress.layer if progress.in_decoder else None
    rule = recipe.spec.rule(weight.name, layer, progress.layers)
    needed = {"expert": [recipe.expert], "base": [recipe.base_model]}
    wanted = needed.get(rule, [recipe.expert, recipe.base_model])
    kept = [(m, w) for m, w in zip(models, weights_in, strict=True) if m in wanted]
    planned = len(planner._tensors)
    original(planner, weight, [w for _, w in kept], [m for m, _ in kept], cfg_reader)
    if len(planner._tensors) > planned:  # mergekit skips optional tensors that nobody has
        task = _with_rule(planner, planner._tensors[-1][1], weight, rule, progress)
        planner._tensors[-1] = (weight, task)


def _with_rule(planner: Any, task: Any, weight: Any, rule: Rule, progress: Progress) -> Any:
    """Return mergekit's task for one tensor with its rule written into it.

    Rows are compared as they are stored: rounded to the recipe's `dtype` first, a light fine-tune
    would look unchanged. What is chosen is rounded after.
    """
    update: dict[str, Any] = {}
    parameters = {
        **dict(task.parameters.items()),
        RULE_PARAMETER: rule,
        MODEL_TYPE_PARAMETER: progress.model_type,
    }
    if rule == "rows":
        parameters[DTYPE_PARAMETER] = weight.force_dtype or planner.config.dtype
        update["gather_tensors"] = loaded_as_stored(task.gather_tensors)
    update["parameters"] = type(task.parameters)(parameters)
    return task.model_copy(update=update)
