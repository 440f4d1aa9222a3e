import hashlib
import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import get_args

import pytest

from ablations.drawing.charts import Chart, Panel, Point, Series, draw_chart
from ablations.report.charts import charts
from ablations.report.comparisons import Comparer
from ablations.report.observations import Observations
from ablations.report.summaries import Summaries
from ablations.runner.records import Run
from tests.fresh_process import printed
from tests.report.runs import study_of, write_run


def _charts(run: Run) -> dict[str, Chart]:
    summaries = Summaries(Observations(run), Comparer(seed=0, level=0.95))
    return {chart.key: chart for chart in charts(summaries)}


def test_a_grid_gives_lines_and_a_heatmap_with_gaps(grid: Run) -> None:
    found = _charts(grid)
    assert set(found) == {"score-bottom-layers", "score-top-layers", "heatmap-b-u"}
    lines = found["score-bottom-layers"].panels[0]
    assert [series.name for series in lines.series] == ["u=0", "u=1"]
    assert [[point.x for point in series.points] for series in lines.series] == [[0, 1], [0, 2]]
    heat = found["heatmap-b-u"].panels[0]
    assert (heat.rows, heat.columns) == (("0", "1", "2"), ("0", "1"))
    missing = [[value is None for value in row] for row in heat.values]
    assert missing == [[False, False], [False, True], [True, False]]


def test_points_are_the_scores_in_percent_with_their_intervals(grid: Run) -> None:
    panel = _charts(grid)["score-bottom-layers"].panels[0]
    (cell,) = [cell for cell in grid.cells if cell.label == "math+swahili b=1 u=0"]
    score = cell.scores[0]
    point = panel.series[0].points[1]
    assert score.interval is not None
    assert point.value == 100 * score.value
    assert (point.low, point.high) == (100 * score.interval.low, 100 * score.interval.high)
    (base,) = [cell for cell in grid.cells if cell.kind == "base"]
    assert panel.references[0] == ("base", 100 * base.scores[0].value)


def test_bleu_is_not_labelled_as_a_percentage(tmp_path: Path) -> None:
    study = study_of(
        vary={"bottom_layers": [0, 1], "top_layers": [0, 1]},
        evaluate={"tasks": ["math_sw", "translate_sw"]},
    )
    found = _charts(write_run(tmp_path, study, lambda _, __: 0.0, items=30))
    lines = found["score-bottom-layers"].panels
    assert [panel.y_label for panel in lines] == ["exact_match (%)", "BLEU"]
    titles = [panel.title for panel in found["heatmap-b-u"].panels]
    assert titles == ["math_sw, exact_match (%)", "translate_sw, BLEU"]


def test_placements_are_bars_averaged_over_seeds(placements: Run) -> None:
    (chart,) = _charts(placements).values()
    assert (chart.key, chart.kind) == ("bars-placement", "bars")
    points = chart.panels[0].series[0].points
    assert [point.tick for point in points] == ["outer", "middle", "alternating", "random"]
    middle = [
        cell.scores[0].value
        for cell in placements.cells
        if cell.values.get("placement") == "middle"
    ]
    assert len(middle) == 2
    assert points[1].value == pytest.approx(100 * sum(middle) / 2)


def test_layer_counts_are_placed_by_the_layers_that_are_really_swapped(tmp_path: Path) -> None:
    counts = [{"bottom_layers": b, "top_layers": u} for b, u in ((0, 0), (5, 2), (3, 1))]
    run = write_run(tmp_path, study_of(vary=counts), lambda _, __: 0.0, items=30)
    chart = _charts(run)["score-layer-count"]
    assert [(p.x, p.tick) for p in chart.panels[0].series[0].points] == [
        *((0.0, "0\n0+0"), (4.0, "4\n3+1"), (7.0, "7\n5+2")),
    ]
    assert chart.x_label == "layers from the language expert (of 8); below: b+u"


def test_any_number_that_varies_is_an_axis_such_as_divergence(tmp_path: Path) -> None:
    study = study_of(vary={"divergence": [1.0, 0.001, 0.1]})
    run = write_run(tmp_path, study, lambda _, __: 0.0, items=30)
    chart = _charts(run)["score-divergence"]
    assert [point.x for point in chart.panels[0].series[0].points] == [0.001, 0.1, 1.0]
    svg = draw_chart(chart).images["svg"].decode()
    ticks = [text for text in re.findall("<!-- (.*?) -->", svg) if text.startswith("0.")]
    assert ticks == ["0.001", "0.01", "0.1"] * len(chart.panels)


def test_every_baseline_has_a_look() -> None:
    from ablations.drawing.charts import _BASELINES
    from ablations.report.design import baselines
    from ablations.study.schema import BaselineKind

    models = baselines(study_of(baseline=list(get_args(BaselineKind))))
    assert [model.label for model in models if model.label not in _BASELINES] == []
    assert len(set(map(str, _BASELINES.values()))) == len(models)


def test_images_are_what_they_say(grid: Run) -> None:
    from PIL import Image

    for chart in _charts(grid).values():
        images = draw_chart(chart).images
        assert set(images) == {"svg", "png", "pdf"}
        root = ElementTree.fromstring(images["svg"])
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert b"<image" not in images["svg"]  # vectors only
        with Image.open(io.BytesIO(images["png"])) as image:
            assert image.width > 1000
            assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 10
        assert images["pdf"].startswith(b"%PDF")
        assert b"CreationDate" not in images["pdf"]


def test_a_line_does_not_cross_a_gap() -> None:
    def chart(*places: float) -> Chart:
        points = tuple(Point(x, 40.0 + x, None, None) for x in places)
        full = Series("u=0", tuple(Point(float(x), 30.0, None, None) for x in range(3)))
        panel = Panel("task", "exact_match (%)", (full, Series("u=1", points)))
        return Chart("gap", "t", "c", "lines", "b", (panel,))

    def strokes(drawn: Chart) -> int:
        svg = draw_chart(drawn).images["svg"].decode()
        # Clipped: inside the axes, so not the legend's.
        look = r'clip-path="[^"]*" style="fill: none; stroke: #d55e00; stroke-width: 1\.3'
        return sum(path.count("L") for path in re.findall(rf'<path d="([^"]*)" {look}', svg))

    assert strokes(chart(0.0, 1.0, 2.0)) == 2
    assert strokes(chart(0.0, 1.0)) == 1
    assert strokes(chart(0.0, 2.0)) == 0


_DRAW = """
import hashlib, sys
from pathlib import Path
from ablations.report.writer import build
from ablations.runner.records import load_run
written = build(load_run(Path(sys.argv[1])), ["md"], Path(sys.argv[2]))
for path in sorted(written):
    print(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
"""


def test_another_process_gives_the_same_bytes(placements: Run, tmp_path: Path) -> None:
    def drawn(seed: int) -> str:
        return printed(_DRAW, str(placements.path), str(tmp_path / str(seed)), seed=seed)

    first = drawn(1)
    assert {"bars-placement.svg", "bars-placement.png", "report.md"} <= set(first.split())
    assert first == drawn(2)
    nothing = hashlib.sha256(b"").hexdigest()
    assert nothing not in first
