"""Swaps one averaged model after another into a live engine and prints how far memory rose.

Then half of the rows of a fine-tune, whose measuring counts as well. Run by test_memory.py in a
process of its own: BACKEND FOLDER FOLDER FOLDER TUNED, the last one tuned from the first.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from ablations.engines.live import open_live
from layerswap_method.recipe.document import Merge
from tests.benchmarks.watch_memory import Watch
from tests.standins.merging import linear_recipe, merge_of, revert_recipe
from tests.standins.worlds import OPTIONS


def main() -> None:
    backend, *folders = sys.argv[1:]
    live = open_live(Path(folders[0]), backend, OPTIONS)  # type: ignore[arg-type]
    live.start()
    base, *_, tuned = folders

    def average(first: int) -> Merge:
        return merge_of(linear_recipe([folders[first], folders[2]]))

    def half_of_the_rows() -> Merge:
        return merge_of(revert_recipe(tuned, base, {"keep_fraction": 0.5}))

    swaps = []
    averages = [partial(average, first) for first in (0, 1, 0)]  # what one frees serves the next
    try:
        for make in (*averages, half_of_the_rows):
            watch = Watch()
            live.swap(make())
            swaps.append(watch.end())
    finally:
        live.close()
    sys.stdout.write(json.dumps(swaps) + "\n")


if __name__ == "__main__":
    main()
