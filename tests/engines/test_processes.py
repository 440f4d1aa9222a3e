"""vLLM in other processes: as a server that may die, and spread over two workers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ablations.engines import vllm_engine
from ablations.engines.live import LiveEvaluator, SwapFailed
from ablations.requests.resolve import resolve
from tests.engines.backends import VLLM
from tests.standins.live_cells import OPTIONS, make_world
from tests.standins.merging import merge_of

pytestmark = [*VLLM, pytest.mark.slow]


def texts(evaluation):
    return [each.responses for each in evaluation.samples_of("words_prefix")]


def likelihoods(evaluation):
    pairs = (each.responses for each in evaluation.samples_of("words_choose"))
    return [float(response[0]) for responses in pairs for response in responses]


def test_workers_in_other_processes_and_an_engine_that_dies(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.test_processes", str(tmp_path)],
        env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("@@")]
    assert len(lines) == 1, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(lines[0][2:])
    failure = found.pop("failure")
    assert found == {"engines": 1, "same": True, "again": True, "distinct": 2}
    assert "did not get into the engine: EngineDeadError" in failure


@pytest.mark.skipif(not vllm_engine.is_cpu_build(), reason="vLLM's CPU build is not installed")
def test_two_workers_swap_and_say_what_transformers_says(tmp_path):
    """The vocabulary is so small that the second worker's part of it is padding alone."""
    world = make_world(tmp_path, "llama")
    tasks = resolve(world.request.model_copy(update={"limit": 4}))
    cells = ("swap", "only_k", "base")

    def evaluated(backend, workers):
        options = OPTIONS.model_copy(update={"tensor_parallel_size": workers})
        live = LiveEvaluator(world.base, backend, options)
        try:
            found = [live.evaluate(merge_of(world.cells[name]), tasks) for name in cells]
            live.check()
        finally:
            live.close()
        return found

    wanted, given = evaluated("hf", 1), evaluated("vllm", 2)
    assert len({str(texts(each)) for each in wanted}) == len(cells)
    for one, other in zip(wanted, given, strict=True):
        assert texts(one) == texts(other)
        assert likelihoods(other) == pytest.approx(likelihoods(one), abs=1e-4)


def main(folder):
    """Evaluate two cells live, kill the engine, evaluate again; compare with transformers."""
    import layerswap_method

    layerswap_method.register()
    world = make_world(folder, "llama_tied")
    tasks = world.tasks.only("words_prefix")
    merges = [merge_of(world.cells[name]) for name in ("swap", "only_k")]

    def answers(live):
        return [texts(live.evaluate(merge, tasks)) for merge in merges]

    hf, vllm = (LiveEvaluator(world.base, name, OPTIONS) for name in ("hf", "vllm"))
    wanted = answers(hf)
    same = answers(vllm) == wanted
    engines = [child for child in psutil.Process().children() if "VLLM" in child.name()]
    for each in engines:
        each.kill()
    time.sleep(1)
    try:
        vllm.swap(merges[0])
        failure = ""
    except SwapFailed as error:
        failure = error.message
    again = answers(vllm) == wanted
    vllm.close()
    found = {"engines": len(engines), "same": same, "failure": failure, "again": again}
    sys.stdout.write("@@" + json.dumps({**found, "distinct": len({*map(str, wanted)})}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
