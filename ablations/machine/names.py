"""Text made safe for file names, terminals and spreadsheets."""

from __future__ import annotations

import re


def slug(text: str) -> str:
    """Return `text` in lower-case letters, digits and single hyphens, such as ``score-seed``."""
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")


def printable(text: str) -> str:
    r"""Return `text` with control characters as ``\x1b``: a terminal obeys none of them.

    Tabs and line breaks stay.
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda c: f"\\x{ord(c[0]):02x}", text)


def spreadsheet_text(text: str) -> str:
    """Return `text` as a cell that a spreadsheet shows; a formula would be computed."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
