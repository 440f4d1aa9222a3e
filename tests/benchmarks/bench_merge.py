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
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import click
import yaml

from layerswap_method.checkpoint.checkpoint import read_checkpoint

B, U, TB, TU = 4, 2, 1, 1
WAYS = ("python", "imports", "cp", "merge", "layer_swap", "copies", "linear")


def shape_of(vocabulary, hidden, inner, layers, heads, **more):
    """Return the settings of a Llama's config."""
    sizes = {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner}
    counts = {"num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, **counts, "num_key_value_heads": 8, "tie_word_embeddings": False, **more}


SHAPES = {
    "llama-3.2-3b": shape_of(128_256, 3072, 8192, 28, 24, tie_word_embeddings=True),
    "llama-3.1-8b": shape_of(128_256, 4096, 14_336, 32, 32),
}


def sized_shape(gib):
    """Return the shape of a 16-layer Llama of about `gib` GiB."""
    hidden = max(512, 512 * round((gib * 2**30 / 2 / (16 * 11 + 16)) ** 0.5 / 512))
    return shape_of(8 * hidden, hidden, 11 * hidden // 4, 16, hidden // 64)


def write_llama(folder, shape, seed, shards=4):
    """Write config and random weights, of which one shard at a time is in memory."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**shape, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in LlamaForCausalLM(config).state_dict().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    names, listed, random = list(shapes), {}, torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True)
    for number in range(shards):
        part, file = names[number::shards], f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        listed |= dict.fromkeys(part, file)
        drawn = {"generator": random, "dtype": torch.bfloat16}
        tensors = {name: torch.randn(shapes[name], **drawn).mul_(0.02) for name in part}
        save_file(tensors, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    config.save_pretrained(folder)


def recipes(task, language, layers):
    """Return the same merge, as a swap and by weights of each layer, and a swap of copies alone."""
    swapped = [*range(B), *range(layers - U, layers)]
    averaged = [*range(B, B + TB), *range(layers - U - TU, layers - U)]
    rest = [i for i in range(layers) if i not in swapped and i not in averaged]
    transitions = {"bottom_transition": TB, "top_transition": TU}

    def swap(**parameters):
        roles = ((task, "task"), (language, "language"))
        models = [{"model": str(m), "parameters": {"role": role}} for m, role in roles]
        counts = {"bottom_layers": B, "top_layers": U, **parameters}
        return {"merge_method": "layer_swap", "models": models, "parameters": counts}

    def filtered(model, own, other):
        layers = [*((i, 1.0) for i in own), *((i, 0.0) for i in other)]
        weights = [{"filter": f".layers.{i}.", "value": value} for i, value in layers]
        return {"model": str(model), "parameters": {"weight": [*weights, {"value": 0.5}]}}

    linear = [filtered(task, rest, swapped), filtered(language, swapped, rest)]
    made = {
        "layer_swap": swap(**transitions),
        "copies": swap(non_layer="task"),
        "linear": {"merge_method": "linear", "models": linear},
    }
    return {name: {**recipe, "base_model": str(task)} for name, recipe in made.items()}


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


class Peak(threading.Thread):
    """Looks at the peak memory of a process until it ends.

    The kernel's own figure (``ru_maxrss``) begins with that of the program that started it.
    """

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.bytes, self._status = 0, Path(f"/proc/{pid}/status")
        self.start()

    def run(self):
        with suppress(OSError, IndexError):
            while text := self._status.read_text(encoding="utf-8"):
                self.bytes = int(text.split("VmHWM:")[1].split()[0]) * 1024
                time.sleep(0.02)


def measured(command, out):
    """Run a command; return what it cost, and the seconds until its output was on the disk."""
    with tempfile.TemporaryFile() as said:
        load, started = os.getloadavg()[0], time.perf_counter()
        process = subprocess.Popen(command, stdout=said, stderr=said)
        peak = Peak(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        if status != 0:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read().decode()}")
    for file in out.rglob("*"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    return {
        "wall_s": wall_s,
        "synced_s": time.perf_counter() - started,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "read_bytes": usage.ru_inblock * 512,
        "peak_bytes": peak.bytes,
        "load_before": load,
    }


def forget(folder):
    """Drop the weights below a folder from the page cache."""
    os.sync()
    for file in folder.rglob("*.safetensors"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(work, shape, repeats, ways, kinds):
    """Write the experts, run the ways in turn, return the figures."""
    for seed, name in enumerate(("task", "language")):
        if not (work / name / "config.json").exists():
            shutil.rmtree(work / name, ignore_errors=True)
            write_llama(work / name, shape, seed)
    programs, out = Path(sys.executable).parent, work / "out"
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "imports": [str(programs / "mergekit-yaml"), "--help"],
        "cp": ["cp", "-r", str(work / "task"), str(out)],
    }
    made = recipes(work / "task", work / "language", shape["num_hidden_layers"])
    for name, recipe in made.items():
        path = work / f"{name}.yml"
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        if name == "layer_swap":
            commands["merge"] = [str(programs / "layerswap"), "merge", str(path), str(out)]
        commands[name] = [str(programs / "mergekit-yaml"), str(path), str(out), "--quiet"]
    figures, wanted = {}, None
    for turn in range(repeats):
        for kind, name in ((kind, name) for kind in kinds for name in ways):
            shutil.rmtree(out, ignore_errors=True)
            if kind == "cold":
                forget(work)
            found = measured(commands[name], out)
            figures.setdefault(f"{name} {kind}", []).append(found)
            click.echo(f"{turn + 1} of {repeats} {kind} {name}: {found}", err=True)
            if turn == 0 and kind == "cold" and name in ("merge", "layer_swap", "linear"):
                given = digests(out)
                wanted = wanted or given
                if given != wanted:
                    raise SystemExit(f"{name} does not give the tensors of the ways before")
    shutil.rmtree(out, ignore_errors=True)
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
    """Return the table; "/ cp" and "/ linear" are of the seconds until the output is on disk."""
    ways = figures["ways"]
    lines = [
        f"output {figures['output_bytes'] / 1e9:.1f} GB, {figures['shape']['num_hidden_layers']} "
        f"layers; median of {figures['repeats']} rounds, {figures['cores']} cores",
        "| way | wall s | synced s | / cp | / linear | CPU s | peak MiB | read GB | load before |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, way in ways.items():
        others = [ways.get(f"{other} {key.split()[1]}") for other in ("cp", "linear")]
        ratios = (f"{way['synced_s'] / o['synced_s']:.2f}" if o else "-" for o in others)
        lines.append(
            f"| {key} | {way['wall_s']:.1f} | {way['synced_s']:.1f} | {' | '.join(ratios)} "
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
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    click.echo(report(figures))


if __name__ == "__main__":
    main()
