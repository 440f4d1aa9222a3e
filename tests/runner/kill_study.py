"""Kill a real study again and again, let it finish, and compare it with one left in peace.

    python -m tests.runner.kill_study [--kills 30] [--backend hf|vllm] [--seed 0] [--work DIR]

Runs `layerswap run` in a process of its own, on random Llamas of four layers with the real engine,
and ends it with SIGKILL at seeded random moments: while it starts, while it evaluates, sometimes
its engine first. After every kill no process of it may be left (an engine that outlives its runner
holds a GPU for nobody), and no finished cell may have been written again. At the end all scores
and samples must be byte for byte those of the undisturbed run. About half a minute a kill on a
busy machine with two cores; `make kill-study` runs it, a test makes one kill.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
import psutil

from tests.runner.fakes import scores_by_label
from tests.standins.studies import study_document, write_expert, write_tasks, write_yaml

ROOT = Path(__file__).parents[2]
GRACE_S = 30.0
"""How long processes may take to notice that their runner is gone."""


@dataclass
class Kills:
    """What was done to a study, and what it did."""

    while_starting: int = 0
    """Kills of a runner before its first new cell."""

    while_evaluating: int = 0
    """Kills of a runner after that."""

    engine_first: int = 0
    """Of those, how many killed the engine's process a moment before."""

    progress: list[int] = field(default_factory=list)
    """Cells that each killed run finished."""

    processes: int = 0
    """Processes of killed runs that had to end by themselves."""

    slowest_end_s: float = 0.0
    """How long the last of them took, at most."""

    cells: int = 0
    """Cells of the study."""

    wall_s: float = 0.0
    """All of it, without the undisturbed run."""


def write_study(folder: Path, backend: str, weights: int) -> list[str]:
    """Write experts, task and study; return the arguments of `layerswap run` but for --out.

    The study has six cells for each of `weights` weights (of the averaged embeddings, so that no
    two cells are one model) and two baselines.
    """
    names = {}
    for seed, name in enumerate(("base", "math", "swahili")):
        names[name] = str(write_expert(folder / name, seed, hidden=64))  # vLLM: heads of 32
    tasks = write_tasks(folder / "tasks", ["words"], items=8)
    experts = write_yaml(folder / "experts.yml", {"experts": names, "include_path": str(tasks)})
    document = study_document(
        vary={
            "bottom_layers": [0, 1, 2],
            "top_layers": [0, 1],
            "task_weight": list(range(1, weights + 1)),
            "non_layer": ["average"],
        },
        evaluate={
            "tasks": ["words"],
            "options": {"batch_size": 8, "kv_cache_gib": 1, "gpu_memory_utilization": 0.3},
        },
    )
    study = write_yaml(folder / "small.yml", document)
    return [str(study), "--experts", str(experts), "--backend", backend]


def start(arguments: list[str], out: Path, log: Path) -> psutil.Popen:
    """Start `layerswap run`."""
    code = "from ablations.cli import main; main()"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    with log.open("ab") as file:
        return psutil.Popen(
            [sys.executable, "-c", code, "run", *arguments, "--out", str(out)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path},
            stdout=file,
            stderr=file,
        )


def finished(out: Path) -> dict[str, int]:
    """Return the records and when each was written, in ns."""
    return {path.name: path.stat().st_mtime_ns for path in out.glob("records/[!.]*")}


def kill_once(
    arguments: list[str], out: Path, log: Path, rng: random.Random, kills: Kills, start_s: float
) -> None:
    """Start the study where it stands, and kill it at a random moment."""
    before = finished(out)
    runner = start(arguments, out, log)
    began = time.monotonic()
    if rng.random() < 0.3:
        wait(runner, out, len(before) + 1, rng.uniform(0, start_s))
    else:
        wait(runner, out, len(before) + rng.randint(1, 3), 10 * GRACE_S)
        time.sleep(rng.uniform(0, 0.5))
    family = runner.children(recursive=True)
    engines = [p for p in family if "spawn_main" in " ".join(p.cmdline())]
    if engines and rng.random() < 0.3:
        rng.choice(engines).kill()
        kills.engine_first += 1
        time.sleep(rng.uniform(0, 0.3))
        family = list({*family, *runner.children(recursive=True)})
    if runner.poll() is not None:
        raise SystemExit(f"the study ended before it was killed often enough; see {log}")
    runner.kill()
    runner.wait()
    ended = time.monotonic()
    _, left = psutil.wait_procs(family, timeout=GRACE_S)
    if left:
        raise SystemExit(f"still there {GRACE_S} s after their runner: {left}")
    now = finished(out)
    if any(now.get(key) != stamp for key, stamp in before.items()):
        raise SystemExit("a record was written again")
    kills.processes += len(family)
    kills.slowest_end_s = max(kills.slowest_end_s, time.monotonic() - ended)
    kills.progress.append(len(now) - len(before))
    if kills.progress[-1]:
        kills.while_evaluating += 1
    else:
        kills.while_starting += 1
    click.echo(
        f"kill {len(kills.progress)}: after {ended - began:.1f} s, {len(now)} cells", err=True
    )


def wait(runner: psutil.Popen, out: Path, cells: int, longest_s: float) -> None:
    """Wait until so many cells are finished, the time is over, or the runner has ended."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline and runner.poll() is None and len(finished(out)) < cells:
        time.sleep(0.05)


def finish(arguments: list[str], out: Path, log: Path) -> float:
    """Run the study to its end; return the seconds until its first new cell."""
    runner = start(arguments, out, log)
    began, before = time.monotonic(), len(finished(out))
    wait(runner, out, before + 1, 20 * GRACE_S)
    first = time.monotonic() - began
    if runner.wait() != 0:
        raise SystemExit(f"the study failed; see {log}")
    return first


def run(work: Path, backend: str, count: int, seed: int, weights: int) -> Kills:
    """Run the study of `write_study` twice, one of them with `count` kills, and compare.

    Raises:
        SystemExit: where anything is not as it must be, saying what.
    """
    arguments, log = write_study(work / "given", backend, weights), work / "log.txt"
    start_s = finish(arguments, work / "undisturbed", log)
    kills, rng, began = Kills(), random.Random(seed), time.monotonic()
    for _ in range(count):
        kill_once(arguments, work / "killed", log, rng, kills, start_s)
    finish(arguments, work / "killed", log)
    kills.wall_s = time.monotonic() - began
    wanted, found = (scores_by_label(work / name) for name in ("undisturbed", "killed"))
    kills.cells = len(wanted)
    if found != wanted:
        raise SystemExit("the killed study's scores or samples are not the undisturbed one's")
    if len({samples for _, samples, _ in wanted.values()}) < 4:
        raise SystemExit("the cells do not differ: equal records would say nothing")
    if left := [*(work / "killed").glob("records/.*"), *(work / "killed").glob("failures/*")]:
        raise SystemExit(f"left behind: {left}")
    return kills


@click.command()
@click.option("--kills", default=30, show_default=True)
@click.option("--weights", default=20, show_default=True, help="A sixth of the cells.")
@click.option("--backend", type=click.Choice(["hf", "vllm"]), default="hf", show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the moments.")
@click.option("--work", type=click.Path(path_type=Path), help="A new folder to keep.")
def main(kills: int, weights: int, backend: str, seed: int, work: Path | None) -> None:
    """Kill a real study, let it finish, compare."""
    with tempfile.TemporaryDirectory() as temporary:
        found = run(work or Path(temporary), backend, kills, seed, weights)
    click.echo(json.dumps(vars(found)))


if __name__ == "__main__":
    main()
