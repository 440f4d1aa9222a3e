"""Whether several models can be merged as they are, and whether they descend from a base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ablations.models.find import open_model
from layerswap_method.checkpoint.origin import is_far, sampled_change
from layerswap_method.errors import InputError, counted
from layerswap_method.hub.downloads import Downloads
from layerswap_method.methods.check import check_models
from layerswap_method.recipe.document import OtherRecipe


@dataclass(frozen=True)
class Compatibility:
    """What the one check says of several models; as text, with a last line that sums up."""

    names: tuple[str, ...]
    """The models, as the user wrote them."""

    problems: tuple[str, ...]
    """Reasons for which a merge method refuses them as they are; empty where it takes them."""

    warnings: tuple[str, ...]
    """What to know of a merge of them."""

    base: str | None = None
    """The model that they may descend from."""

    changes: tuple[float | None, ...] = ()
    """For each model, `sampled_change` from the base; None where no shape fits."""

    def __str__(self) -> str:
        lines = [*(f"- {problem}" for problem in (*self.problems, *self.warnings))]
        for name, change in zip(self.names, self.changes, strict=False):
            lines.append(f"- {name} descends from {self.base}: {_descends(change)}")
        return "\n".join([*lines, self.verdict()])

    def verdict(self) -> str:
        """Return whether they can be merged, in one sentence."""
        if self.problems:
            return (
                f"The merge methods refuse these models: {counted(len(self.problems), 'problem')}."
            )
        return "The merge methods take these models as they are."


def check_compatibility(references: Sequence[str], base: str | None = None) -> Compatibility:
    """Return whether several models can be merged, as an average of all of them.

    Configs, headers and tokenizers are read, and with `base` a few rows of the weights.

    Args:
        references: two or more folders or hub ids, or either with a LoRA: BASE+ADAPTER.
        base: the folder or hub id of what they may descend from.

    Raises:
        InputError: for a model that is missing or not readable, fewer than two, or a base that none
            descends from.
    """
    if len(references) < 2:
        raise InputError("compat compares models: give two or more")
    hub = Downloads("ranges")  # a few rows
    recipe = OtherRecipe.unread({"merge_method": "linear"}, "it stands for any average")
    with hub.fetching():
        models = {reference: open_model(reference, hub) for reference in references}
        checkpoints = {reference: model.checkpoint for reference, model in models.items()}
        checked = check_models(recipe, checkpoints, by_mergekit=False)
        changes: tuple[float | None, ...] = ()
        if base is not None:
            parent = open_model(base, hub).checkpoint
            opened = (models[reference] for reference in references)
            changes = tuple(
                sampled_change(model.checkpoint.tensors, parent.tensors, model.changes)
                for model in opened
            )
    if base is not None and all(change is None or is_far(change) for change in changes):
        raise InputError(
            f"--base {base}: none of {', '.join(references)} descends from it (||delta|| / "
            f"||weights|| in a sample: {', '.join(map(_descends, changes))}; of a fine-tune it "
            "is far below 0.5); give their pretrained parent, or leave --base out"
        )
    return Compatibility(tuple(references), checked.problems, checked.warnings, base, changes)


def _descends(change: float | None) -> str:
    if change is None:
        return "no (other shapes)"
    return f"{'no' if is_far(change) else 'yes'} ({change:.3f})"
