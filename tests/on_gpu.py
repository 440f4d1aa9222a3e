"""`make test-gpu`: the tests that say something on CUDA, in order of value, and one table of them.

The tests marked gpu come first: they need no vLLM. Each step is a pytest of its own with a time
limit, and none lasts longer than the budget, so that one that hangs costs its own time only and all
have ended when the budget is over. Engines start eagerly and take a tenth of the memory
(`tests.standins.short_starts`); `--compiled` leaves the project's own settings.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import click
from tabulate import tabulate

ROOT = Path(__file__).parents[1]
ENGINES = "tests/engines"


@dataclass(frozen=True)
class Step:
    """Tests that are run together, by pytest's `words`, for `limit_s` seconds at most."""

    shows: str
    words: tuple[str, ...]
    limit_s: int = 90
    needs_vllm: bool = True


STEPS = {
    "bits": Step(
        "averages on the GPU have the CPU's bits; merges to files, too",
        ("-m", "gpu", "tests"),
        limit_s=120,
        needs_vllm=False,
    ),
    "hf": Step(
        "transformers: a live engine answers as one started on the merged checkpoint",
        (f"{ENGINES}/test_live.py", "-k", "hf and qwen2"),
        needs_vllm=False,
    ),
    "checked": Step(
        "vLLM notices a wrong weight",
        (f"{ENGINES}/test_evaluator.py", "-k", "test_vllm_is_checked_alike"),
        limit_s=150,
    ),
    "live-bf16": Step(
        "vLLM, bfloat16: a live engine answers as one started on the merged checkpoint",
        (f"{ENGINES}/test_live.py", "-k", "vllm and qwen2"),
        limit_s=240,
    ),
    "same": Step(
        "vLLM and transformers give the same answers",
        ("tests/scoring/test_outcomes.py", f"{ENGINES}/test_spaces.py", "-k", "both_engines"),
        limit_s=120,
    ),
    "process": Step(
        "an engine as a process of its own is killed, and another goes on",
        (f"{ENGINES}/test_processes.py", "-k", "an_engine_that_dies"),
        limit_s=150,
    ),
    "answers": Step(
        "stored answers are not generated again",
        ("-m", "vllm", f"{ENGINES}/test_answers.py", f"{ENGINES}/test_lm_eval_backend.py"),
        limit_s=150,
    ),
    "train": Step(
        "training on CUDA",
        ("-m", "not slow and not vllm", "tests/train/test_run.py", "tests/train/test_regimes.py"),
        limit_s=120,
        needs_vllm=False,
    ),
    "live-f32": Step(
        "vLLM, float32: a live engine answers as one started on the merged checkpoint",
        (f"{ENGINES}/test_live.py", "-k", "vllm and llama"),
        limit_s=240,
    ),
    "lora": Step(
        "vLLM's own LoRA",
        ("-m", "vllm", "tests/adapter_swap/test_vllm.py", "tests/evaluate/test_run.py"),
        limit_s=120,
    ),
    "killed": Step(
        "a run that is killed in the middle of a task goes on",
        ("-m", "vllm", "tests/runner/test_engines.py"),
        limit_s=240,
    ),
}
"""Name -> what to run, the most telling first."""


def run(step, options, left_s):
    """Return outcome, counts of tests and seconds of a step; what failed is printed at once.

    It ends by its limit, or before, where only `left_s` are left.
    """
    limit_s = min(step.limit_s, left_s)
    report = Path(tempfile.mkdtemp()) / "report.xml"
    words = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-rN"]
    command = [*words, f"--junit-xml={report}", *options, *step.words]
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
        )
        outcome = {0: "passed", 5: "no test"}.get(done.returncode, "FAILED")
        if outcome == "FAILED":
            click.echo(done.stdout[-6000:] + done.stderr[-2000:])
    except subprocess.TimeoutExpired as error:
        outcome = f"not ended in {limit_s:.0f} s"
        click.echo((error.stdout or b"").decode(errors="replace")[-2000:])
    seconds = time.monotonic() - start
    counts = ElementTree.parse(report).getroot().find("testsuite") if report.exists() else None
    numbers = {} if counts is None else {key: int(counts.get(key, 0)) for key in COUNTS}
    return outcome, numbers, seconds


COUNTS = ("tests", "failures", "errors", "skipped")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(STEPS)))
@click.option("--compiled", is_flag=True, help="Leave vLLM's own start: compiled, CUDA graphs.")
@click.option("--budget", default=600, help="Seconds after which every step has ended.")
def main(names, compiled, budget):
    """Run the steps NAMES (all without them), and print one table."""
    import torch

    from ablations.engines import vllm_engine

    if not torch.cuda.is_available():
        raise click.ClickException("make test-gpu needs a CUDA device, and torch sees none here")
    card, has_vllm = torch.cuda.get_device_name(0), vllm_engine.is_installed()
    click.echo(f"{card}, torch {torch.__version__}, vLLM {vllm_engine.installed_version()}")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one import of vLLM a step
    options = () if compiled or not has_vllm else ("-p", "tests.standins.short_starts")
    rows, is_wrong = run_steps(
        {name: STEPS[name] for name in names or STEPS}, options, budget, has_vllm=has_vllm
    )
    click.echo(tabulate(rows, ["step", "what it shows", "outcome", *COUNTS, "s"]))
    sys.exit(is_wrong)


def run_steps(steps, options, budget_s, *, has_vllm):
    """Return the rows of the table, and whether a step failed; all end within `budget_s`."""
    start, rows, is_wrong = time.monotonic(), [], False
    for name, step in steps.items():
        left_s = budget_s - (time.monotonic() - start)
        if step.needs_vllm and not has_vllm:
            rows.append([name, step.shows, "skipped: vLLM is not installed"])
        elif left_s <= 0:
            rows.append([name, step.shows, f"not begun: the {budget_s} s are over"])
        else:
            outcome, counts, seconds = run(step, options, left_s)
            is_wrong |= outcome not in ("passed", "no test")
            rows.append([name, step.shows, outcome, *map(counts.get, COUNTS), f"{seconds:.0f}"])
            click.echo(f"{name}: {outcome}, {seconds:.0f} s")
    return rows, is_wrong


if __name__ == "__main__":
    main()
