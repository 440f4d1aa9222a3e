"""Fresh virtual environments that borrow every package but ours."""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
OURS = ("layerswap", "_layerswap", "layerswap_method", "ablations")
SCRIPTS = {
    "mergekit-yaml": "mergekit.scripts.run_yaml",
    "mergekit-multi": "mergekit.scripts.multimerge",
}


def mirror_packages(folder):
    """Link to every installed package but ours, and to no `.pth`: nothing registers from there."""
    folder.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        ours = entry.name.split("-")[0].removesuffix(".pth") in OURS
        if not ours and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


def build_wheel(folder):
    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *flags, REPOSITORY], check=True)
    (wheel,) = folder.glob("layerswap-*.whl")
    return wheel


@dataclass(frozen=True)
class Environment:
    """A virtual environment made by `python -m venv`."""

    root: Path

    @classmethod
    def create(cls, root, packages):
        flags = ("--without-pip", "--symlinks")
        subprocess.run([sys.executable, "-m", "venv", *flags, root], check=True)
        made = cls(root)
        # A path line makes Python look there; the `.pth` files in that folder are not read.
        (made.site_packages / "borrowed.pth").write_text(f"{packages}\n")
        for script, module in SCRIPTS.items():  # what pip writes for mergekit's entry points
            path = root / "bin" / script
            call = f"import sys\nfrom {module} import main\nsys.exit(main())\n"
            path.write_text(f"#!{made.python}\n{call}")
            path.chmod(0o755)
        return made

    @property
    def python(self):
        return self.root / "bin" / "python"

    @property
    def site_packages(self):
        return next((self.root / "lib").glob("python3*")) / "site-packages"

    def listing(self):
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}

    def run(self, *command, check=True, timeout=300):
        """Run a command with this environment's programs first, outside the checkout."""
        ours = ("PYTHON", "PYTEST", "COV")
        inherited = {n: value for n, value in os.environ.items() if not n.startswith(ours)}
        path = f"{self.root / 'bin'}{os.pathsep}{inherited.get('PATH', '')}"
        variables = {**inherited, "OMP_NUM_THREADS": "1", "PATH": path}
        how = {"capture_output": True, "text": True, "cwd": self.root, "timeout": timeout}
        done = subprocess.run([*map(str, command)], env=variables, **how, check=False)
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def code(self, source, check=True):
        return self.run(self.python, "-c", source, check=check)

    def pip(self, *arguments):
        """Run the outer environment's pip on this one, without any package index."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "--no-input", *arguments]
        variables = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run([*map(str, command)], env={**os.environ, **variables}, check=True)

    def install(self, *what):
        self.pip("install", "--no-deps", "--no-build-isolation", *what)
