"""Programs run one after the other and measured, for benchmarks that compare their wall times."""

import json
import os
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path


class _Peak(threading.Thread):
    """Looks at the peak memory of a process until it ends.

    The kernel's own figure (``ru_maxrss``) begins with that of the program that started it.
    """

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.bytes = 0
        self._status = Path(f"/proc/{pid}/status")
        self.start()

    def run(self):
        with suppress(OSError, IndexError):
            while text := self._status.read_text(encoding="utf-8"):
                self.bytes = int(text.split("VmHWM:")[1].split()[0]) * 1024
                time.sleep(0.02)


def run(command):
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


def forget(folder):
    """Drop the weights below a folder from the page cache."""
    os.sync()
    for file in folder.rglob("*.safetensors"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
