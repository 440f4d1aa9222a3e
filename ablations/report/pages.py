"""The environment of the HTML templates: every text in them is escaped."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from ablations.report.answer_words import (
    kinds_of,
    line_text,
    outcome_text,
    taken_texts,
    target_text,
    values_text,
    visible,
)

_FOLDED = 600
"""Characters of a text from which on it is folded."""


def page_environment() -> Any:
    """Return the jinja2 environment of the templates of this folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ablations.report", "."),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"visible": visible, "sha256": _sha256}
    environment.tests["long"] = lambda text: len(text) > _FOLDED
    environment.globals |= {
        "folded_size": _FOLDED,
        "kinds_of": kinds_of,
        "line_text": line_text,
        "taken_texts": taken_texts,
        "target_text": target_text,
        "values_text": values_text,
        "outcome_text": outcome_text,
    }
    return environment


def _sha256(text: str) -> str:
    """Return the hash by which a page's policy allows its own style or script, and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
