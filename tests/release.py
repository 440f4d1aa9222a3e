"""`make test-release`: each file of a release, installed as a user would, in a fresh environment.

Unlike the tests of `tests/registration`, which borrow the packages that are installed here, pip
installs what the file itself asks for, and nothing of the checkout can be seen.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import click

from tests.standins.merging import recipe, roles, write_recipe
from tests.standins.model_families import LAYERS, make_model
from tests.standins.oracle import Swap, assert_same, expected, stored

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
PLAN = "import layerswap; print(layerswap.plan('swahili', layers=32))"


def run(environment, folder, *command):
    """Run a command of an environment in a folder; return what it printed."""
    ours = ("PYTHON", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    variables |= {
        "PATH": f"{environment / 'bin'}{os.pathsep}{variables['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=variables, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


def check_release(file, torch, scratch):
    """Install a wheel or an sdist, and merge, draw a plan and import with it."""
    environment = scratch / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = ("python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(environment, scratch, *pip, f"torch=={torch}")
    run(environment, scratch, *pip, "-c", CONSTRAINTS, file)
    names = enumerate(("base", "task", "language"))
    made = SimpleNamespace(**{n: make_model("llama", scratch / n, seed) for seed, n in names})
    counts = {"bottom_layers": 1, "top_layers": 1}
    written = write_recipe(scratch / "recipe.yml", recipe(roles(made), counts))
    wanted = expected(Swap(LAYERS, 1, 1, 0, 0), *map(stored, roles(made).values()))
    assert "merge" in run(environment, scratch, "layerswap", "--help")
    for command in (("mergekit-yaml",), ("layerswap", "merge")):
        out = scratch / command[0]
        run(environment, scratch, *command, written, out)
        assert_same(stored(out), wanted)
    drawn = run(environment, scratch, "python", "-c", PLAN)
    assert "layers: language 0-4,30-31; task 5-29" in drawn, drawn


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--torch", required=True, help="Its version, which pip installs first.")
def main(folder, torch):
    """Check the wheel and the sdist in a folder."""
    files = sorted(folder.resolve().iterdir())
    assert {file.name.rpartition(".")[2] for file in files} == {"whl", "gz"}, files
    for file in files:
        started = time.monotonic()
        scratch = Path(tempfile.mkdtemp())
        check_release(file, torch, scratch)
        shutil.rmtree(scratch)
        seconds = time.monotonic() - started
        click.echo(f"{file.name}: installed, merges and is imported; {seconds:.0f} s")


if __name__ == "__main__":
    main()
