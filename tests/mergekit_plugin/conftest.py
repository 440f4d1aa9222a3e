"""The command `mergekit-yaml` in this process; as a program, in test_command."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.standins.merging import write_recipe


@pytest.fixture
def merge(tmp_path):
    """Run mergekit's own click command in this process, where mergekit is imported."""

    def run(document, *options):
        from mergekit.scripts.run_yaml import main

        path = write_recipe(tmp_path / "recipe.yml", document)
        folder = tmp_path / "out" / "merged"
        words = [str(path), str(folder), "--no-copy-tokenizer", "--quiet", *options]
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        return SimpleNamespace(exit_code=result.exit_code, output=result.output, folder=folder)

    return run
