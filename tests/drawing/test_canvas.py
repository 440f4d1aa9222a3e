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
        hatched = [(patch.get_xy(), patch.get_hatch()) for patch in axes.patches]
        assert hatched == [((0, 0), "///"), ((1, 1), "///")]
        (mesh,) = axes.collections
        assert mesh.get_array().mask.tolist() == [[True, False], [False, True]]
        numbers = {text.get_position(): text.get_text() for text in axes.texts}
        assert numbers == {(1.5, 0.5): "0.50", (0.5, 1.5): "0.25"}


def test_neighbours_have_one_frame_and_what_is_absent_none() -> None:
    with drawing("test"):
        axes = new_canvas(2, 2).subplots()
        draw_cells(
            axes,
            [[0.1, 0.2, math.nan], [0.3, 0.4, 0.5]],
            rows=["0", "1"],
            columns=["0", "1", "2"],
            limits=(0.0, 1.0),
            text=str,
            font_pt=6,
            marks={(0, 1): "★"},
            framed={(0, 0), (0, 1)},
            absent={(0, 2)},
        )
        assert not axes.patches
        (_, white, black) = axes.collections
        sides = {tuple(map(tuple, side.tolist())) for side in black.get_segments()}
        assert sides == {
            ((0, 0), (0, 1)),
            ((2, 0), (2, 1)),
            *(((n, y), (n + 1, y)) for n in (0, 1) for y in (0, 1)),
        }
        assert len(white.get_segments()) == len(sides)
        (mark,) = (text for text in axes.texts if text.get_text() == "★")
        assert mark.get_position() == (1.5, 0.82)
