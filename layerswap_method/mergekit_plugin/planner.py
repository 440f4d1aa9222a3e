"""The extension of mergekit's planner: each tensor's source, and only the inputs it needs.

Knows the private `MergePlanner` of mergekit 0.1.5. Its planner knows what a kernel is never told
(the current layer and the layer count, for every architecture and for `slices:`), and it decides
what is read from disk: an expert that a layer does not use is dropped here, before mergekit asks
for its tensor. If the planner's methods are not those of 0.1.5, nothing is changed and the kernel
falls back to the tensor's name (see `layerswap_method.mergekit_plugin.layer_swap_kernel`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from layerswap_method.algorithm.coefficients import needed_roles
from layerswap_method.algorithm.plan import LayerPlan, TensorSource
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.recipe import Recipe, read_measured
from layerswap_method.layer_swap.spec import NAME
from layerswap_method.mergekit_plugin import delta_revert_planner as revert_planner
from layerswap_method.mergekit_plugin.api import loaded_as_stored
from layerswap_method.mergekit_plugin.definitions import decoder_module
from layerswap_method.mergekit_plugin.layer_swap_kernel import DTYPE_PARAMETER, SOURCE_PARAMETER

LOG = logging.getLogger("layerswap")

_EXPECTED = {
    "plan_module": ["self", "module_name", "definition"],
    "plan_layer": ["self", "sources", "layer_offset", "t", "cfg_reader", "module_name"],
    "plan_tensor": ["self", "weight", "weights_in", "models", "cfg_reader"],
}


@dataclass
class _Progress:
    """Where mergekit's planner stands in a `layer_swap` recipe."""

    recipe: Recipe
    plan: LayerPlan | None = None
    layer: int | None = None


def patch_planner(module: Any, *, applies: Callable[[str], bool]) -> bool:
    """Extend `MergePlanner` in the executed module `mergekit.plan`; True if that was possible.

    Args:
        module: `mergekit.plan`.
        applies: whether a merge method is this project's at the time of a call.
    """
    planner = module.MergePlanner
    if getattr(planner, "_layerswap_patched", False):
        return True
    for name, expected in _EXPECTED.items():
        method = getattr(planner, name, None)
        if method is None or list(inspect.signature(method).parameters) != expected:
            LOG.warning(
                "mergekit's MergePlanner.%s is not the one of mergekit 0.1.5: layer_swap reads "
                "layer numbers off tensor names and loads every expert for every tensor",
                name,
            )
            return False
    planner.plan_module = _wrap_plan_module(planner.plan_module, applies)
    planner.plan_layer = _wrap_plan_layer(planner.plan_layer, applies)
    planner.plan_tensor = _wrap_plan_tensor(planner.plan_tensor, applies)
    planner._layerswap_patched = True
    return True


def planner_is_extended() -> bool:
    """Return whether mergekit's planner was extended in this process (else: kernel only)."""
    planner = getattr(sys.modules.get("mergekit.plan"), "MergePlanner", None)
    return bool(getattr(planner, "_layerswap_patched", False))


def _wrap_plan_module(original: Any, applies: Callable[[str], bool]) -> Any:
    @functools.wraps(original)
    def plan_module(self: Any, module_name: str, definition: Any) -> Any:
        if not applies(self.config.merge_method):
            return original(self, module_name, definition)
        if self.config.merge_method != NAME:
            self._layerswap = revert_planner.begin(self, module_name, definition)
            return original(self, module_name, definition)
        progress = _Progress(read_measured(self.config))
        if module_name == decoder_module(self.arch_info):
            num_layers = sum(
                out.sources[0].layer_range[1] - out.sources[0].layer_range[0]
                for out in definition.slices
            )
            progress.plan = layer_plan(progress.recipe, num_layers)
        self._layerswap = progress
        return original(self, module_name, definition)

    return plan_module


