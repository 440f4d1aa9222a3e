"""What a merge costs: `mergekit-yaml` and `layerswap merge` against their peers, on one machine.

    python tests/benchmarks/bench_merge.py [--gib 1.6 | --shape llama-3.2-3b | --shape llama-3.1-8b]
        [--ways cp,merge,...] [--repeats 3] [--work DIR] [--json FILE]

Writes two random bf16 Llamas, merges them in ways that give the same tensors (which is checked;
"copies" is a swap that averages nothing, and so needs no torch), and copies one with `cp -r` as the
floor. The ways take turns, so a busy machine hits all of them.
Cold: the inputs' pages are dropped by POSIX_FADV_DONTNEED after a sync (read GB says how well that
went). Warm: as the way before left them. "Synced" ends when the output is on the disk. Needs three
times the size of a model on the disk. Absolute times mean nothing outside this machine, ratios do.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click
import yaml
from processes import forget, run
from random_llama import SHAPES, sized_shape

from layerswap_method.checkpoint.checkpoint import read_checkpoint

B, U, TB, TU = 4, 2, 1, 1
LAYERS = "num_hidden_layers"
WAYS = ("python", "imports", "cp", "merge", "layer_swap", "copies", "linear", "slices")


def recipes(task, language, layers):
    """Return the same merge, written three ways."""
    base = {"base_model": str(task)}
    swapped = [*range(B), *range(layers - U, layers)]
    averaged = [*range(B, B + TB), *range(layers - U - TU, layers - U)]

    def role(model, name):
        return {"model": str(model), "parameters": {"role": name}}

    def filtered(model, own, other):
        weights = [{"filter": f".layers.{i}.", "value": 1.0} for i in own] + [
            {"filter": f".layers.{i}.", "value": 0.0} for i in other
        ]
        return {"model": str(model), "parameters": {"weight": [*weights, {"value": 0.5}]}}

    task_layers = [i for i in range(layers) if i not in swapped and i not in averaged]

    def part(start, end, *weights):
        return {
            "sources": [
                {"model": str(m), "layer_range": [start, end], "parameters": {"weight": w}}
                for m, w in weights
            ]
        }

    both = [(task, 1.0), (language, 1.0)]
    last = layers - U
    return {
        "layer_swap": {
            "merge_method": "layer_swap",
            **base,
            "models": [role(task, "task"), role(language, "language")],
            "parameters": {
                "bottom_layers": B,
                "top_layers": U,
                "bottom_transition": TB,
                "top_transition": TU,
            },
        },
        "copies": {
            "merge_method": "layer_swap",
            **base,
            "models": [role(task, "task"), role(language, "language")],
            "parameters": {"bottom_layers": B, "top_layers": U, "non_layer": "task"},
        },
        "linear": {
            "merge_method": "linear",
            **base,
            "models": [
                filtered(task, task_layers, swapped),
                filtered(language, swapped, task_layers),
            ],
        },
        "slices": {
            "merge_method": "linear",
            **base,
            # The empty first and last slices make embeddings and head averages of both.
            "slices": [
                part(0, 0, *both),
                part(0, B, (language, 1.0)),
                part(B, B + TB, *both),
                part(B + TB, last - TU, (task, 1.0)),
                part(last - TU, last, *both),
                part(last, layers, (language, 1.0)),
                part(layers, layers, *both),
            ],
        },
    }


def digests(folder):
    """Return tensor name -> dtype, shape and a digest of its bytes."""
    found = {}
    for name, tensor in read_checkpoint("output", folder).tensors.items():
        digest = hashlib.blake2b()
        with tensor.file.open("rb") as opened:
            opened.seek(tensor.offset)
            for start in range(0, tensor.nbytes, 1 << 20):
                digest.update(opened.read(min(1 << 20, tensor.nbytes - start)))
        found[name] = f"{tensor.dtype} {tensor.shape} {digest.hexdigest()}"
    return found


def measured(command, out):
    """Run a way; return what it cost, and the seconds until its output was on the disk."""
    load, started = os.getloadavg()[0], time.perf_counter()
    found = run(command)
    for file in out.rglob("*"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    return {**found, "synced_s": time.perf_counter() - started, "load_before": load}


def measure(work, shape, repeats, ways, kinds):
    """Write the experts, run the ways in turn, return the figures."""
    for seed, name in enumerate(("task", "language")):
        if not (work / name / "config.json").exists():
            shutil.rmtree(work / name, ignore_errors=True)
            program = str(Path(__file__).with_name("random_llama.py"))
            run([sys.executable, program, str(work / name), json.dumps(shape), str(seed)])
    programs, out = Path(sys.executable).parent, work / "out"
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "imports": [str(programs / "mergekit-yaml"), "--help"],
        "cp": ["cp", "-r", str(work / "task"), str(out)],
    }
    for name, recipe in recipes(work / "task", work / "language", shape[LAYERS]).items():
        path = work / f"{name}.yml"
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        mergekit = [str(programs / "mergekit-yaml"), str(path), str(out), "--quiet"]
        if name == "layer_swap":
            commands["merge"] = [str(programs / "layerswap"), "merge", str(path), str(out)]
        commands[name] = mergekit
    commands = {name: commands[name] for name in ways}
    figures = {}
    wanted = None
    for turn in range(repeats):
        for kind in kinds:
            for name, command in commands.items():
                shutil.rmtree(out, ignore_errors=True)
                if kind == "cold":
                    forget(work)
                found = measured(command, out)
                figures.setdefault(f"{name} {kind}", []).append(found)
                click.echo(f"{turn + 1} of {repeats} {kind} {name}: {found}", err=True)
                if turn == 0 and kind == "cold" and out.exists() and name not in ("cp", "copies"):
                    given = digests(out)
                    wanted = wanted or given
                    if given != wanted:
                        raise SystemExit(f"{name} does not give the tensors of the ways before")
    size = sum(file.stat().st_size for file in (work / "task").glob("*.safetensors"))
    return {
        "output_bytes": size,
        "shape": shape,
        "repeats": repeats,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "ways": {
            name: {key: median(each[key] for each in found) for key in found[0]}
            for name, found in figures.items()
        },
    }


def report(figures):
    """Return the table of both kinds; "net" is without the start of Python, or the imports."""
    ways = figures["ways"]
    lines = [
        f"output {figures['output_bytes'] / 1e9:.1f} GB, {figures['shape'][LAYERS]} layers; median "
        f"of {figures['repeats']} rounds, {figures['cores']} cores",
        "| way | kind | wall s | synced s | net / cp | net / linear net | CPU s | peak MiB "
        "| read GB | load before |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]

    def net(name, kind):
        without = dict.fromkeys(("merge", "layer_swap", "copies"), "python")
        start = {"cp": None, **without}.get(name, "imports")
        before = ways[f"{start} {kind}"]["wall_s"] if f"{start} {kind}" in ways else 0.0
        return float(ways[f"{name} {kind}"]["synced_s"] - before)

    def ratio(name, other, kind):
        if name in ("python", "imports") or f"{other} {kind}" not in ways:
            return "-"
        return f"{net(name, kind) / net(other, kind):.2f}"

    for key, way in ways.items():
        name, kind = key.rsplit(" ", 1)
        lines.append(
            f"| {name} | {kind} | {way['wall_s']:.1f} | {way['synced_s']:.1f} "
            f"| {ratio(name, 'cp', kind)} | {ratio(name, 'linear', kind)} "
            f"| {way['cpu_s']:.1f} | {way['peak_bytes'] / 2**20:.0f} "
            f"| {way['read_bytes'] / 1e9:.2f} | {way['load_before']:.1f} |"
        )
    return "\n".join(lines)


@click.command()
@click.option("--gib", default=1.6, show_default=True, help="Size of each checkpoint.")
@click.option("--shape", type=click.Choice([*SHAPES]), help="In place of --gib.")
@click.option("--ways", default=",".join(WAYS), show_default=True, help="What is measured.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--cold-only", is_flag=True, help="Leave the warm rounds out.")
@click.option("--work", type=click.Path(path_type=Path), help="Keep the checkpoints here.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
def main(gib, shape, ways, repeats, cold_only, work, json_file):
    """Measure and print the table."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    chosen = sized_shape(gib) if shape is None else SHAPES[shape]
    with tempfile.TemporaryDirectory() as scratch:
        folder = work or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        kinds = ("cold",) if cold_only else ("cold", "warm")
        figures = measure(folder.resolve(), chosen, repeats, ways.split(","), kinds)
        if work is not None:
            shutil.rmtree(work / "out", ignore_errors=True)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    click.echo(report(figures))


if __name__ == "__main__":
    main()
