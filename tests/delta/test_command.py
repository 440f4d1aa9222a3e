"""`layerswap delta`: what is written, drawn and printed; what is wrong is one clear error."""

import importlib.util
import itertools
import math
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from ablations.delta.analysis import label_all, measure_profiles
from ablations.delta.heatmap import PAGE_IN, draw_heatmaps
from ablations.delta.profile import read_tensor_changes
from ablations.drawing.canvas import drawing, images_of
from ablations.machine.whole_files import RESULTS
from ablations.paper.published import LABEL, Grid, published_grid, published_names
from layerswap_method.errors import InputError
from tests.delta.conftest import fine_tuned, pair_of
from tests.standins.command import layerswap, output_of
from tests.standins.fine_tunes import restored
from tests.standins.model_families import LAYERS, make_model


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return a base beside two experts of it. Do not write to them."""
    folder = tmp_path_factory.mktemp("models")
    base = make_model("llama", folder / "base", 1, dtype=torch.float32)
    fine_tuned(base, folder / "math", 2, changes=lambda name: "norm" not in name)
    fine_tuned(base, folder / "swahili", 3, changes=lambda name: ".layers.2." in name)
    return base


run = partial(layerswap, "delta")


def written(folder):
    files = {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()}
    return {str(file) for file in files if file.name != RESULTS}


def test_one_expert_is_a_row_a_tensor_and_a_heatmap(base, tmp_path):
    options = ("--base", base, "--out", tmp_path, "--threshold", "8e-4")
    output = output_of("delta", base.parent / "swahili", *options)
    assert written(tmp_path) == {"delta.csv", "delta.png", "delta.svg"}
    assert "have a MAV above 0.0008" in output
    assert str(tmp_path / "delta.svg") in output
    (profile,) = measure_profiles([str(base.parent / "swahili")], str(base), threshold=8e-4)
    table = pd.read_csv(tmp_path / "delta.csv")
    pd.testing.assert_frame_equal(table, profile.tensors.astype(table.dtypes), rtol=1e-8)
    norms = table[table["is_matrix"]].groupby("layer")["relative_norm"].sum()
    assert [norm > 0 for norm in norms] == [n == 2 for n in range(LAYERS)]


MEASURED = """
import sys
from ablations.cli import main
main(sys.argv[1:], standalone_mode=False)
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1]
print("torch" in sys.modules, int(peak) >> 10)
"""


def test_whole_checkpoints_are_measured_without_torch(base, tmp_path):
    """The 190 MiB of its import; of two 8B models in bfloat16 the peak is 20 MiB above this."""
    arguments = ("delta", base.parent / "math", "--base", base, "--out", tmp_path)
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    imported, peak_mib = done.stdout.splitlines()[-1].split()
    assert imported == "False"
    assert int(peak_mib) < 220


def test_several_experts_and_a_published_one_have_one_figure(base, tmp_path):
    wanted = ("--reference", "swahili expert #1", "--out", tmp_path)
    experts = (base.parent / "math", base.parent / "swahili")
    assert run(*experts, "--base", base, *wanted).exit_code == 0
    assert written(tmp_path) == {"math/delta.csv", "swahili/delta.csv", "delta.png", "delta.svg"}
    svg = (tmp_path / "delta.svg").read_text(encoding="utf-8")
    assert "<!-- math -->" in svg
    assert "<!-- Swahili expert #1 -->" in svg
    assert run(*wanted).exit_code == 0
    assert "reference-swahili-expert-1.svg" in written(tmp_path)


@pytest.mark.parametrize("name", ["delta.csv", "delta.svg"])
def test_a_file_of_the_user_is_not_replaced(base, tmp_path, name):
    words = (base.parent / "math", "--base", base, "--out", tmp_path)
    (tmp_path / name).write_text("mine")
    result = run(*words)
    assert (result.exit_code, f"{tmp_path / name}: exists, and layerswap did" in result.output) == (
        2,
        True,
    )
    assert written(tmp_path) == {name}
    (tmp_path / name).unlink()
    for _ in range(2):  # its own files are
        assert run(*words).exit_code == 0


def test_without_matplotlib_the_numbers_are_written(base, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    result = run(base, "--base", base, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert written(tmp_path) == {"delta.csv"}
    assert "Warning: base equals the base: every delta is 0" in result.stderr
    assert "pip install 'layerswap[plot]'" in result.stderr
    alone = run("--reference", "Swahili expert #1", "--out", tmp_path)
    assert (alone.exit_code, "pip install 'layerswap[plot]'" in alone.output) == (1, True)


def test_experts_have_short_names_of_their_own(tmp_path, monkeypatch):
    for names in ("runs/study", "same/same"):  # two folders may have one name
        (tmp_path / names).mkdir(parents=True)
    assert label_all(["x/a/model", "x/b/model"]) == ["a/model", "b/model"]
    assert label_all(["org/base+runs/adapter", "org/base"]) == ["adapter", "base"]
    monkeypatch.chdir(tmp_path / "runs" / "study")
    assert label_all([".", "..", "a", "x/."]) == ["study", "runs", "a", "x"]
    monkeypatch.chdir(tmp_path / "same" / "same")
    assert label_all([".", ".."]) == ["same/same", f"{tmp_path.name}/same"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give an EXPERT and its --base, or a published one with"),
        (("somewhere",), "the change is measured from a base: give the base model with --base"),
        (("a", "a/", "--base", "b"), "a is named twice"),
        (("a", "--base", "b", "--threshold", "-1"), "x>=0"),
        (("a", "--base", "b", "--threshold", "inf"), "--threshold is inf"),
        (("a", "--base", "b", "--threshold", "nan"), "--threshold is nan"),
        (("--reference", "Swahili expert #1", "--base", "b"), "need an EXPERT"),
        (("a", "--base", "b", "--reference", "Swahilli expert #1"), "did you mean 'Swahili exp"),
    ],
)
def test_what_the_command_line_lacks(arguments, message, tmp_path):
    result = run(*arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert (result.exit_code, message in result.output) == (2, True)


FILE = "model.safetensors"
NAME = "model.layers.3.mlp.up_proj.weight"


@pytest.fixture
def expert(base, tmp_path):
    return fine_tuned(base, tmp_path / "expert", 2)


def refused(expert, base, out, text):
    """Fail unless the command says the text in one error and writes nothing."""
    result = run(expert, "--base", base, "--out", out)
    assert result.exit_code == 2, result.output
    assert text in " ".join(result.output.split())
    assert result.output.count("Error:") == 1
    assert not out.exists()


def test_a_file_that_changes_while_it_is_read(base, expert):
    pair = pair_of(expert, base)
    (expert / FILE).write_bytes((expert / FILE).read_bytes()[:-10])
    with pytest.raises(InputError, match="were rewritten while they were in use"):
        read_tensor_changes(pair)
    (expert / FILE).unlink()
    with pytest.raises(InputError, match="the weights are gone"):
        read_tensor_changes(pair)


@pytest.mark.parametrize(("side", "value"), [("expert", math.nan), ("base", math.inf)])
def test_weights_that_are_no_numbers(side, value, base, expert, tmp_path):
    def spoil(tensors):
        tensors[NAME][3, 4] = tensors[NAME][20, 2] = value
        return tensors

    sides, before = {"expert": expert, "base": base}, set(threading.enumerate())
    sides[side] = restored(sides[side], tmp_path / side / side, spoil)
    said = f"{side}: 2 of 384 values of {NAME} are NaN or infinite"
    refused(sides["expert"], sides["base"], tmp_path / "out", said)
    with pytest.raises(InputError, match=said):
        read_tensor_changes(pair_of(sides["expert"], sides["base"]))
    # Though the error keeps its frames alive.
    new = set(threading.enumerate()) - before
    assert not [thread.name for thread in new if "Pool" in thread.name]


def test_places_where_nothing_can_be_read_or_written(base, expert, tmp_path):
    gone, other = tmp_path / "gone", make_model("llama", tmp_path / "other", 5)
    refused(other, base, tmp_path / "out", "base is not the base of other")
    refused(gone, base, tmp_path / "out", "gone: no such folder")
    refused(expert, gone, tmp_path / "out", "gone: no such folder")
    refused(f"{expert}+{base}", base, tmp_path / "out", "has no adapter_config.json")
    (tmp_path / "file").write_text("mine")
    refused(gone, gone, tmp_path / "file/out", f"{tmp_path / 'file'} is not a folder")


PAPER = tuple(published_grid("math expert #1").columns)


def _grid(layers, title="expert", note=""):
    values = np.random.default_rng(layers).random((layers, len(PAPER))) ** 2
    return Grid(title, PAPER, tuple(map(tuple, values.tolist())), note)


def test_a_published_expert_is_drawn_as_it_is_printed():
    grid = published_grid("Swahili expert #1")
    with drawing("test"):
        canvas = draw_heatmaps([grid])
        svg = images_of(canvas, ["svg"])["svg"].decode()
        axes, bar = canvas.axes
        assert axes.get_ylim() == (0, 32)  # layer 0 at the bottom
        assert axes.collections[0].get_clim() == bar.get_ylim() == (0.0, 1.0)
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels == ["q", "k", "v", "o", "gate", "up", "down"]
        assert [label.get_text() for label in axes.get_yticklabels()] == [*map(str, range(32))]
    assert "<image" not in svg  # vectors only
    assert f"<!-- {grid.title} -->" in svg
    numbers = {text.get_position(): text.get_text() for text in axes.texts}
    assert numbers == {
        (column + 0.5, layer + 0.5): "0" if value == 0 else f"{value:.2f}"
        for (layer, column), value in np.ndenumerate(np.array(grid.values))
    }
    assert np.array_equal(axes.collections[0].get_array(), grid.values)


@pytest.mark.parametrize(
    "grids",
    [
        [_grid(2)],
        [_grid(8)],
        [_grid(80)],
        [published_grid(name) for name in published_names()],
        [_grid(8, "runs/pocket/swahili/final"), published_grid("Swahili expert #1")],
        [_grid(32, "an expert with a long name " * 3, "and a long note " * 9)],
    ],
    ids=["2 layers", "8 layers", "70B", "six", "two depths", "long"],
)
def test_every_number_fits_its_cell_and_no_text_another(grids):
    with drawing("test"):
        canvas = draw_heatmaps(grids)
        canvas.draw_without_rendering()
        assert canvas.get_size_inches()[0] <= PAGE_IN
        for axes, grid in zip(canvas.axes[:-1], grids, strict=True):  # the last is the bar
            assert len(axes.texts) == len(grid.values) * len(grid.columns)
            frame = axes.get_window_extent()
            width, height = frame.width / len(grid.columns), frame.height / len(grid.values)
            boxes = [text.get_window_extent() for text in axes.texts]
            assert all(box.width < 0.95 * width and box.height < 0.95 * height for box in boxes)
        boxes = [axes.get_tightbbox() for axes in canvas.axes]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert all(canvas.bbox.fully_containsx(x) for box in boxes for x in box.intervalx)
        assert all(canvas.bbox.fully_containsy(y) for box in boxes for y in box.intervaly)
        label = canvas.axes[-1].yaxis.label
        assert " ".join(label.get_text().split()) == LABEL
        assert label.get_window_extent().height <= canvas.axes[-1].get_window_extent().height


def test_the_published_grids_are_those_of_the_paper():
    grids = [published_grid(name) for name in published_names()]
    assert [(len(grid.values), len(grid.columns)) for grid in grids] == [(32, 7)] * 6
    assert all(0 <= share <= 1 for grid in grids for row in grid.values for share in row)
    # Figure 4 prints layer 31 at the top: 0.411865 ... 0.374442.
    grid = published_grid("math EXPERT #1")
    assert (grid.values[31][0], grid.values[0][-1]) == (0.411865, 0.035854)
    assert "MAV > 1.0×10⁻⁵" in grid.note
