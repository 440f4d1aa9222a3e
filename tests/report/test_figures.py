import hashlib
import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ablations.drawing.charts import Chart, Panel, Point, Series, draw_chart
from ablations.drawing.figure import spread
from ablations.drawing.forest import draw_forest
from ablations.drawing.score_map import draw_map
from ablations.report.charts import charts
from ablations.report.comparisons import Comparer
from ablations.report.forests import forest
from ablations.report.observations import Observations
from ablations.report.score_maps import layer_map, map_figure
from ablations.report.summaries import Summaries
from ablations.runner.records import CellRecord, Run
from tests.fresh_process import printed
from tests.report.runs import study_of, write_run


def _summaries(run: Run) -> Summaries:
    return Summaries(Observations(run), Comparer(seed=0, level=0.95))


def _charts(run: Run) -> dict[str, Chart]:
    return {chart.key: chart for chart in charts(_summaries(run))}


def test_a_grid_gives_lines_and_a_map_with_gaps(grid: Run) -> None:
    found = _charts(grid)
    assert set(found) == {"score-bottom-layers", "score-top-layers"}
    lines = found["score-bottom-layers"].panels[0]
    assert [series.name for series in lines.series] == ["u=0", "u=1"]
    assert [[point.x for point in series.points] for series in lines.series] == [[0, 1], [0, 2]]
    summaries = _summaries(grid)
    layers = layer_map(summaries)
    assert layers is not None
    chart = map_figure(summaries, layers)
    assert (chart.rows, chart.columns) == (("0", "1", "2"), ("0", "1"))
    cells = chart.panels[0].cells
    missing = {place for place, cell in cells.items() if cell.score is None}
    assert missing == {(1, 1), (2, 0)}
    assert sum(cell.is_best for cell in cells.values()) == 1
    assert all(cell.is_near_best for cell in cells.values() if cell.is_best)
    # Colours are differences to one reference: the task expert, where there is no soup.
    (expert,) = [cell for cell in grid.cells if cell.kind == "task_expert"]
    cell = cells[0, 0]
    assert cell.score is not None
    assert cell.difference == pytest.approx(cell.score - 100 * expert.scores[0].value)


def test_points_are_the_scores_in_percent_with_their_intervals(grid: Run) -> None:
    panel = _charts(grid)["score-bottom-layers"].panels[0]
    (cell,) = [
        cell for cell in grid.cells if cell.label == "math+swahili bottom_layers=1 top_layers=0"
    ]
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
    assert [panel.y_label for panel in lines] == ["exact match (%)", "BLEU"]


def test_a_forest_has_every_model_against_the_soup(placements: Run) -> None:
    found = forest(Observations(placements))
    assert found is not None
    assert (found.reference, found.baselines) == ("soup", 3)
    assert found.rows == (
        *("base", "task expert", "language expert"),
        *(f"swap {name} (2 draws)" for name in ("outer", "middle", "alternating", "random")),
    )
    assert [panel.title for panel in found.panels] == ["math, Swahili", "math, English"]
    scores = {
        kind: [cell.scores[0].value for cell in placements.cells if _is(cell, kind)]
        for kind in ("soup", "middle")
    }
    middle = found.panels[0].estimates[4]
    assert middle is not None
    expected = 100 * (sum(scores["middle"]) / 2 - scores["soup"][0])
    assert middle.value == pytest.approx(expected)
    assert middle.low < middle.value < middle.high


def _is(cell: CellRecord, kind: str) -> bool:
    return kind in (cell.kind, cell.values.get("placement"))


def test_labels_are_moved_apart_and_stay_inside() -> None:
    assert spread([1.0, 50.0], 5.0, 0.0, 100.0) == [1.0, 50.0]
    moved = spread([99.0, 100.0, 100.0, 2.0], 4.0, 0.0, 101.0)
    assert moved == [93.0, 97.0, 101.0, 2.0]


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


def test_images_are_what_they_say(grid: Run) -> None:
    from PIL import Image

    summaries = _summaries(grid)
    layers, lead = layer_map(summaries), forest(summaries.observations)
    assert layers is not None
    assert lead is not None
    drawn = [draw_map(map_figure(summaries, layers)), draw_forest(lead)]
    for each in (*drawn, *map(draw_chart, _charts(grid).values())):
        images = each.images
        assert len(each.panels) == 2
        assert all(panel.count(b"<svg") == 1 for panel in each.panels)
        assert set(images) == {"svg", "png", "pdf"}
        root = ElementTree.fromstring(images["svg"])
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert b"<image" not in images["svg"]  # vectors only
        with Image.open(io.BytesIO(images["png"])) as image:
            assert image.width > 900
            assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 10
        assert images["pdf"].startswith(b"%PDF")
        assert b"CreationDate" not in images["pdf"]


def test_a_line_does_not_cross_a_gap() -> None:
    def chart(*places: float) -> Chart:
        points = tuple(Point(x, 40.0 + x, None, None) for x in places)
        full = Series("u=0", tuple(Point(float(x), 30.0, None, None) for x in range(3)))
        panel = Panel("task", "exact_match (%)", (full, Series("u=1", points)))
        return Chart("gap", "t", "c", "b", (panel,))

    def strokes(drawn: Chart) -> int:
        svg = draw_chart(drawn).images["svg"].decode()
        look = r'clip-path="[^"]*" style="fill: none; stroke: #d55e00; stroke-width: 1\.3'
        return sum(path.count("L") for path in re.findall(rf'<path d="([^"]*)" {look}', svg))

    assert strokes(chart(0.0, 1.0, 2.0)) == 2
    assert strokes(chart(0.0, 1.0)) == 1
    assert strokes(chart(0.0, 2.0)) == 0


def test_the_line_to_a_name_ends_before_all_names() -> None:
    """Five names at two heights are moved far apart; no line to one of them crosses another."""
    names = ("soup", "TIES", "task expert", "base", "average")
    lines = (Series("layer swap", (Point(0, 86, 80, 90), Point(1, 85, 80, 90))),)
    panel = Panel("task", "exact_match (%)", lines, tuple((name, 86.0) for name in names))
    (svg,) = draw_chart(Chart("names", "t", "c", "b", (panel,))).panels
    starts = [
        float(place)
        for name, place in re.findall(
            r"<!-- (.*?) -->\s*<g style=[^>]*?translate\(([\d.]+)", svg.decode()
        )
        if name in (*names, "layer swap")
    ]
    leader = r'<path d="([^"]*)" style="fill: none; stroke: #\w+; stroke-width: 0\.5; '
    ends = [
        float(x)
        for path in re.findall(leader, svg.decode())
        for x, _ in re.findall(r"([\d.]+) ([\d.]+)", path)
    ]
    assert len(starts) == 6
    assert len(ends) >= 12
    assert max(ends) <= min(starts)


_DRAW = """
import hashlib, sys
from pathlib import Path
from ablations.report.formats import FORMATS
from ablations.report.writer import build
from ablations.runner.records import load_run
written = build(load_run(Path(sys.argv[1])), FORMATS, Path(sys.argv[2]))
for path in sorted(written.files):
    print(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
"""


def test_another_process_gives_the_same_bytes(placements: Run, tmp_path: Path) -> None:
    def drawn(seed: int) -> str:
        return printed(_DRAW, str(placements.path), str(tmp_path / str(seed)), seed=seed)

    first = drawn(1)
    names = {"differences.svg", "differences.png", "report.md", "report.html", "tables.tex"}
    assert names <= set(first.split())
    assert first == drawn(2)
    nothing = hashlib.sha256(b"").hexdigest()
    assert nothing not in first
