"""What a merge of models of the hub downloads: byte ranges, the files that are read, whole models.

    python tests/benchmarks/bench_hub.py [--width 2] [--ways ranges] [--no-count] [--json FILE]

A stand-in of the hub on this machine serves models of the shapes of Llama-3.1-8B, whose weights are
holes, under the ids that the shipped recipes name. Bytes are counted at full width, by planning
alone. Times are measured at 1/WIDTH of the width, where every matrix has 1/WIDTH**2 of its values:
the files of each way go over the wire to a fresh cache, and the merge is written. "hf download"
downloads the three models before the merge, as one did by hand. The wire is this machine's memory,
so times are those of the processor and the disk; they say nothing of the real hub, where a whole
file comes by Xet and a range by HTTP.

Every way has a cache of its own, which is removed before the next one, so that the peak of the disk
is that of one way: 48.2 GB / WIDTH**2 for "hf download". It would be 64.2, but the base, which
comes first, gives the merge nothing: after its download its weights, zeros behind a header, become
holes of the same content. A user would keep them. The served files are holes all along.

FILE keeps the figures of ways and counts that a run leaves out, if they were measured at its WIDTH.
Ctrl-C, SIGTERM and errors remove all that was written; after SIGKILL a folder bench_hub-* is left
in DIR, by default the system's temporary folder.
"""

import hashlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from layerswap_method.methods.read import read_recipe, read_recipe_file
from tests.hub.conftest import Machine
from tests.standins.hub import running

RECIPES = ("swahili", "swahili_transition", "minimum_swap")
ROOT = Path(__file__).parents[2]
VOCABULARY, HIDDEN, INNER, HEADS, LAYERS = 128_256, 4096, 14_336, 32, 32
SHARD_BYTES = 5_000_000_000

PEAKS = {"ranges": 2.2, "whole": 2.7, "hf download": 3.01}
"""Way -> the peak of its disk in models of 16 GB: what it downloads, and the merge."""

PLAN = """
import json, sys
from layerswap_method.hub.downloads import Downloads, download_choice
from layerswap_method.methods.read import read_recipe, read_recipe_file
from layerswap_method.methods.table import merge_models
from layerswap_method.recipe.references import find_model_files
hub = Downloads(download_choice(), headers_only=True)
recipe = read_recipe(read_recipe_file(__import__("pathlib").Path(sys.argv[1])).document)
models = {name: find_model_files(name, hub=hub) for name in recipe.references}
with hub.fetching():
    merge = merge_models(recipe, models)
print(json.dumps([need._asdict() for need in hub.needs(merge.ranges)]))
"""


