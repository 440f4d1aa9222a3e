"""The alias of vLLM's CPU build, on a distribution that is really on the path; its requirements."""

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
print(",".join(d.name for d in metadata.distributions() if d.name.startswith("vllm")))
"""
ROOT = Path(__file__).parents[2]
REQUIREMENTS = (ROOT / "ablations" / "engines" / "requirements-vllm-cpu.txt").read_text()
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
"""What breaks torch."""


def _answers(site):
    """Run ASK in a bare interpreter that finds this checkout and `site`, and no other vLLM."""
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(site)!r}]\n{ASK}"
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("distribution", "version", "answers"),
    [
        ("vllm-cpu", "0.32.0", ["0.32.0+cpu", "0.32.0+cpu", "vllm-cpu"]),  # listed once
        ("vllm", "0.32.1", ["0.32.1", "0.32.1", "vllm"]),
        (None, "", ["None", "not found", ""]),
    ],
)
def test_the_cpu_build_answers_to_vllm_and_nothing_else_does(
    tmp_path, distribution, version, answers
):
    if distribution is not None:
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / "METADATA").write_text(text)
        (tmp_path / "vllm").mkdir()
        (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('vLLM was imported')\n")
    assert _answers(tmp_path) == answers
    # Leftover metadata without the package is no vLLM.
    shutil.rmtree(tmp_path / "vllm", ignore_errors=True)
    assert _answers(tmp_path)[0] == "None"


def _names(requirements):
    found = (re.match(r"[A-Za-z0-9._-]+", each) for each in requirements)
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match}


def test_the_requirements_leave_out_what_breaks_torch():
    listed = _names(REQUIREMENTS.splitlines())
    assert len(listed) > 50
    assert not listed & (LEFT_OUT | {"vllm", "vllm-cpu"})
    assert "://" not in REQUIREMENTS


@pytest.mark.vllm
def test_the_requirements_are_all_else_that_the_cpu_build_wants():
    try:
        wanted = importlib.metadata.requires("vllm-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the CPU build is not installed")
    assert importlib.metadata.version("vllm-cpu") == "0.32.0"
    wanted = _names(each for each in wanted if "extra ==" not in each)
    assert _names(REQUIREMENTS.splitlines()) == wanted - LEFT_OUT
