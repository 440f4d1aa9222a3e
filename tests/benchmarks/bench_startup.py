"""What layerswap's `.pth` costs a bare interpreter: `python -c pass` with and without it.

Two fresh virtual environments that differ only by the installed wheel are started in turn, in an
order drawn anew for every round, so that what else the machine does falls on both alike. A third
one, made like the second, shows the noise: its difference from the second should be about zero.

    python tests/benchmarks/bench_startup.py [--rounds 400]

Exit code 1 if the median difference is 1 ms or more.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.standins.environment import Environment, build_wheel

LIMIT_S = 0.001


def started_in_s(environment: Environment) -> float:
    began = time.perf_counter()
    subprocess.run([environment.python, "-c", "pass"], check=True)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400, help="starts of each interpreter")
    rounds = parser.parse_args().rounds

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "nothing").mkdir()
        names = ("with", "without", "control")
        made = {name: Environment.create(root / name, root / "nothing") for name in names}
        made["with"].install(build_wheel(root / "wheel"))
        for environment in made.values():  # bytecode written, files in the page cache
            started_in_s(environment)

        order = random.Random(0)
        taken: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in order.sample(names, len(names)):
                taken[name].append(started_in_s(made[name]))

    def difference_s(left: str, right: str) -> float:
        pairs = zip(taken[left], taken[right], strict=True)
        return statistics.median(a - b for a, b in pairs)

    cost_s = difference_s("with", "without")
    base_s = statistics.median(taken["without"])
    print(f"bare interpreter             {base_s * 1e3:8.3f} ms  (median of {rounds})")
    print(f"with layerswap's .pth        {cost_s * 1e3:+8.3f} ms  ratio {1 + cost_s / base_s:.3f}")
    print(f"control (neither has it)     {difference_s('control', 'without') * 1e3:+8.3f} ms")
    return int(cost_s >= LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
