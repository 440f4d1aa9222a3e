"""Cells of numbers: what they show is read back from what was drawn."""

import math

from ablations.drawing.canvas import draw_cells, drawing, new_canvas


def test_what_is_not_there_is_hatched() -> None:
    with drawing("test"):
        axes = new_canvas(2, 2).subplots()
        draw_cells(
            axes,
            [[math.nan, 0.5], [0.25, math.nan]],
            rows=["0", "1"],
            columns=["q", "k"],
            limits=(0.0, 1.0),
            text=lambda value: f"{value:.2f}",
            font_pt=6,
        )
        assert axes.patch.get_hatch() == "///"  # behind the mesh, which has no colour there
        (mesh,) = axes.collections
        assert mesh.get_array().mask.tolist() == [[True, False], [False, True]]
        numbers = {text.get_position(): text.get_text() for text in axes.texts}
        assert numbers == {(1.5, 0.5): "0.50", (0.5, 1.5): "0.25"}
