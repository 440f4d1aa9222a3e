"""The model card of a merge, in the words of mergekit 0.1.5's own.

`adapter_swap/card.py` has that of a swapped adapter; `layerswap card` completes a card for the hub
(`ablations/hub_card.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from layerswap_method.errors import printable
from layerswap_method.methods.table import METHODS
from layerswap_method.recipe.references import is_there, named_models

_CARD = """---
{metadata}
---
# {name}

This is a merge of pre-trained language models created using [mergekit](https://github.com/cg123/mergekit).

## Merge Details
### Merge Method

This model was merged using the {method} merge method{base}.

### Models Merged

The following models were included in the merge:
{models}

### Configuration

The following YAML configuration was used to produce this model:

{fence}yaml
{text}
{fence}
"""

_CODE = """
### Loading

The model's own code is in this folder. transformers runs it only with `trust_remote_code=True`;
read it first.
"""


def card_text(
    document: Mapping[str, Any],
    text: str,
    name: str,
    lines: Sequence[str] = (),
    *,
    needs_code: bool = False,
) -> str:
    """Return the text of a model card.

    `text` is the recipe (`document`) as its author wrote it, `lines` are those of the `Merge`, and
    `needs_code` says whether loading it needs ``trust_remote_code``.
    """
    base = document.get("base_model")
    models = dict.fromkeys(named_models(document))
    parts = dict.fromkeys(part for model in models for part in _parts(model))
    metadata = {
        "base_model": [part for part in parts if not _is_local(part)],
        "tags": ["mergekit", "merge"],
        "library_name": "transformers",
    }
    fences = re.findall(r"`+", "\n".join([text, *lines]))
    longest = max(map(len, fences), default=0)
    fence = "`" * max(3, longest + 1)  # a fence in the recipe ends no block of the card
    card = _CARD.format(
        metadata=yaml.dump(metadata),
        name=name,
        method=METHODS[document["merge_method"]].card,
        base=f" using {_linked(base)} as a base" if base else "",
        models="\n".join(f"* {_linked(model)}" for model in models if model != base),
        text=text,
        fence=fence,
    )
    if lines:
        card += "\n### What was merged\n\n" + "\n".join([fence, *lines, fence]) + "\n"
    return printable(card) + (_CODE if needs_code else "")  # names are a stranger's


def _parts(reference: str) -> list[str]:
    """Return the path of a model, and that of its adapter, without revisions."""
    return [part.partition("@")[0] for part in reference.split("+")]


def _is_local(path: str) -> bool:
    return path.startswith(("/", "~")) or path.count("/") > 1 or is_there(path)


def _linked(reference: str) -> str:
    return " + ".join(
        path if _is_local(path) else f"[{path}](https://huggingface.co/{path})"
        for path in _parts(reference)
    )
