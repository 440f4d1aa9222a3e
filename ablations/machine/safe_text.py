"""Text made safe for file names and spreadsheets."""

from __future__ import annotations

import re


def slug(text: str) -> str:
    """Return `text` in lower-case letters, digits and single hyphens, such as ``score-seed``."""
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")


def spreadsheet_text(text: str) -> str:
    """Return `text` as a cell that a spreadsheet shows; a formula would be computed."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
