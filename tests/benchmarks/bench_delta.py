"""What the delta of two checkpoints costs: `layerswap delta` against reading the same bytes.

    python tests/benchmarks/bench_delta.py [--gib 1.2] [--repeats 3] [--work DIR] [--json FILE]

Makes a random base and an expert near it (Llamas of 16 layers, 4 shards) in bfloat16 and in
float32, and runs in turn, so that a busy machine hits all of them: `cat` of both checkpoints to
/dev/null; the analysis of them in a fresh process, timed from the first header to the last
statistic; and the whole command `layerswap delta`, which also starts Python, imports torch and
draws. Every way runs warm (files in the page cache) and cold (dropped from it before). Absolute
times mean nothing outside this machine, ratios do.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

import click
from processes import benchmark, forget, run, sized_llama

LAYERS = 16
DTYPES = ("bfloat16", "float32")


def make_pair(folder: Path, dtype: str, gib: float) -> None:
    """Save a random base of about `gib` GiB and an expert near it."""
    import torch

    model = sized_llama(gib, dtype, LAYERS, 1)
    shard = max(2**20, int(gib * 2**30 / 3.5))
    model.save_pretrained(folder / "base", max_shard_size=shard)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (1e-4 * torch.randn(parameter.shape)).to(parameter.dtype)
    model.save_pretrained(folder / "expert", max_shard_size=shard)


ANALYSE = """
import json, sys, time
import torch
from ablations.delta.analysis import analyse
wall, cpu = time.perf_counter(), time.process_time()
analyse([sys.argv[1]], sys.argv[2])
print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}))
"""


def weights(folder: Path) -> list[Path]:
    """Return the files of weights of a pair."""
    found = sorted(folder.rglob("*.safetensors"))
    if not found:
        raise SystemExit(f"no weights in {folder}")
    return found


def largest_tensor(folder: Path) -> int:
    """Return the values of the largest tensor."""
    from safetensors import safe_open

    largest = 0
    for file in weights(folder):
        with safe_open(str(file), "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                values = 1
                for axis in opened.get_slice(name).get_shape():
                    values *= axis
                largest = max(largest, values)
    return largest


def measure(work: Path, gib: float, repeats: int) -> dict[str, Any]:
    """Make the pairs, run every way in turn, return the figures."""
    command = str(Path(sys.executable).parent / "layerswap")
    figures: dict[str, Any] = {"repeats": repeats, "cores": os.cpu_count(), "dtypes": {}}
    for dtype in DTYPES:
        pair = work / dtype
        if not (pair / "expert" / "config.json").exists():
            click.echo(f"making {dtype}", err=True)
            # In a process of its own: a child's peak memory starts from its parent's.
            maker = multiprocessing.get_context("spawn").Process(
                target=make_pair, args=(pair, dtype, gib)
            )
            maker.start()
            maker.join()
        ends = [str(pair / "expert"), str(pair / "base")]
        ways = {
            "cat": ["sh", "-c", f"cat {' '.join(map(str, weights(pair)))} > /dev/null"],
            "analysis": [sys.executable, "-c", ANALYSE, *ends],
            "command": [command, "delta", ends[0], "--base", ends[1], "--out", str(pair / "out")],
        }
        found: dict[str, dict[str, list[float]]] = {}
        for i in range(repeats + 1):  # the first round reads programs and is not counted
            for kind in ("warm", "cold"):
                for name, way in ways.items():
                    click.echo(f"{dtype}, round {i} of {repeats}: {name} {kind}", err=True)
                    if kind == "cold":
                        forget(pair)
                    else:
                        run(ways["cat"])
                    for key, value in run(way).items() if i else ():
                        found.setdefault(f"{name} {kind}", {}).setdefault(key, []).append(value)
        figures["dtypes"][dtype] = {
            "pair_bytes": sum(file.stat().st_size for file in weights(pair)),
            "largest_tensor_float32_bytes": 4 * largest_tensor(pair),
            "load": os.getloadavg()[0],
            "ways": {
                name: {key: median(values) for key, values in each.items()}
                for name, each in found.items()
            },
        }
    return figures


def report(figures: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        f"median of {figures['repeats']} rounds, {figures['cores']} cores",
        "| pair | cache | cat s | analysis / cat | analysis CPU / cat CPU | command / cat "
        "| peak MiB | 3 largest + 300 MiB | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for dtype, found in figures["dtypes"].items():
        limit = 3 * found["largest_tensor_float32_bytes"] / 2**20 + 300
        for kind in ("warm", "cold"):
            cat, analysis, command = (
                found["ways"][f"{name} {kind}"] for name in ("cat", "analysis", "command")
            )
            lines.append(
                f"| {found['pair_bytes'] / 2**30:.2f} GiB {dtype} | {kind} | {cat['wall_s']:.2f} "
                f"| {analysis['wall_s'] / cat['wall_s']:.2f} "
                f"| {analysis['cpu_s'] / cat['cpu_s']:.2f} "
                f"| {command['wall_s'] / cat['wall_s']:.1f} "
                f"| {command['peak_bytes'] / 2**20:.0f} | {limit:.0f} | {found['load']:.1f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    # `make bench` gives every benchmark one thread; this command uses the cores there are, as `cat`
    # uses the disk there is.
    os.environ.pop("OMP_NUM_THREADS", None)
    benchmark(1.2, measure, report)()
