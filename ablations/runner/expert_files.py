"""Whether the files of experts are those that a study was planned with. Reads no weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ablations.models.find import Expert, here
from layerswap_method.errors import InputError, LayerSwapError


def check_unchanged(experts: Iterable[Expert], states: Mapping[str, str]) -> None:
    """Check that experts are there and were not changed.

    Args:
        experts: those that are read.
        states: folder -> `folder_state` when the study was planned.

    Raises:
        LayerSwapError: where one is gone or was changed.
    """
    from ablations.study.identity import folder_state

    for expert in experts:
        for folder in (expert.folder, *([expert.adapter] if expert.adapter else [])):
            if not any(any(folder.glob(kind)) for kind in ("*.safetensors", "*.bin")):
                raise LayerSwapError(
                    f"expert {expert.name!r} has disappeared: no weights in {folder} any more; "
                    "put it back and run the study again"
                )
            if states.get(str(folder)) not in (None, folder_state(folder)):
                raise LayerSwapError(
                    f"expert {expert.name!r} has changed since the study began ({folder}); "
                    "run the study again"
                )


def here_or_there(expert: Expert) -> Expert:
    """Return an expert where it is on this machine, or as it is where it is not.

    Then its cells fail and say so; the others do not need it.
    """
    try:
        return here(expert)
    except InputError:
        return expert
