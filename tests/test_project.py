"""What a maintainer expects to find at the top: citation, workflow, hooks and forms agree."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load(path):
    found = yaml.safe_load((ROOT / path).read_text())
    assert isinstance(found, dict)
    return found


def test_the_citation_has_the_projects_version_and_licence():
    citation = load("CITATION.cff")
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    paper = citation["preferred-citation"]
    assert paper["title"] in readme
    for author in paper["authors"]:
        assert f"{author['given-names']} {author['family-names']}" in readme


def test_the_workflow_calls_the_one_script():
    jobs = load(".github/workflows/ci.yml")["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    python = {s["with"]["python-version"] for j in jobs.values() for s in j["steps"] if "with" in s}
    assert PROJECT["requires-python"] == f">={python.pop()}"


def test_the_hooks_ruff_is_the_one_of_the_environment():
    (hooks,) = load(".pre-commit-config.yaml")["repos"]
    (pinned,) = re.findall(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert hooks["rev"] == f"v{pinned}"
