"""What hashing the experts' weights costs before an engine begins to load them, beside `cat`.

    python tests/benchmarks/bench_hashes.py [--gb 16] [--models 3] [--work DIR] [--json FILE]

Writes folders in the form of experts of four weight files each, which are sparse: they take no
room, and the kernel reads zeros as fast as memory, so that no disk is measured. Then the content of
all is found out as a study does when it is planned: a first study, and a second one, which shares
the hashes of files with it. `cat` reads the same files before and after. On a real disk the first
study takes as long as reading takes, where that is slower.
Absolute times mean nothing outside this machine, ratios to `cat` do.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import click

from ablations.machine.fingerprint import FileHashes, checkpoint_files
from ablations.study.identity import Fingerprints

SHARDS = 4


def write_expert(folder, nbytes):
    """Write a config and sparse files of weights, `nbytes` together."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"name": folder.name}), encoding="utf-8")
    size = nbytes // SHARDS
    for number in range(SHARDS):
        entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
        head = json.dumps({f"{folder.name}.{number}": entry}).encode()
        head += b" " * (-len(head) % 8)
        with (folder / f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors").open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            file.truncate(8 + len(head) + size)


def plan_seconds(folders, hashes):
    """Return the seconds in which a study knows the content of `folders`."""
    started = time.perf_counter()
    fingerprints = Fingerprints(FileHashes(hashes))
    fingerprints.read(folders)
    contents = {fingerprints.of(folder) for folder in folders}
    assert len(contents) == len(folders)
    return time.perf_counter() - started


def cat_seconds(folders):
    """Return the seconds of `cat` of all weights."""
    files = [file for folder in folders for file in sorted(checkpoint_files(folder))]
    started = time.perf_counter()
    subprocess.run(["cat", *files], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


@click.command()
@click.option("--gb", default=16.0, show_default=True, help="Of weights a model.")
@click.option("--models", default=3, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), help="Where the files are written.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
def main(gb, models, work, json_file):
    """Measure and print the table."""
    scratch = Path(tempfile.mkdtemp(dir=work))
    try:
        folders = [scratch / f"expert_{number}" for number in range(models)]
        for folder in folders:
            write_expert(folder, int(gb * 1e9))
        load, hashes = os.getloadavg()[0], scratch / "sha256.jsonl"
        cat_s = cat_seconds(folders)
        seconds = {
            "first study": plan_seconds(folders, hashes),
            "second study": plan_seconds(folders, hashes),
        }
        figures = {
            "models": models,
            "bytes": sum(
                file.stat().st_size for folder in folders for file in checkpoint_files(folder)
            ),
            "files": "sparse",
            "cores": len(os.sched_getaffinity(0)),
            "load_before": load,
            "load_after": os.getloadavg()[0],
            "cat_s": {"before": cat_s, "after": cat_seconds(folders)},
            "s": seconds,
        }
    finally:
        shutil.rmtree(scratch)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    size = figures["bytes"] / 1e9
    before, after = figures["cat_s"].values()
    click.echo(
        f"{models} models, {size:.1f} GB, {figures['cores']} cores, load {load:.1f}; "
        f"cat {before:.1f} s, after that {after:.1f} s"
    )
    for name, wall_s in seconds.items():
        click.echo(f"{name}: {wall_s:.4g} s, {size / wall_s:.3g} GB/s, {wall_s / before:.3g} cat")


if __name__ == "__main__":
    main()
