"""Programs run one after the other and measured, for benchmarks that compare their wall times."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click


class _Peak(threading.Thread):
    """Looks at the peak memory of a process until it ends.

    The kernel's own figure (``ru_maxrss``) begins with that of the program that started it.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._status = Path(f"/proc/{pid}/status")
        self.start()

    def run(self) -> None:
        with suppress(OSError, IndexError):
            while text := self._status.read_text(encoding="utf-8"):
                self.bytes = int(text.split("VmHWM:")[1].split()[0]) * 1024
                time.sleep(0.02)


def run(command: list[str]) -> dict[str, float]:
    """Run a command; return wall and CPU seconds, bytes read from disk and peak memory.

    What it prints as a JSON object takes the place of what was measured from outside.
    """
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        peak = _Peak(process.pid)
        printed = process.stdout.read() if process.stdout else b""
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        if status != 0:
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.read().decode()}")
    return {
        "wall_s": wall_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "read_bytes": usage.ru_inblock * 512,
        "peak_bytes": peak.bytes,
        **(json.loads(printed) if printed.startswith(b"{") else {}),
    }


def forget(folder: Path) -> None:
    """Drop the weights below a folder from the page cache."""
    os.sync()
    for file in folder.rglob("*.safetensors"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sized_llama(gib: float, dtype: str, layers: int, seed: int) -> Any:
    """Return a random Llama of about `gib` GiB."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size = getattr(torch, dtype).itemsize
    hidden = max(64, 64 * round((gib * 2**30 / size / (layers * 10.75 + 16)) ** 0.5 / 64))
    config = LlamaConfig(
        vocab_size=8 * hidden,
        hidden_size=hidden,
        intermediate_size=int(2.75 * hidden) // 16 * 16,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        tie_word_embeddings=False,
        dtype=dtype,
    )
    torch.manual_seed(seed)
    torch.set_default_dtype(getattr(torch, dtype))
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model


def benchmark(
    gib: float,
    measure: Callable[[Path, float, int], dict[str, Any]],
    report: Callable[[dict[str, Any]], str],
) -> click.Command:
    """Return the command of a benchmark on checkpoints that it makes.

    Args:
        gib: size of a checkpoint unless the user gives one.
        measure: folder, GiB and number of rounds -> figures.
        report: figures -> table.
    """

    @click.command()
    @click.option("--gib", default=gib, show_default=True, help="Size of each checkpoint.")
    @click.option("--repeats", default=3, show_default=True)
    @click.option("--work", type=click.Path(path_type=Path), help="Keep the checkpoints here.")
    @click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
    def main(gib: float, repeats: int, work: Path | None, json_file: Path | None) -> None:
        """Measure and print the table."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        with tempfile.TemporaryDirectory() as scratch:
            folder = work or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            figures = measure(folder.resolve(), gib, repeats)
        click.echo(report(figures))
        if json_file is not None:
            json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")

    return main
