"""What it costs to load a merge into an engine, beside `cat` and `cp -r` of one of its models.

    python tests/benchmarks/bench_loading.py [--size 1.7gb | pocket | 8b] [--device cuda]
        [--ways tensors,hf,vllm] [--merges swap,soup,lora,magnitude] [--rounds 3]
        [--threads 8] [--block 21] [--work DIR] [--json FILE]

Writes two random bf16 Llamas and two LoRA adapters (rank 16, every matrix of a layer), and loads
four merges of them: a swap (copies alone), a soup, a swap of the two LoRA experts, and an average
whose weights differ from tensor to tensor, as those by magnitude do. "tensors" reads them without
an engine, into new memory on the device; "hf" and "vllm" are the engines of a study, which get the
merges in turn, so none is there before. Everything is read from the page cache: the models are
written just before. The first round of a way pays for memory that later ones use again, and is
shown apart; "/ cat" is beside `cat` of as many bytes as are read. "own reload" is vLLM's, of one of
the models from its files: what a merge costs that is written before. Needs 3.1 times the size of a
model on the disk, and memory for two; "vllm" needs vLLM.
Absolute times mean nothing outside this machine, ratios to `cat` and `cp` do.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click
import torch

from layerswap_method.file_names import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import OpenModel, TensorMix

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.bench_merge import SHAPES, shape_of
from tests.standins.tokenizers import SPECIAL, save_word_tokenizer

SIZES = {
    "pocket": shape_of(512, 256, 640, 8, 8),
    "1.7gb": shape_of(16_384, 2048, 5632, 16, 32),
    "8b": SHAPES["llama-3.1-8b"],
}
MERGES = ("swap", "soup", "lora", "magnitude")
RANK = 16
BOTTOM, TOP = 2, 1


def write_random(file, shapes, seed):
    """Write tensors of bfloat16 of which one piece of random values is repeated: it is quick."""
    values = torch.randn(1 << 22, generator=torch.Generator().manual_seed(seed)).mul_(0.02)
    piece = memoryview(values.bfloat16().view(torch.uint8).numpy().data)
    entries, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * torch.Size(shape).numel()
        entries[name] = {"dtype": "BF16", "shape": [*shape], "data_offsets": [start, end]}
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    with file.open("wb") as out:
        out.write(len(head).to_bytes(8, "little") + head)
        for start in range(0, end, len(piece)):
            out.write(piece[: end - start])


def write_llama(folder, shape, seed, shards=4):
    """Write config, tokenizer and weights of a Llama that no one has trained."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**shape, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    config.max_position_embeddings = 512
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in LlamaForCausalLM(config).state_dict().items()}
    folder.mkdir(parents=True)
    tokens = [*SPECIAL, *(f"w{i}" for i in range(config.vocab_size - len(SPECIAL)))]
    save_word_tokenizer(folder, tokens, padding_side="left", model_max_length=512)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 0
    config.save_pretrained(folder)
    names, listed = list(shapes), {}
    size = -(-len(names) // shards)
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: shapes[name] for name in names[number * size :][:size]}
        listed |= dict.fromkeys(part, file)
        write_random(folder / file, part, seed + number)
    index = {"metadata": {}, "weight_map": listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return shapes


def write_adapter(folder, shapes, seed):
    """Write an adapter of every matrix of the layers."""
    folder.mkdir()
    factors, modules = {}, []
    for name, shape in shapes.items():
        if ".layers." in name and len(shape) == 2:
            modules.append(name.removesuffix(".weight"))
            factors[f"base_model.model.{modules[-1]}.lora_A.weight"] = (RANK, shape[1])
            factors[f"base_model.model.{modules[-1]}.lora_B.weight"] = (shape[0], RANK)
    write_random(folder / ADAPTER_WEIGHTS, factors, seed)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none"}
    config["target_modules"] = modules
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")


def prepare(work, shape):
    """Write the models that are not there yet; return the merges: name -> mixes."""
    for seed, name in ((10, "task"), (20, "language")):
        if not (work / name).exists():
            shapes = write_llama(work / f"{name}.part", shape, seed)
            write_adapter(work / f"{name}.part" / "adapter", shapes, seed + 9)
            (work / f"{name}.part").rename(work / name)
    task, language = (OpenModel.read(Model(n, work / n)) for n in ("task", "language"))
    adapted = [
        OpenModel.read(Model(name, work / "task", work / name / "adapter"))
        for name in ("task", "language")
    ]
    layers = task.checkpoint.num_layers
    swapped = [f".layers.{i}." for i in (*range(BOTTOM), *range(layers - TOP, layers))]

    def average(name, weights):
        pairs = zip((task, language), weights, strict=True)
        return TensorMix(terms=tuple(model.term(name, weight) for model, weight in pairs))

    made = {name: {} for name in MERGES}
    for number, name in enumerate(task.checkpoint.tensors):
        is_swapped = any(part in name for part in swapped)
        made["swap"][name] = (language if is_swapped else task).copy_mix(name, None)
        made["soup"][name] = average(name, (1.0, 1.0))
        made["lora"][name] = adapted[is_swapped].copy_mix(name, None)
        made["magnitude"][name] = average(name, (0.4 + number / 1000, 0.6 - number / 1000))
    return made


def measure_floor(folder):
    """Return bytes of a model's weights, and the seconds of `cat` and of `cp -r`, warm."""
    files = sorted(folder.glob("*.safetensors"))
    seconds = {"cat": [], "cp": []}
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(["cat", *files], check=True, stdout=subprocess.DEVNULL)
        seconds["cat"].append(time.perf_counter() - started)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            started = time.perf_counter()
            subprocess.run(["cp", "-r", folder, scratch], check=True)
            seconds["cp"].append(time.perf_counter() - started)
    size = sum(file.stat().st_size for file in files)
    return {"model_bytes": size, **{name: median(found) for name, found in seconds.items()}}


class Tensors:
    """Reads merges onto a device, and keeps nothing."""

    def __init__(self, device, threads):
        self.device, self.threads = device, threads

    def load(self, mixes):
        from ablations.engines.loading import read_tensors

        for _, tensor in read_tensors(mixes, self.device, self.threads):
            del tensor

    def reset_cache(self):
        pass

    def close(self):
        pass


def start_way(way, folder, device, threads, memory):
    """Return what has the methods `load`, `reset_cache` and `close` of a study's engine."""
    if way == "tensors":
        return Tensors(device, threads)
    from ablations.engines.lm_eval_backend import start_model
    from ablations.engines.options import EngineOptions

    options = EngineOptions(
        max_model_len=256, kv_cache_gib=1, gpu_memory_utilization=memory, enforce_eager=True
    )
    return start_model(folder, way, options)


def measure(loader, merges, rounds):
    """Load every merge in turn; return merge -> seconds and CPU seconds of each round."""
    costs = {name: [] for name in merges}
    for _ in range(rounds + 1):
        for name, mixes in merges.items():
            started, used = time.perf_counter(), time.process_time()
            loader.load(mixes)
            loader.reset_cache()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            costs[name].append((time.perf_counter() - started, time.process_time() - used))
            click.echo(f"{name} {costs[name][-1][0]:.2f} s", err=True)
    return costs


def measure_own_reload(loader, folder, rounds):
    """Return the median of the seconds that vLLM takes to load a checkpoint by itself."""
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        loader.model.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        seconds.append(time.perf_counter() - started)
    return median(seconds[1:])


def figures_of(name, mixes, costs, floor):
    """Return what one merge cost."""
    read = sum(
        stored.nbytes for mix in mixes.values() for t in mix.terms for stored in t.all_stored
    )
    (first, _), *others = costs
    warm = median(wall_s for wall_s, _ in others)
    return {
        "merge": name,
        "out_bytes": floor["model_bytes"],
        "read_bytes": read,
        "first_s": first,
        "s": warm,
        "cpu_s": median(cpu_s for _, cpu_s in others),
        "s_per_gb": warm / floor["model_bytes"] * 1e9,
        "read_gb_per_s": read / 1e9 / warm,
        "by_cat": warm / (floor["cat"] * read / floor["model_bytes"]),
        "by_cp": warm / floor["cp"],
    }


def report(figures):
    """Return the table."""
    floor, gb = figures["floor"], figures["floor"]["model_bytes"] / 1e9
    own = figures["floor"].get("vllm_reload")
    lines = [
        f"{figures['size']}: {gb:.2f} GB a model, {figures['device']}, {figures['cores']} cores, "
        f"torch on {figures['torch_threads']}, "
        f"{figures['threads'] or 'default'} threads, load {figures['load']:.1f}; "
        f"cat {gb / floor['cat']:.2f} GB/s, cp -r {gb / floor['cp']:.2f} GB/s"
        + ("" if own is None else f", vLLM's own reload {own:.2f} s"),
        "| way | merge | first s | s | CPU s | s a GB | read GB/s | / cat | / cp -r |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for way, merges in figures["ways"].items():
        for row in merges:
            lines.append(
                f"| {way} | {row['merge']} | {row['first_s']:.2f} | {row['s']:.2f} "
                f"| {row['cpu_s']:.2f} | {row['s_per_gb']:.2f} | {row['read_gb_per_s']:.2f} "
                f"| {row['by_cat']:.1f} | {row['by_cp']:.1f} |"
            )
    return "\n".join(lines)


@click.command()
@click.option("--size", type=click.Choice([*SIZES]), default="1.7gb", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--ways", default="tensors,hf", show_default=True, help="Of tensors, hf, vllm.")
@click.option("--merges", default=",".join(MERGES), show_default=True)
@click.option("--rounds", default=3, show_default=True, help="After the first.")
@click.option("--threads", type=int, help='Of "tensors"; engines take the default.')
@click.option("--block", type=int, help="Logarithm of the values of a block on a GPU.")
@click.option("--memory", default=0.5, show_default=True, help="vLLM's share of a GPU.")
@click.option("--work", type=click.Path(path_type=Path), help="Keep the models here.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
def main(size, device, ways, merges, rounds, threads, block, memory, work, json_file):
    """Measure and print the table."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    if block is not None:
        from ablations.engines import loading

        loading._Lane.block = 1 << block
    scratch = work or Path(tempfile.mkdtemp())
    try:
        made = prepare(scratch.resolve() / size, SIZES[size])
        floor = measure_floor(scratch.resolve() / size / "task")
        figures = {
            "size": size,
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "cores": len(os.sched_getaffinity(0)),
            "torch_threads": torch.get_num_threads(),
            "threads": threads,
            "load": os.getloadavg()[0],
            "floor": floor,
            "ways": {},
        }
        chosen = {name: made[name] for name in merges.split(",")}
        for way in ways.split(","):
            started = time.perf_counter()
            loader = start_way(way, scratch / size / "task", device, threads, memory)
            click.echo(f"{way}: started in {time.perf_counter() - started:.1f} s", err=True)
            costs = measure(loader, chosen, rounds)
            if way == "vllm":
                own = measure_own_reload(loader, scratch.resolve() / size / "task", rounds)
                figures["floor"]["vllm_reload"] = own
            loader.close()
            del loader
            figures["ways"][way] = [
                figures_of(name, chosen[name], found, floor) for name, found in costs.items()
            ]
    finally:
        if work is None:
            shutil.rmtree(scratch)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    click.echo(report(figures))


if __name__ == "__main__":
    main()
