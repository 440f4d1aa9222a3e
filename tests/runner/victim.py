"""A runner to be killed: `python -m tests.runner.victim OUT CELLS DELAY COMPANY JOBS`."""

import functools
import sys
from pathlib import Path

from ablations.runner.jobs import in_processes, in_this_process
from tests.runner.fakes import FakeEngine, make_cells, run

if __name__ == "__main__":
    out, count, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    company, jobs = int(sys.argv[4]), int(sys.argv[5])
    start = in_this_process if jobs == 1 else functools.partial(in_processes, jobs=jobs, gpus=1)
    engine = FakeEngine(delay, journal=out.with_suffix(".journal"), company=company)
    summary = run(out, make_cells(count, per_group=2), engine, start=start)
    sys.exit(len(summary.failed))
