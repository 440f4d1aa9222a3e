"""Code run in a process of its own, with another hash seed and another date."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed(code, *arguments, seed):
    """Return what `code` prints when `seed` orders its sets and dates its files."""
    dated = {"PYTHONHASHSEED": str(seed), "SOURCE_DATE_EPOCH": str(seed * 99999)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **dated},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout
