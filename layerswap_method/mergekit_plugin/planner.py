"""mergekit's planner for our merges: each tensor's source, and only the inputs that it needs.

Knows the private `MergePlanner` of mergekit 0.1.5; `run` has `run_merge` plan with these. A planner
knows what a kernel is never told (the current layer, for every architecture), and it decides what
is read from disk: a model that a tensor does not need is dropped before mergekit asks for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from mergekit.common import ImmutableMap, dtype_from_name
from mergekit.merge_methods.base import TensorGroup
from mergekit.plan import MergePlanner

from layerswap_method.algorithm.coefficients import Input, needed_roles
from layerswap_method.algorithm.plan import LayerPlan
from layerswap_method.delta_revert.rows import Kept
from layerswap_method.delta_revert.spec import RevertSpec
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.layer_swap.spec import LayerSwapSpec
from layerswap_method.mergekit_plugin.definitions import decoder_module
from layerswap_method.mergekit_plugin.delta_revert_kernel import revert
from layerswap_method.mergekit_plugin.layer_swap_kernel import combine
from layerswap_method.mergekit_plugin.planned_method import PLANNED

_EXPECTED = {
    "__init__": ["self", "config", "arch_info", "options", "out_model_config"],
    "plan_module": ["self", "module_name", "definition"],
    "plan_layer": ["self", "sources", "layer_offset", "t", "cfg_reader", "module_name"],
    "plan_tensor": ["self", "weight", "weights_in", "models", "cfg_reader"],
}


def check_planner(planner: Any = MergePlanner) -> None:
    """Check that a planner is the one that the classes here extend.

    Raises:
        LayerSwapError: where it is not; a merge could then take tensors from the wrong model.
    """
    for name, expected in _EXPECTED.items():
        method = getattr(planner, name, None)
        if method is None or list(inspect.signature(method).parameters) != expected:
            raise LayerSwapError(
                f"mergekit's MergePlanner.{name} is not the one of mergekit 0.1.5, which layerswap "
                "extends to merge checkpoints; install a newer layerswap, or mergekit==0.1.5"
            )


class _LayerPlanner(MergePlanner):  # type: ignore[misc]
    """mergekit's planner that knows which decoder layer it plans."""

    _in_decoder = False
    _layer: int | None = None

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        # A copy: mergekit rewrites `models:` in it. What the parameters say is read already.
        super().__init__(config.model_copy(update={"parameters": {}}), *args, **kwargs)

    def plan_module(self, module_name: str, definition: Any) -> None:
        self._in_decoder = module_name == decoder_module(self.arch_info)
        super().plan_module(module_name, definition)

    def plan_layer(self, *args: Any, **kwargs: Any) -> None:
        self._layer = self._current_module_layers if self._in_decoder else None
        try:
            super().plan_layer(*args, **kwargs)
        finally:
            self._layer = None

    def _plan_with(
        self,
        weight: Any,
        inputs: Mapping[Any, Any],
        cfg_reader: Any,
        make: Callable[[TensorGroup], torch.Tensor],
        *,
        as_stored: bool,
    ) -> None:
        """Plan one tensor that `make` makes of `inputs` (model -> its weight).

        mergekit casts to the recipe's `dtype` on loading; `as_stored` leaves that out.
        """

        def in_our_words(group: TensorGroup) -> torch.Tensor:
            try:
                return make(group)
            except ValueError as error:
                raise InputError(str(error)) from error

        planned = len(self._tensors)
        super().plan_tensor(weight, list(inputs.values()), list(inputs), cfg_reader)
        if len(self._tensors) == planned:  # mergekit skips optional tensors that nobody has
            return
        task = self._tensors[-1][1]
        update: dict[str, Any] = {"parameters": ImmutableMap({PLANNED: in_our_words})}
        if as_stored:
            update["gather_tensors"] = _as_stored(task.gather_tensors)
        self._tensors[-1] = (weight, task.model_copy(update=update))