def shapes(width):
    """Yield the name and the shape of every tensor."""
    hidden, inner, vocabulary = HIDDEN // width, INNER // width, VOCABULARY // width
    keys = hidden // 4
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(LAYERS):
        sizes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        for name, shape in sizes.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def write_model(root, name, width, dtype):
    """Write a repository whose weights are holes, in files as transformers saves them."""
    folder = root / name / hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
    folder.mkdir(parents=True)
    itemsize = {"BF16": 2, "F32": 4}[dtype]
    shards, filled, listed = [{}], 0, {}
    for tensor, shape in shapes(width):
        nbytes = math.prod(shape) * itemsize
        if filled + nbytes > SHARD_BYTES / width**2 and shards[-1]:
            shards.append({})
            filled = 0
        shards[-1][tensor] = (shape, nbytes)
        filled += nbytes
    for number, shard in enumerate(shards, 1):
        file, at, entries = f"model-{number:05d}-of-{len(shards):05d}.safetensors", 0, {}
        for tensor, (shape, nbytes) in sorted(shard.items()):
            entries[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
            at += nbytes
            listed[tensor] = file
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as opened:
            opened.write(len(text).to_bytes(8, "little") + text)
            opened.truncate(8 + len(text) + at)
        stated = hashlib.sha256(f"{name} {file} {width}".encode()).hexdigest()
        (folder / f".{file}.sha256").write_text(stated)
    index = {"metadata": {}, "weight_map": listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN // width,
        "intermediate_size": INNER // width,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY // width,
        "num_attention_heads": HEADS // width,
        "num_key_value_heads": max(1, 8 // width),
        "tie_word_embeddings": False,
        "dtype": {"BF16": "bfloat16", "F32": "float32"}[dtype],
    }
    (folder / "config.json").write_text(json.dumps(config))


def write_models(root, recipe, width, dtype):
    """Write the models of a recipe; `dtype` is that of the language expert."""
    document = read_recipe_file(recipe).document
    (language,) = (m["model"] for m in document["models"] if m["parameters"]["role"] == "language")
    for name in read_recipe(document).references:
        write_model(root, name, width, dtype if name == language else "BF16")


def count_bytes(scratch, recipe, dtype):
    """Return what each way downloads for a recipe, by planning it at full width."""
    figures = {}
    write_models(scratch / "repositories", recipe, 1, dtype)
    with running(scratch / "repositories") as hub:
        for download in ("ranges", "whole"):
            machine = Machine(scratch / download, hub)
            how = {"LAYERSWAP_DOWNLOAD": download}
            code, output = machine.run("python", "-c", PLAN, recipe, **how)
            assert code == 0, output
            needs = json.loads(output.splitlines()[-1])
            headers = hub.bytes["store"] if download == "ranges" else 0
            names = {"ranges": "ranges_bytes", "whole": "files_read_bytes"}
            figures[names[download]] = sum(need["fetched"] for need in needs)
            figures[f"{download}_by_model"] = {
                n["model"].split("@")[0]: n["fetched"] for n in needs
            }
            figures["whole_models_bytes"] = sum(need["whole"] for need in needs)
            figures["planning_bytes"] = headers or figures["planning_bytes"]
            hub.forget()
    shutil.rmtree(scratch)
    return figures


def timed(machine, *words, **variables):
    """Run a program; return its wall time, the peak of its resident set, and the disk after it."""
    load = os.getloadavg()[0]
    started = time.monotonic()
    process = machine.start(*words, **variables)
    try:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:  # an interrupt: whatever writes must have ended before it is removed
        process.kill()
        process.wait()
        raise
    wall_s = time.monotonic() - started
    if status != 0:
        raise click.ClickException(f"{' '.join(map(str, words))}: {output}")
    print(f"  {words[0]} {words[-1]}: {wall_s:.1f} s, load before it {load:.1f}", flush=True)
    return {
        "wall_s": wall_s,
        "peak_bytes": usage.ru_maxrss * 1024,
        "disk_bytes": allocated(machine.home),
        "load_before": load,
    }


def allocated(folder):
    """Return the bytes that the files of a folder take on the disk."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_blocks * 512 for file in files)


def make_holes(machine, name):
    """Make the weights of a model in the hub's cache holes, whose content stays."""
    for link in machine.cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/*.safetensors"):
        with link.open("r+b") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            opened.truncate(8 + int.from_bytes(opened.read(8), "little"))
            opened.truncate(size)


def model_bytes(width):
    """Return the size of a model in bfloat16."""
    return sum(2 * math.prod(shape) for _, shape in shapes(width))


def check_disk(folder, width, ways):
    """Check that a disk has room for the largest of the ways."""
    way = max(ways, key=PEAKS.__getitem__)
    needed, free = PEAKS[way] * model_bytes(width), shutil.disk_usage(folder).free
    if needed > free:
        raise click.ClickException(
            f"{folder}: {way!r} at width {width} needs {needed / 1e9:.3g} GB and the disk has "
            f"{free / 1e9:.3g} GB free, so {(needed - free) / 1e9:.2g} GB are missing; make room, "
            "or take another --work, a larger --width or fewer --ways"
        )


def measure(scratch, recipe, width, ways):
    """Yield each way with its times and what went over the wire."""
    document = read_recipe_file(recipe).document
    base, names = document["base_model"], read_recipe(document).references
    write_models(scratch / "repositories", recipe, width, "BF16")
    with running(scratch / "repositories") as hub:
        for way in ways:
            os.sync()  # no write of the way before it takes time of this one
            machine = Machine(scratch / "machine", hub)
            hub.forget()
            steps = {}
            if way == "hf download":
                for name in sorted(names, key=lambda name: name != base):
                    steps[f"download {name}"] = timed(machine, "hf", "download", name)
                    if name == base:
                        make_holes(machine, name)
            how = {} if way == "hf download" else {"LAYERSWAP_DOWNLOAD": way}
            steps["merge"] = timed(machine, "layerswap", "merge", recipe, "out", **how)
            figures = {
                "wall_s": sum(step["wall_s"] for step in steps.values()),
                "merge_peak_bytes": steps["merge"]["peak_bytes"],
                "wire_bytes": hub.sent,
                "requests": len(hub.requests),
                "disk_bytes": max(step["disk_bytes"] for step in steps.values()),
                "steps": steps,
                "load": os.getloadavg()[0],
            }
            print(
                f"{way}: {figures['wall_s']:.1f} s, {hub.sent / 1e9:.2f} GB over the wire, "
                f"{figures['disk_bytes'] / 1e9:.2f} GB of disk, load after it "
                f"{figures['load']:.1f}",
                flush=True,
            )
            yield way, figures
            shutil.rmtree(machine.home)
        served = allocated(scratch / "repositories")
    assert served < 1e8, f"the served models are no holes: {served} bytes"
    shutil.rmtree(scratch)


def end(*_):
    """End as an interrupt does, which removes what was written."""
    raise SystemExit(128 + signal.SIGTERM)


@click.command()
@click.option(
    "--width", default=2, show_default=True, help="Times are measured at 1 / this width; 0: none."
)
@click.option("--ways", multiple=True, type=click.Choice(list(PEAKS)), help="Default: all.")
@click.option("--count/--no-count", default=True, help="Whether bytes are counted at full width.")
@click.option("--work", type=click.Path(path_type=Path), help="Where the models and merges are.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
def main(width, ways, count, work, json_file):
    """Measure and print the tables."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    ways = [way for way in PEAKS if not ways or way in ways] if width else []
    figures = {"bytes": {}, "width": width, "cores": os.cpu_count(), "times": {}}
    if json_file is not None and json_file.is_file():
        earlier = json.loads(json_file.read_text("utf-8"))
        figures["bytes"] = earlier["bytes"]
        if (earlier["width"], earlier["cores"]) == (width, os.cpu_count()):
            figures["times"] = earlier["times"]

    def write():
        if json_file is not None:
            json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")

    if ways:
        check_disk(work or Path(tempfile.gettempdir()), width, ways)
    with tempfile.TemporaryDirectory(dir=work, prefix="bench_hub-") as folder:
        scratch = Path(folder) / "bench"
        if count:
            figures["bytes"] = {
                f"{name}, language expert in {dtype}": count_bytes(
                    scratch, ROOT / "recipes" / f"{name}.yml", dtype
                )
                for name in RECIPES
                for dtype in ("BF16", "F32")
            }
        write()
        measured = measure(scratch, ROOT / "recipes" / "swahili.yml", width, ways)
        for way, times in measured if ways else ():
            figures["times"][way] = times
            write()
    print("| recipe | ranges GB | files that are read GB | whole models GB |\n|---|---|---|---|")
    for name, one in figures["bytes"].items():
        keys = ("ranges_bytes", "files_read_bytes", "whole_models_bytes")
        print(f"| {name} | {' | '.join(f'{one[key] / 1e9:.2f}' for key in keys)} |")
    print("| way | wall s | wire GB | requests | peak MiB of the merge |\n|---|---|---|---|---|")
    for way, one in figures["times"].items():
        print(
            f"| {way} | {one['wall_s']:.1f} | {one['wire_bytes'] / 1e9:.2f} | {one['requests']} "
            f"| {one['merge_peak_bytes'] / 2**20:.0f} |"
        )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
