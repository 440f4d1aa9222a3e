"""What a merge costs: `layer_swap` against its peers, in one run on one machine.

    python tests/benchmarks/bench_merge.py [--gib 1.6] [--repeats 3] [--work DIR] [--json FILE]

Makes two random bf16 Llama checkpoints of the given size (16 layers, 4 shards), merges them with
the installed `mergekit-yaml` by three recipes that give the same tensors (which is checked), and
copies the output with `cp` as the floor. The ways take turns, so a busy machine hits all of them.
Every way runs warm (files in the page cache) and once cold (dropped from it, bytes counted).
Knows nothing of accuracy; absolute times mean nothing outside this machine, ratios do.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

import click
import yaml
from processes import benchmark, forget, run, sized_llama

B, U, TB, TU, LAYERS = 4, 2, 1, 1, 16
LANGUAGE = [*range(B), *range(LAYERS - U, LAYERS)]
AVERAGE = [*range(B, B + TB), *range(LAYERS - U - TU, LAYERS - U)]


def make_expert(folder: Path, seed: int, gib: float) -> None:
    """Save one random bf16 Llama of about `gib` GiB in 4 shards."""
    sized_llama(gib, "bfloat16", LAYERS, seed).save_pretrained(
        folder, max_shard_size=int(gib * 2**30 / 3.5)
    )


def recipes(task: Path, language: Path) -> dict[str, dict[str, Any]]:
    """Return the same merge, written three ways."""
    base = {"base_model": str(task)}

    def role(model: Path, name: str) -> dict[str, Any]:
        return {"model": str(model), "parameters": {"role": name}}

    def filtered(model: Path, own: list[int], other: list[int]) -> dict[str, Any]:
        weights: list[dict[str, Any]] = [{"filter": f".layers.{i}.", "value": 1.0} for i in own] + [
            {"filter": f".layers.{i}.", "value": 0.0} for i in other
        ]
        return {"model": str(model), "parameters": {"weight": [*weights, {"value": 0.5}]}}

    task_layers = [i for i in range(LAYERS) if i not in LANGUAGE and i not in AVERAGE]

    def part(start: int, end: int, *weights: tuple[Path, float]) -> dict[str, Any]:
        return {
            "sources": [
                {"model": str(m), "layer_range": [start, end], "parameters": {"weight": w}}
                for m, w in weights
            ]
        }

    both = [(task, 1.0), (language, 1.0)]
    last = LAYERS - U
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
        "linear": {
            "merge_method": "linear",
            **base,
            "models": [
                filtered(task, task_layers, LANGUAGE),
                filtered(language, LANGUAGE, task_layers),
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
                part(last, LAYERS, (language, 1.0)),
                part(LAYERS, LAYERS, *both),
            ],
        },
    }


def same_tensors(first: Path, second: Path) -> bool:
    """Return whether two checkpoints hold the same tensors bit for bit."""
    import torch
    from safetensors import safe_open

    def where(folder: Path) -> dict[str, Path]:
        found = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(str(file), "pt") as opened:
                found |= dict.fromkeys(opened.keys(), file)
        return found

    left, right = where(first), where(second)
    if left.keys() != right.keys():
        return False
    for name, file in left.items():
        with safe_open(str(file), "pt") as a, safe_open(str(right[name]), "pt") as b:
            if not torch.equal(a.get_tensor(name), b.get_tensor(name)):
                return False
    return True


def tensor_bytes(folder: Path) -> int:
    """Return the size of a checkpoint's weight files."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def measure(work: Path, gib: float, repeats: int) -> dict[str, Any]:
    """Make the experts, run every way in turn, return the figures."""
    experts = {"task": 1, "language": 2}
    for name, seed in experts.items():
        if not (work / name / "config.json").exists():
            click.echo(f"making the {name} expert", err=True)
            make_expert(work / name, seed, gib)
    mergekit_yaml = str(Path(sys.executable).parent / "mergekit-yaml")
    commands: dict[str, list[str]] = {"imports": [mergekit_yaml, "--help"]}
    for name, recipe in recipes(work / "task", work / "language").items():
        path = work / f"{name}.yml"
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        commands[name] = [mergekit_yaml, str(path), str(work / f"out-{name}"), "--quiet"]
        commands[name] += ["--no-copy-tokenizer"]
    commands["cp"] = ["cp", "-r", str(work / "out-layer_swap"), str(work / "out-cp")]
    figures: dict[str, dict[str, list[float]]] = {}

    def once(name: str, kind: str) -> None:
        shutil.rmtree(work / f"out-{name}", ignore_errors=True)
        if kind == "cold":
            for folder in work.iterdir():
                forget(folder)
        else:
            os.sync()
        for key, value in run(commands[name]).items():
            figures.setdefault(f"{name} {kind}", {}).setdefault(key, []).append(value)

    for i in range(repeats + 1):  # the first round fills the page cache and is not counted
        for name in commands:
            click.echo(f"round {i} of {repeats}: {name}", err=True)
            once(name, "warm" if i else "first")
    for name in commands:
        once(name, "cold")
    for peer in ("linear", "slices"):
        if not same_tensors(work / "out-layer_swap", work / f"out-{peer}"):
            raise SystemExit(f"layer_swap and {peer} do not give the same tensors")
    output = tensor_bytes(work / "out-layer_swap")
    return {
        "output_bytes": output,
        "averaged_bytes": averaged_bytes(work / "out-layer_swap"),
        "repeats": repeats,
        "cores": os.cpu_count(),
        "ways": {
            name: {key: median(values) for key, values in found.items()}
            for name, found in figures.items()
            if not name.endswith("first")
        },
    }


def averaged_bytes(folder: Path) -> int:
    """Return the bytes of the output's tensors that need both experts."""
    from safetensors import safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(str(file), "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                if ".layers." not in name or int(name.split(".")[2]) in AVERAGE:
                    tensor = opened.get_tensor(name)
                    total += tensor.numel() * tensor.element_size()
    return total


def report(figures: dict[str, Any]) -> str:
    """Return the table: every way as a ratio, net and gross of mergekit's imports."""
    ways, imports = figures["ways"], figures["ways"]["imports warm"]
    output, averaged = figures["output_bytes"], figures["averaged_bytes"]
    lines = [
        f"output {output / 2**20:.0f} MiB, of which averaged {averaged / 2**20:.0f} MiB; "
        f"median of {figures['repeats']} rounds, {figures['cores']} cores",
        "| way | wall / cp | wall net / linear net | cpu net / linear net | wall / linear "
        "| read cold / (output + averaged) | peak MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    linear = ways["linear warm"]

    def net(name: str, key: str) -> float:
        return float(ways[f"{name} warm"][key] - imports[key])

    for name in ("cp", "imports", "layer_swap", "slices", "linear"):
        way, cold = ways[f"{name} warm"], ways[f"{name} cold"]
        merges = name not in ("cp", "imports")
        relative = [
            f"{net(name, key) / net('linear', key):.2f}" if merges else "-"
            for key in ("wall_s", "cpu_s")
        ]
        read = f"{cold['read_bytes'] / (output + averaged):.2f}" if merges else "-"
        lines.append(
            f"| {name} | {way['wall_s'] / ways['cp warm']['wall_s']:.1f} | {relative[0]} "
            f"| {relative[1]} | {way['wall_s'] / linear['wall_s']:.2f} | {read} "
            f"| {way['peak_bytes'] / 2**20:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    benchmark(1.6, measure, report)()