def layer_plan(recipe: Recipe, num_layers: int) -> LayerPlan:
    """Return the recipe's plan for `num_layers` layers.

    Raises:
        InputError: with the numbers, where the counts do not fit.
    """
    if recipe.measured is not None:
        return recipe.measured
    try:
        return recipe.spec.plan(num_layers)
    except ValueError as error:
        raise InputError(f"layer_swap recipe: {error}") from error


def _wrap_plan_layer(original: Any, applies: Callable[[str], bool]) -> Any:
    @functools.wraps(original)
    def plan_layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not applies(self.config.merge_method):
            return original(self, *args, **kwargs)
        self._layerswap.layer = self._current_module_layers
        try:
            return original(self, *args, **kwargs)
        finally:
            self._layerswap.layer = None

    return plan_layer


def _wrap_plan_tensor(original: Any, applies: Callable[[str], bool]) -> Any:
    @functools.wraps(original)
    def plan_tensor(
        self: Any, weight: Any, weights_in: list[Any], models: list[Any], cfg_reader: Any
    ) -> None:
        if not applies(self.config.merge_method):
            original(self, weight, weights_in, models, cfg_reader)
            return
        if self.config.merge_method != NAME:
            revert_planner.plan_tensor(self, original, weight, weights_in, models, cfg_reader)
            return
        progress: _Progress = self._layerswap
        source = _tensor_source(progress, weight.name)
        base = progress.recipe.base_model
        if progress.layer is None and len(weights_in) != len(models):
            # mergekit sizes these by the first slice and names the models of the last.
            weights_in = [weight] * len(models)
        inputs = list(zip(models, weights_in, strict=True))
        if source == "base" and base not in models:  # `slices:` need not list the base
            inputs.append((base, weight))
        # A token may be sourced from any model and the shortest vocabulary sets the length of
        # truncated ones, so aligned vocabulary tensors keep every input.
        aligned = weight.vocabulary_axis is not None and (
            bool(self._tokenizer_task) or self.options.unsafe_truncate_embeddings
        )
        kept = [
            (model, weight_in)
            for model, weight_in in inputs
            if aligned or _is_needed(progress.recipe, source, model)
        ]
        planned = len(self._tensors)
        original(self, weight, [w for _, w in kept], [m for m, _ in kept], cfg_reader)
        if len(self._tensors) > planned:  # mergekit skips optional tensors that nobody has
            self._tensors[-1] = (
                weight,
                _with_source(self, self._tensors[-1][1], weight, source),
            )

    return plan_tensor


def _tensor_source(progress: _Progress, name: str) -> TensorSource:
    if progress.plan is None:  # vision towers, projectors: everything but the text decoder
        return progress.recipe.spec.non_layer
    return progress.recipe.spec.tensor_source(name, progress.layer, progress.plan)


def _is_needed(recipe: Recipe, source: TensorSource, model: Any) -> bool:
    if source == "base":
        return bool(model == recipe.base_model)
    roles = needed_roles(source, recipe.spec)
    return any(
        given.reference == model and given.weight != 0 and given.role in roles
        for given in recipe.models
    )


def _with_source(planner: Any, task: Any, weight: Any, source: TensorSource) -> Any:
    """Return mergekit's task for one tensor with its source written into it.

    mergekit casts to the recipe's `dtype` on loading and to `out_dtype` on saving, so an average
    would be rounded up to three times; averages are therefore loaded as stored, and the kernel
    rounds them once, to the dtype they are saved in.
    """
    parameters = {**dict(task.parameters.items()), SOURCE_PARAMETER: source}
    update: dict[str, Any] = {}
    dtype = weight.force_dtype or planner.config.out_dtype or planner.config.dtype
    if source == "average" and dtype is not None:
        parameters[DTYPE_PARAMETER] = dtype
        update["gather_tensors"] = loaded_as_stored(task.gather_tensors)
    update["parameters"] = type(task.parameters)(parameters)
    return task.model_copy(update=update)
