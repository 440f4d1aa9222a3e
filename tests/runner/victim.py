"""A runner to be killed: `python -m tests.runner.victim OUT CELLS DELAY COMPANY`."""

import sys
from pathlib import Path

from ablations.runner.jobs import run_cells
from tests.runner.fakes import FakeEvaluator, make_cells

if __name__ == "__main__":
    out, count, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    evaluator = FakeEvaluator(
        delay_s=delay, journal=out.with_suffix(".journal"), company=int(sys.argv[4])
    )
    summary = run_cells(out, make_cells(count, per_group=2), evaluator, progress=False)
    sys.exit(len(summary.failed))
