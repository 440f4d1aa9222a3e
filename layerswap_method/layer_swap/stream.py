"""The tensors of a `layer_swap` merge, as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from layerswap_method.algorithm.coefficients import Input, source_terms
from layerswap_method.algorithm.plan import LayerPlan, Source
from layerswap_method.algorithm.tensor_names import layer_part, split_layer
from layerswap_method.checkpoints.compatible import same_vocabulary
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.spec import LayerSwapSpec
from layerswap_method.stream.mix import TensorMix
from layerswap_method.stream.weight_stream import (
    WeightStream,
    copy_mix,
    read_models,
    weight_names,
    written,
)


@dataclass(frozen=True)
class SwapStream(WeightStream):
    """The stream of a `layer_swap`."""

    plan: LayerPlan = LayerPlan(())  # noqa: RUF009 - frozen
    """Source of each decoder layer."""

    tokenizer_from: str | None = None
    """Whose vocabulary, tokenizer and config it has, where those of the models differ in size."""


def layer_swap_stream(
    spec: LayerSwapSpec,
    inputs: Sequence[StreamInput],
    base: StreamInput,
    dtype: str | None = None,
    out_dtype: str | None = None,
) -> SwapStream:
    """Return the stream of a `layer_swap` recipe with ``models:``.

    Args:
        spec: the recipe's top-level parameters.
        inputs: the experts in the recipe's order, each with a role.
        base: the recipe's ``base_model``: donor of config and tokenizer (unless it has another
            vocabulary than the model whose rows are taken, which is the donor then), source of
            ``non_layer: base``, and what changes are measured from (then all weights are read
            here); else may be one of the experts.
        dtype: the recipe's ``dtype``.
        out_dtype: the recipe's ``out_dtype``.

    Raises:
        InputError: with every problem of the first kind found: files, adapters, experts that do
            not fit each other, layer counts that do not fit the model, a base that the experts
            were not trained from.
    """
    as_given = [*(Input(given.role, given.weight) for given in inputs), Input(is_base=True)]
    try:
        givers = [[*inputs, base][i] for i in spec.vocabulary_givers(as_given)]
    except ValueError as error:
        raise InputError(f"layer_swap: {error}") from error
    models = read_models([*inputs, base], givers)
    by_files = {model.given.files: model for model in reversed(models)}
    giver, donor = by_files[givers[0].files], by_files[base.files]
    others = [each for each in models if not same_vocabulary(giver.checkpoint, each.checkpoint)]
    if donor in others:
        donor = giver
    check_swap_modules(spec, models[0].given.name, models[0].checkpoint.tensors)
    num_layers = models[0].checkpoint.depth()
    plan, record, given_weights = None, None, [given.weight for given in inputs]
    if spec.needs_deltas:
        from layerswap_method.layer_swap.measure import measure
        from layerswap_method.layer_swap.report import measured_record

        measured = measure(spec, inputs, base, num_layers)
        record = measured_record(measured)
        plan, given_weights = measured.plan, list(measured.weights.models)
        spec = measured.weights.applied_to(spec)
    given_inputs = [
        *(Input(given.role, w) for given, w in zip(inputs, given_weights, strict=True)),
        Input(is_base=True),
    ]
    try:
        plan = plan or spec.plan(num_layers)
        sources = {name: spec.named_source(name, plan) for name in weight_names(models)}
        made_of = {
            name: source_terms(name, source, given_inputs, spec.side_weights)
            for name, source in sources.items()
        }
    except ValueError as error:
        raise InputError(f"layer_swap: {error}") from error

    def mix(name: str, source: Source) -> TensorMix:
        terms = made_of[name]
        used = [
            (models[i], coefficient)
            for i, coefficient in zip(terms.inputs, terms.coefficients, strict=True)
            if coefficient != 0
        ]
        if len(used) == 1 and used[0][1] == terms.divisor:
            return copy_mix(used[0][0], name, dtype, out_dtype)
        return TensorMix(
            terms=tuple((model.origin(name), coefficient) for model, coefficient in used),
            divisor=terms.divisor,
            # Averages of both experts are rounded once, to what is saved; the planner has mergekit
            # round everything else on loading.
            load_dtype=None if source == "average" else dtype,
            dtype=(out_dtype or dtype) if source == "average" else None,
            out_dtype=out_dtype,
        )

    return SwapStream(
        written({name: mix(name, source) for name, source in sources.items()}),
        donor=donor.given.folder,
        model_dtype=out_dtype or dtype or donor.config_dtype,
        description=f"layer_swap of {', '.join(given.name for given in inputs)}",
        measured=record,
        plan=plan,
        tokenizer_from=donor.given.name if others else None,
    )


def check_swap_modules(spec: LayerSwapSpec, model: str, names: Iterable[str]) -> None:
    """Check that the layers of a model have what ``swap_modules`` names.

    Raises:
        InputError: with what its layers have.
    """
    parts = {layer_part(name) for name in names if split_layer(name)[0] is not None}
    if spec.swap_modules not in ("all", *parts):
        raise InputError(
            f"layer_swap recipe: swap_modules is {spec.swap_modules}, but the layers of {model} "
            f"have no such tensors (found: {', '.join(sorted(parts)) or 'no layers'})"
        )
