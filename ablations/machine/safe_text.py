"""Text made safe for file names."""

from __future__ import annotations

import re


def slug(text: str) -> str:
    """Return `text` in lower-case letters, digits and single hyphens, such as ``score-seed``."""
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")
