"""The command `mergekit-yaml` as a program and in this process."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner


def write_recipe(path, document):
    text = document if isinstance(document, str) else yaml.safe_dump(document, sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def command(tmp_path):
    """Run the program `mergekit-yaml` as a shell does, and note every module that it imports."""
    program = Path(sys.executable).with_name("mergekit-yaml")
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}

    def run(document, *options, out="merged", recipe="recipe.yml", called="recipe.yml"):
        folder = tmp_path / "program" / out
        write_recipe(tmp_path / recipe, document)
        words = [program, tmp_path / called, folder, *options]
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(words, env=environment, check=False, **how)
        lines = done.stdout.splitlines()
        imported = {line.rpartition("|")[2].strip() for line in lines if "import time:" in line}
        output = "\n".join(line for line in lines if "import time:" not in line)
        assert "layerswap_method" in imported, output
        code = done.returncode
        return SimpleNamespace(exit_code=code, output=output, folder=folder, imported=imported)

    return run


@pytest.fixture
def merge(tmp_path):
    """Run mergekit's own click command in this process, where mergekit is imported."""

    def run(document, *options):
        from mergekit.scripts.run_yaml import main

        path = write_recipe(tmp_path / "recipe.yml", document)
        folder = tmp_path / "out" / "merged"
        words = [str(path), str(folder), "--no-copy-tokenizer", "--quiet", *options]
        result = CliRunner().invoke(main, words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return SimpleNamespace(exit_code=result.exit_code, output=result.output, folder=folder)

    return run
