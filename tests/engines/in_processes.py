"""A live vLLM engine as a server of its own; it is killed between two cells. Run by a test.

python -m tests.engines.in_processes FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import layerswap_method
from tests.standins.merging import merge_of
from tests.standins.worlds import OPTIONS, make_world


def children() -> list[int]:
    """Return the ids of this process's children that are vLLM's engine."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        if int(rest.split()[1]) == os.getpid() and "VLLM" in name:
            found.append(int(stat.parent.name))
    return found


def main(folder: Path) -> None:
    """Evaluate two cells live, kill the engine, evaluate again; compare with transformers."""
    from ablations.engines.in_place import SwapFailed
    from ablations.engines.live import open_live

    layerswap_method.register()
    world = make_world(folder, "llama_tied")
    request = world.request.model_copy(update={"tasks": ("words_prefix",)})
    streams = [merge_of(world.cells[name]) for name in ("swap", "only_k")]

    def answers(backend: str) -> list[str]:
        return [
            str([sample.answers for sample in live[backend].evaluate(stream, request).samples])
            for stream in streams
        ]

    live = {name: open_live(world.base, name, OPTIONS) for name in ("hf", "vllm")}  # type: ignore[arg-type]
    wanted = answers("hf")
    same = answers("vllm") == wanted
    engines = children()
    for each in engines:
        os.kill(each, signal.SIGKILL)
    time.sleep(1)
    try:
        live["vllm"].swap(streams[0])
        failure = ""
    except SwapFailed as error:
        failure = error.message
    again = answers("vllm") == wanted
    live["vllm"].close()
    found = {"engines": len(engines), "same": same, "failure": failure, "again": again}
    sys.stdout.write("@@" + json.dumps({**found, "distinct": len(set(wanted))}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
