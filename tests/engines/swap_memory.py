"""Swaps one averaged model after another into a live engine and prints how far memory rose.

Then half of the rows of a fine-tune, whose measuring counts as well. Run by test_memory.py in a
process of its own: BACKEND FOLDER FOLDER FOLDER TUNED, the last one tuned from the first.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from layerswap_method.delta_revert.stream import revert_stream

from ablations.engines.live import open_live
from layerswap_method.methods.delta_revert import RevertSpec
from layerswap_method.recipe.document import WeightStream, linear_stream
from layerswap_method.recipe.references import StreamInput
from tests.benchmarks.watch_memory import Watch
from tests.standins.worlds import OPTIONS


def main() -> None:
    backend, *folders = sys.argv[1:]
    live = open_live(Path(folders[0]), backend, OPTIONS)  # type: ignore[arg-type]
    live.start()
    base, _, _, tuned = inputs = [StreamInput(each, Path(each)) for each in folders]

    def average(first: int) -> WeightStream:
        return linear_stream([inputs[first], inputs[2]])

    def half_of_the_rows() -> WeightStream:
        return revert_stream(RevertSpec(keep_fraction=0.5), tuned, base)

    swaps = []
    averages = [partial(average, first) for first in (0, 1, 0)]  # what one frees serves the next
    try:
        for make in (*averages, half_of_the_rows):
            watch = Watch()
            report = live.swap(make())
            swaps.append({"bytes": report.bytes, **watch.end()})
    finally:
        live.close()
    sys.stdout.write(json.dumps(swaps) + "\n")


if __name__ == "__main__":
    main()
