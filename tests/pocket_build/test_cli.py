from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.cli.pocket import pocket
from ablations.pocket_build.build import PocketPaths


def test_a_folder_in_the_way_is_a_message_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    result = CliRunner().invoke(pocket, ["build", "--preset", "tiny", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "Error: " in result.output
    assert "build in another folder" in result.output


@pytest.mark.slow
def test_build_on_a_finished_testbed_prints_where_everything_is(tiny_pocket: PocketPaths) -> None:
    arguments = ["build", "--preset", "tiny", "--out", str(tiny_pocket.root)]
    result = CliRunner().invoke(pocket, arguments)
    assert result.exit_code == 0, result.output
    assert f"{tiny_pocket.base}" in result.output
    assert f"tasks: {tiny_pocket.tasks_dir}" in result.output
