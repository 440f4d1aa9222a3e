"""Swaps one averaged model after another into a live engine and prints how far memory rose.

Run by test_memory.py in a process of its own: BACKEND FOLDER FOLDER FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ablations.live import open_live
from layerswap_method.streams import StreamInput, linear_stream
from tests.benchmarks.watch_memory import Watch
from tests.live.models import OPTIONS


def main() -> None:
    backend, *folders = sys.argv[1:]
    live = open_live(Path(folders[0]), backend, OPTIONS)  # type: ignore[arg-type]
    live.start()
    swaps = []
    try:
        for first in (0, 1, 0):  # what a swap frees serves the next
            pair = [StreamInput(each, Path(each)) for each in (folders[first], folders[2])]
            watch = Watch()
            report = live.swap(linear_stream(pair))
            swaps.append({"bytes": report.bytes, **watch.end()})
    finally:
        live.close()
    sys.stdout.write(json.dumps(swaps) + "\n")


if __name__ == "__main__":
    main()
