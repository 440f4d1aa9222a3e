"""Settings, values and kinds of a study in words: the parts of its models' labels."""

from __future__ import annotations

import json
import re

from ablations.study.documents import merge_counts, with_values
from ablations.study.schema import EXPERTS, Setting, Study, Value
from layerswap_method.layer_plan import format_layers
from layerswap_method.methods.layer_swap import LETTERS
from layerswap_method.methods.table import METHODS

NUMBERED = re.compile(r"(.*?_)(0|[1-9][0-9]*)")


def setting_key(value: object) -> str:
    """Return a text that is equal for equal settings, or values of them."""
    return json.dumps(value, sort_keys=True)


def merge_note(study: Study, num_layers: int | None) -> str:
    """Return what the letters in labels mean, and the layer counts that all merges share."""
    settings = [merge_counts(study, setting, num_layers) for setting in study.settings()]
    names = {name for counts in settings for name in counts}
    if not names:
        return ""
    of = "" if num_layers is None else f" of {num_layers}"
    documents = (with_values(study.recipe or {}, setting) for setting in study.settings())
    methods = dict.fromkeys(str(document.get("merge_method")) for document in documents)
    to = " or ".join(METHODS[name].counted for name in methods if name in METHODS)
    note = f"b, u: layers{of} {to} at the bottom (embedding side) and the top"
    if any(counts.get("bottom_transition") for counts in settings):
        note += "; t_b, t_u: averaged layers next to them"
    first, *others = settings
    shared = {
        name: first[name]
        for name in LETTERS
        if first.get(name) and all(counts.get(name) == first[name] for counts in others)
    }
    merges = "every merge has" if others else "the merge has"
    return f"{note}; {merges} {describe_setting(shared)}." if shared else f"{note}."


def describe_setting(setting: Setting) -> str:
    """Return ``middle b=5 u=2``, with the paper's letters for layer counts."""
    return " ".join(
        describe_value(value)
        if name == "placement"
        else f"{LETTERS.get(name, name.removeprefix(EXPERTS))}={describe_value(value)}"
        for name, value in setting.items()
    )


def describe_value(value: Value) -> str:
    """Return a value as a study file writes it; experts ``a_1, a_2, a_3`` as ``a_1-3``."""
    if isinstance(value, (tuple, list)):
        parts = [NUMBERED.fullmatch(name) for name in value]
        numbers = [int(part[2]) for part in parts if part is not None]
        stems = {part[1] for part in parts if part is not None}
        if len(numbers) == len(value) > 1 == len(stems) and numbers == sorted(set(numbers)):
            return f"{stems.pop()}{format_layers(numbers)}"
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def kind_text(kind: str) -> str:
    """Return a kind of baseline in words."""
    return "TIES" if kind == "ties" else kind.replace("_", " ")


def merge_text(study: Study, shown: Setting) -> str:
    """Return the merge method of a study in words, and what is shown of a setting."""
    method = str((study.recipe or {}).get("merge_method", "recipe")).replace("_", " ")
    return f"{method} {describe_setting(shown)}".strip()
