"""Under which licences a merge's models stand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from layerswap_method.recipe.references import is_folder


def licence_of(reference: str, *, hub: bool) -> str | None:
    """Return the licence that a model's card states; None where none can be read.

    Args:
        reference: a folder or a hub id, as a recipe writes it; of an adapter its own.
        hub: whether the hub may be used.
    """
    from huggingface_hub import ModelCard, ModelInfo, model_info

    stated: object = None
    if is_folder(reference):
        card = Path(reference) / "README.md"
        if card.is_file():
            try:
                stated = ModelCard.load(card).data.license
            except Exception:  # a card that the hub would refuse as well
                return None
    elif hub:
        name, _, revision = reference.partition("@")
        try:
            found: ModelInfo = model_info(name, revision=revision or None)
        except Exception:  # no such model, no network, no access
            return None
        stated = found.card_data.license if found.card_data is not None else None
    return stated if isinstance(stated, str) and stated else None


def common_licence(licences: Mapping[str, str | None]) -> str | None:
    """Return the one licence of all models; None where they differ or one is unknown."""
    stated = set(licences.values())
    return next(iter(stated)) if len(stated) == 1 else None


def licence_note(licences: Mapping[str, str | None]) -> str:
    """Return what a card says of the licences, in Markdown."""
    rows = [f"- `{model}`: {licence or 'not stated'}" for model, licence in licences.items()]
    if (one := common_licence(licences)) is not None:
        return f"All merged models are under {one}, and so is this one.\n\n" + "\n".join(rows)
    unknown = any(licence is None for licence in licences.values())
    why = "not every merged model states one" if unknown else "the merged models' licences differ"
    return (
        f"No licence is stated for this model, because {why}. Whoever uses or shares it must "
        "follow the terms of all of them:\n\n" + "\n".join(rows)
    )