class SwapPlanner(_LayerPlanner):
    """Plans a `layer_swap`, all of it decided and measured.

    The weights in `spec` are the measured ones, `plan` is of the decoder layers, and `inputs` says
    what each `ModelReference` is in the merge; the base is among them.
    """

    def __init__(
        self,
        *args: Any,
        spec: LayerSwapSpec,
        plan: LayerPlan,
        inputs: Mapping[Any, Input],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._spec, self._layer_plan, self._inputs = spec, plan, inputs

    def plan_tensor(
        self, weight: Any, weights_in: list[Any], models: list[Any], cfg_reader: Any
    ) -> None:
        """Plan one tensor; an average is rounded once, to the dtype in which it is saved."""
        spec, inputs = self._spec, self._inputs
        source = (
            spec.tensor_source(weight.name, self._layer, self._layer_plan)
            if self._in_decoder
            else spec.non_layer  # vision towers, projectors
        )
        roles = needed_roles(source, spec.side_weights)
        # A token may be sourced from any model and the shortest vocabulary sets the length of
        # truncated ones, so aligned vocabulary tensors keep every input.
        aligned = weight.vocabulary_axis is not None and (
            bool(self._tokenizer_task) or self.options.unsafe_truncate_embeddings
        )
        kept = {
            model: weight_in
            for model, weight_in in zip(models, weights_in, strict=True)
            if aligned
            or (
                inputs[model].is_base
                if source == "base"
                else inputs[model].role in roles and inputs[model].weight != 0
            )
        }
        dtype = None
        if source == "average":
            named = weight.force_dtype or self.config.out_dtype or self.config.dtype
            dtype = dtype_from_name(named)

        def make(group: TensorGroup) -> torch.Tensor:
            of_group = [inputs[entry.id] for entry in group.entries]
            return combine(group, source, of_group, spec.side_weights, dtype)

        self._plan_with(weight, kept, cfg_reader, make, as_stored=dtype is not None)


class RevertPlanner(_LayerPlanner):
    """Plans a `delta_revert`, all of it decided and measured.

    `layers` go back whole, and so do rows with a change below `threshold` (None: none is looked
    at). `models` gives the `ModelReference` of `expert` and `base`; `tally` is filled, tensor by
    tensor, while the merge runs.
    """

    def __init__(
        self,
        *args: Any,
        spec: RevertSpec,
        layers: frozenset[int],
        threshold: float | None,
        models: Mapping[str, Any],
        tally: dict[str, Kept],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._spec, self._layers, self._threshold = spec, layers, threshold
        self._models, self._tally = models, tally

    def plan_tensor(
        self, weight: Any, weights_in: list[Any], models: list[Any], cfg_reader: Any
    ) -> None:
        """Plan one tensor.

        Rows are compared as they are stored: rounded to the recipe's `dtype` first, a light
        fine-tune would look unchanged. What is chosen is rounded after.
        """
        rule = self._spec.rule(weight.name, self._layer, self._layers)
        wanted = [self._models[rule]] if rule != "rows" else list(self._models.values())
        given = zip(models, weights_in, strict=True)
        kept = {model: weight_in for model, weight_in in given if model in wanted}
        dtype = dtype_from_name(weight.force_dtype or self.config.dtype) if rule == "rows" else None
        model_type = str(self.out_model_config.get_text_config().model_type)

        def make(group: TensorGroup) -> torch.Tensor:
            result, self._tally[weight.name] = revert(
                group, rule, self._threshold, model_type, dtype
            )
            return result

        self._plan_with(weight, kept, cfg_reader, make, as_stored=rule == "rows")


def _as_stored(gather: Any) -> Any:
    """Return mergekit's loading task without its cast; it may stand inside one that aligns."""
    if hasattr(gather, "gather_tensors"):
        inner = _as_stored(gather.gather_tensors)
        return gather.model_copy(update={"gather_tensors": inner})
    return gather.model_copy(update={"dtype": None})
