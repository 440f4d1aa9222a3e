"""Names in figures: signs and letters that matplotlib or the font would make something else of."""

from pathlib import Path

from ablations.delta.figures import (
    comparison,
    heatmap,
)
from ablations.drawing.grid import Grid
from tests.delta.test_figures import pair_of


def test_a_name_with_dollar_signs_is_no_mathematics(tmp_path: Path) -> None:
    drawn: dict[str, list[str]] = {}
    for name in ("a$b$c", "axbxc"):
        grid = Grid(title=name, columns=("q", "k"), values=((0.1, 0.2),) * 2, label="MAV")
        heatmap([grid], tmp_path / "delta")
        comparison([pair_of(name, "d", (0.1, 0.2), (0.3, 0.4))], tmp_path / "lines")
        drawn[name] = [(tmp_path / file).read_text("utf-8") for file in ("delta.svg", "lines.svg")]
    for odd, plain in zip(*drawn.values(), strict=True):
        # As many letters, the two signs among them; in mathematics they would be slanted.
        assert odd.count("#DejaVuSans") == plain.count("#DejaVuSans") > 5
        assert "Oblique" not in odd
