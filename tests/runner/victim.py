"""A runner to be killed: `python -m tests.runner.victim OUT CELLS DELAY COMPANY`."""

import sys
from pathlib import Path

from ablations.runner.loop import run_cells
from ablations.runner.processes import ProcessExecutor
from tests.runner.fakes import FakeEvaluator, make_cells

if __name__ == "__main__":
    out, count, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    evaluator = FakeEvaluator(
        delay_s=delay, journal=out.with_suffix(".journal"), company=int(sys.argv[4])
    )
    executor = ProcessExecutor(evaluator)
    try:
        summary = run_cells(out, make_cells(count, per_group=2), executor, progress=False)
    finally:
        executor.close()
    sys.exit(len(summary.failed))
