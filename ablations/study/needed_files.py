"""The parts of their experts that cells of a study read: parts of some, all of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ablations.machine.progress import Step, byte_progress, show_step
from ablations.models.find import Expert
from ablations.study.cells import MadeCell
from ablations.study.made_by import headers_tell
from layerswap_method.hub.downloads import Downloads
from layerswap_method.hub.ranges import Range
from layerswap_method.methods.table import merge_open_models, open_models


class NeededFiles(NamedTuple):
    """The parts of experts that are read: some folders whole, and byte ranges of files."""

    whole: set[Path]
    ranges: Mapping[Path, list[Range]]


def needed_files(cells: Iterable[MadeCell], experts: Iterable[Expert], base: Expert) -> NeededFiles:
    """Return what cells read of experts, whose headers are here.

    What is evaluated unmerged, merged by mergekit, or measured is read whole, and so is the base,
    on which an engine for merges starts.
    """
    models = {expert.reference: expert for expert in experts}
    whole, ranges = set[Path](), dict[Path, list[Range]]()
    cells = list(cells)
    partly = [cell.recipe for cell in cells if _reads_parts(cell)]
    opened = open_models(partly, models)
    for cell in cells:
        recipe = cell.recipe
        if recipe.unmerged is None:
            whole.update(base.folders)
        if _reads_parts(cell):
            for file, spans in merge_open_models(recipe, opened).ranges.items():
                ranges.setdefault(file, []).extend(spans)
        else:
            for reference in recipe.references:
                whole.update(models[reference].folders)
    return NeededFiles(whole, ranges)


def _reads_parts(cell: MadeCell) -> bool:
    return cell.recipe.unmerged is None and headers_tell(cell.recipe, cell.made_by)


def fetch_needed_files(
    hub: Downloads, cells: Iterable[MadeCell], experts: Iterable[Expert], base: Expert
) -> None:
    """Fetch what cells read of experts, each byte once."""
    show_step(Step(""))  # huggingface_hub shows its own bars
    with hub.fetching(byte_progress):
        reads = needed_files(cells, experts, base)
    hub.fetch_whole(reads.whole)
    hub.fetch(reads.ranges, byte_progress)
