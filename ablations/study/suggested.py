"""``suggest: true`` in a study: the swap that `layerswap suggest` proposes for the experts at hand.

Found when a study is planned, from the experts' files, so that the study holds the layer counts
that its cells are made of. The rule is in `ablations.delta.suggest_rule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ablations.delta.suggest_rule import suggest_swap
from ablations.machine.progress import counted
from ablations.models.find import Expert
from ablations.study.documents import LAYER_SWAP
from ablations.study.scaling import COUNTS
from ablations.study.schema import SUGGEST, Setting, Study
from layerswap_method.errors import InputError
from layerswap_method.methods.delta_share import THRESHOLD
from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.methods.layer_swap_measure import measure
from layerswap_method.recipe.references import StreamInput

_CHOSEN = (*COUNTS, "placement")
"""What a suggestion decides, so that nobody else may."""


def suggestion_problems(study: Study) -> Iterator[str]:
    """Yield what is wrong with the settings that ask for a suggestion."""
    recipe = study.recipe or {}
    for setting in study.settings():
        if SUGGEST not in setting:
            continue
        if recipe.get("merge_method") != LAYER_SWAP:
            yield f"vary: {SUGGEST} needs merge_method: layer_swap"
            return
        if not isinstance(setting[SUGGEST], bool):
            yield f"vary: {SUGGEST} is {setting[SUGGEST]!r}; write {SUGGEST}: true"
        elif setting[SUGGEST]:
            for name in _CHOSEN:
                if name in setting:
                    yield f"vary: {SUGGEST}: true chooses {name}; leave {name} out of that setting"
            pools = study.pools(setting)
            for role in ("task", "language"):
                if len(pools.names(role)) > 1:
                    yield (
                        f"vary: {SUGGEST}: true needs one {role} expert, and the study has "
                        f"{len(pools.names(role))}; choose one with experts.{role} in that setting"
                    )


def asks_suggestion(study: Study) -> bool:
    """Return whether some setting is to be found from the experts."""
    return any(setting.get(SUGGEST) for setting in study.settings())


def with_suggestions(
    study: Study, experts: Mapping[str, Expert], num_layers: int
) -> tuple[Study, tuple[str, ...]]:
    """Return the study with the proposed layer counts in its settings, and what to tell.

    Reads the decoder layers of base, task and language expert once. A setting for which no swap is
    proposed is left out, and a note says why.

    Raises:
        InputError: where no setting is left, or an expert cannot be read.
    """
    settings: list[Setting] = []
    notes = []
    for setting in study.settings():
        if not setting.get(SUGGEST):
            settings.append(setting)
            continue
        pools = study.pools(setting)
        inputs = [
            StreamInput(
                name, experts[name].folder, role=role or None, adapter=experts[name].adapter
            )
            for role, name in (
                *(("task", name) for name in pools.task),
                *(("language", name) for name in pools.language_names()),
                ("", pools.base),
            )
        ]
        spec = LayerSwapSpec(placement="delta_share", delta_threshold=THRESHOLD)
        units = measure(spec, inputs[:-1], inputs[-1], num_layers, counted).units
        found = suggest_swap(
            [unit.task_share for unit in units], [unit.language_share for unit in units]
        )
        if found.refusal is not None:
            notes.append(f"layerswap suggest proposes no swap: {found.refusal}")
            continue
        counts = {n: c for n, c in found.counts.items() if c or n.endswith("_layers")}
        settings.append({**setting, **counts})
        told = " ".join(f"{name}={count}" for name, count in counts.items())
        notes.append(f"layerswap suggest proposes {told} for these experts")
    if not settings:
        raise InputError(f"vary: nothing is left to run; {notes[0]}")
    vary = tuple(dict(setting) for setting in settings)
    return study.model_copy(update={"vary": vary}), tuple(notes)
