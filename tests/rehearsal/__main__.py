"""`make rehearsal`: the commands of "On your own GPUs", offline, on tiny models of the same names.

The models are random: what they score means nothing. What is shown is that every command on the
way to the report works, with hub ids, a vocabulary of 128,256 tokens and MGSM.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from ablations.study.files import find_experts_file, read_experts_file
from tests.standins.hub_cache import write_hub_cache

HAND_WRITTEN = Path(__file__).parents[1] / "tasks" / "data"


def main() -> None:
    """Write the models, run the commands, and say how long each took."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make rehearsal")
    parser.add_argument("--out", type=Path, default=Path("runs/rehearsal"))
    parser.add_argument("--data-dir", type=Path, default=HAND_WRITTEN, help="of the real MGSM")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--limit", default="2", help="items a task")
    given = parser.parse_args()
    out = given.out.resolve()
    names = [
        str(entry.path)
        for entry in read_experts_file(find_experts_file("llama_8b")).experts.values()
    ]
    if not (out / "hub").exists():
        write_hub_cache(out / "hub", names, _texts(given.data_dir))
    # The models are made here; whatever is asked of the hub beyond them is an error.
    here = {"HF_HUB_CACHE": str(out / "hub"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    run = str(out / "layer_count")
    tasks = "evaluate.tasks=[layerswap_mgsm_sw, layerswap_mgsm_en]"
    settings = ["evaluate.options.kv_cache_gib=1", tasks, "evaluate.apply_chat_template=true"]
    # A random model never stops by itself.
    settings += ["evaluate.gen_kwargs={max_gen_toks: 64}"]
    small = [part for setting in settings for part in ("--set", setting)]
    study = ["run", "layer_count", "--experts", "llama_8b", "--data-dir", str(given.data_dir)]
    study += ["--limit", given.limit, "--backend", given.backend, *small, "--out", run]
    commands = [
        ["check", "recipes/swahili.yml"],
        [*study, "--dry-run"],
        study,
        ["report", run],
    ]
    for command in commands:
        sys.stdout.write(f"\n$ layerswap {shlex.join(command)}\n")
        sys.stdout.flush()
        started = time.monotonic()
        code = "from ablations.cli import main; main()"
        subprocess.run([sys.executable, "-c", code, *command], env=os.environ | here, check=True)
        sys.stdout.write(f"({time.monotonic() - started:.0f} s)\n")


def _texts(data_dir: Path) -> list[str]:
    """Return questions and answers of MGSM, for a tokenizer that needs few tokens for them."""
    files = sorted(file for name in ("sw", "en") for file in data_dir.rglob(f"{name}_t*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line]
    return [str(value) for row in rows for value in row.values()]


if __name__ == "__main__":
    main()
