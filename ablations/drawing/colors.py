"""The colours of all figures, as matplotlib takes them."""

from __future__ import annotations

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's, which colour-blind readers can tell apart; markers should differ as well."""

BETTER_COLOR, WORSE_COLOR, SAME_COLOR, UNCLEAR_COLOR = COLORS[2], COLORS[1], COLORS[0], "#555555"
"""Colours of the verdicts on two models."""

ZERO_COLOR, MARGIN_COLOR = "#666666", "#e8e8e8"
"""Colours of the line of no difference, and of the band of differences too small to matter."""

CELL_COLORS = "Greens"
"""Colour map of cells with numbers; dark is high."""

GAP_COLOR, GAP_LINE_COLOR = "#eeeeee", "#888888"
"""Colours of a cell without a number and of its hatching."""

SUBTITLE_COLOR, NOTE_COLOR = "#444444", "#555555"
"""Colours of the line below a title, and of the note below an axis."""
