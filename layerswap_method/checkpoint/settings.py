"""Settings of the configs that change what a model computes or generates, compared.

Keys of which it is known what they change are compared by meaning: where configs are not written
alike, as their class in transformers reads them, which knows the spellings of all versions and the
default of every key that is left out. Every other key is compared as it is written.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.config import stated_rope, text_part
from layerswap_method.checkpoint.tokens import read_vocabulary
from layerswap_method.errors import InputError

_COMPUTED: Mapping[str, tuple[str, ...]] = {
    "RoPE": (
        "no_rope_*",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rope_*",
        "rotary_*",
    ),
    "norms": ("*norm_eps", "*norm_epsilon", "*residual_connection_post_layernorm"),
    "activation": ("activation_function", "hidden_act*", "swiglu_*"),
    "attention": (
        "*sliding_window",
        "*softcapping",
        "attention_chunk_size",
        "clip_qkv",
        "head_dim",
        "layer_types",
        "n_head",
        "num_attention_heads",
        "num_key_value_heads",
        "query_pre_attn_scalar",
        "scale_attn_*",
        "use_bidirectional_attention",
    ),
    "choice of experts": (
        "moe_top*",
        "n_group",
        "norm_topk_prob",
        "num_experts_per_tok",
        "route*_scal*",
        "scoring_func",
        "topk_*",
    ),
    "scales": ("*_multiplier*", "dim_model_base", "logit*_scal*", "scale_*"),
}
"""What the layers compute with -> patterns of its keys in text configs."""

_ELSEWHERE = {
    *("architectures", "dtype", "quantization_config", "torch_dtype"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "vocab_size"),
    *("name_or_path", "transformers_version", "use_cache"),
}
"""Keys that other checks compare, and those of whoever saved a model."""

_ROPE = ("rope_parameters", "rope_scaling", "rope_theta")
_BY_LENGTH = ("dynamic", "longrope")
"""Kinds of RoPE that depend on the longest sequence."""

_ROPE_DEFAULTS = {"partial_rotary_factor": 1.0, "beta_fast": 32, "beta_slow": 1, "truncate": True}
_SHOWN = 60
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_TOKENIZER_SETTINGS = ("add_bos_token", "add_eos_token", "bos_token", "eos_token")
"""Keys of ``tokenizer_config.json`` that change where texts begin and answers end."""


def text_configs(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """Return the text configs of checkpoints, all in one form.

    They are as they are written where no key of `_COMPUTED` differs, which costs no import, and
    else as transformers reads them; where it cannot read one of them, all are as they are written.
    """
    documents = [model.document for model in checkpoints]
    texts = [text_part(document) for document in documents]
    settings = [_computed(text) for text in texts]
    if all(stated == settings[0] for stated in settings):
        return texts
    completed = [_as_transformers(document) for document in documents]
    return texts if None in completed else [text for text in completed if text is not None]


def differing_settings(texts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the keys of `_COMPUTED` in which `text_configs` differ: key -> the value of each.

    A key that one of them lacks has no known default and is no difference.
    """
    settings = [{**_computed(text), **_rope_form(text)} for text in texts]
    differing: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for stated in settings for key in stated):
        is_complete = all(key in stated for stated in settings)
        block, dot, _ = key.rpartition(".")
        rope_types = [stated.get(f"{block}.rope_type") for stated in settings]
        # RoPE of another kind has other keys.
        is_other_rope = bool(dot) and any(kind != rope_types[0] for kind in rope_types)
        if is_complete or is_other_rope:
            differing |= _parts(key, [stated.get(key) for stated in settings])
    return differing


def settings_warning(checkpoints: Sequence[Checkpoint]) -> str | None:
    """Return what the layers of the checkpoints compute differently, with all values, as a warning.

    It is None where they compute the same.
    """
    differing = differing_settings(text_configs(checkpoints))
    parts = dict[str, list[str]]()
    for line, key in zip(_listed(checkpoints, differing), differing, strict=True):
        parts.setdefault(_changed_by(key.partition("[")[0]) or "", []).append(line)
    if not parts:
        return None
    settings = "; ".join(f"{part} ({'; '.join(lines)})" for part, lines in parts.items())
    return (
        f"the checkpoints have different settings of {settings}; the merge has those of its "
        "base_model, if its log names no other"
    )


def settings_note(checkpoints: Sequence[Checkpoint], donor: Checkpoint) -> str | None:
    """Return every other difference of what all configs state, as they are written, as a note."""
    stated = [_other_settings(model.document, text_part(model.document)) for model in checkpoints]
    differing: dict[str, list[Any]] = {}
    for key in stated[0]:
        if all(key in settings for settings in stated):
            differing |= _parts(key, [settings[key] for settings in stated])
    if not differing:
        return None
    return (
        f"other settings of the configs differ, too ({'; '.join(_listed(checkpoints, differing))})"
        f"; the merge has those of {donor.name}"
    )


def generation_notes(
    checkpoints: Sequence[Checkpoint], donor: Checkpoint, *, has_its_tokenizer: bool = True
) -> Iterator[str]:
    """Yield a note where models chat, end or generate otherwise than the `donor` of a merge.

    Of tokenizer and chat template nothing is said where the merge does not take them of it.
    """
    if donor.adapter is not None:  # The merge takes nothing of an adapter's folder.
        donor = replace(donor, name=f"the base of {donor.name}", adapter=None)
    models = [donor, *(model for model in checkpoints if model.name != donor.name)]
    template = _chat_template(donor)
    others = [model.name for model in models[1:] if _chat_template(model) not in (None, template)]
    if others and has_its_tokenizer:
        what = "none" if template is None else "another"
        yield (
            f"{' and '.join(others)} has a chat template and {donor.name} has {what}, which the "
            "merge takes; to chat with it, write the template into its chat_template.jinja"
        )
    settings = [_generation(model) for model in models]
    differing = {}
    for key in sorted({key for stated in settings for key in stated}):
        values = [stated.get(key) for stated in settings]
        # Ids of tokens stand in config.json as well, where many configs leave them out; what a
        # tokenizer does without a key depends on its class.
        is_known = key not in (*_SPECIAL_IDS, *_TOKENIZER_SETTINGS) or all(
            key in stated for stated in settings
        )
        is_taken = has_its_tokenizer or key not in _TOKENIZER_SETTINGS
        if is_known and is_taken and any(value != values[0] for value in values):
            differing[key] = values
    if differing:
        yield (
            f"the models generate with different settings ({'; '.join(_listed(models, differing))})"
            f"; the merge takes those of {donor.name}"
        )


def end_warning(folder: Path) -> str | None:
    """Return that the configs of a written merge name another end than its tokenizer, as a warning.

    It is None where one of them names none.
    """
    vocabulary = read_vocabulary("the merge", folder)
    end = _tokenizer_settings(folder).get("eos_token")
    if vocabulary is None or not isinstance(end, str) or end not in vocabulary.tokens:
        return None
    number = vocabulary.tokens[end]
    token_of = {taken: token for token, taken in vocabulary.tokens.items()}
    stated = []
    for name in ("config.json", "generation_config.json"):
        document = _stated(folder / name)
        ids = _first_stated("eos_token_id", text_part(document), document)
        ends = ids if isinstance(ids, list) else [ids]
        if ids is not None and number not in ends:
            tokens = ", ".join(repr(token_of.get(each)) for each in ends)
            stated.append(f"{name} of the merge has eos_token_id {ids} ({tokens})")
    if not stated:
        return None
    return (
        f"{' and '.join(stated)}, but its tokenizer ends with {end!r}, which is {number}: write "
        f"eos_token_id {number} there, or the merge does not stop at it"
    )


def _chat_template(checkpoint: Checkpoint) -> str | None:
    """Return a model's chat template as it is stored, its adapter's first; None for none."""
    for folder in filter(None, (checkpoint.adapter, checkpoint.path)):
        file = folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8", errors="replace").strip()
        for name in ("chat_template.json", "tokenizer_config.json"):
            template = _stated(folder / name).get("chat_template")
            if template:
                return template.strip() if isinstance(template, str) else json.dumps(template)
    return None


def _tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Return the `_TOKENIZER_SETTINGS` that a folder states, tokens as their text."""
    stated = _stated(folder / "tokenizer_config.json")
    values = {key: stated[key] for key in _TOKENIZER_SETTINGS if stated.get(key) is not None}
    return {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in values.items()
    }


def _stated(file: Path) -> dict[str, Any]:
    """Return the content of a file; {} where it cannot be read, and who needs it says why."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _other_settings(document: Mapping[str, Any], text: object, place: str = "") -> dict[str, Any]:
    """Return PART.KEY -> value of all keys that are neither in `_COMPUTED` nor in `_ELSEWHERE`.

    `text` is the text part of the document; the keys of other parts are not in `_COMPUTED`.
    """
    settings: dict[str, Any] = {}
    for key, value in document.items():
        is_compared = document is text and _changed_by(key) is not None
        if is_compared or key in _ELSEWHERE or key.startswith("_"):
            continue
        if isinstance(value, dict):
            settings |= _other_settings(value, text, f"{place}{key}.")
        else:
            settings[f"{place}{key}"] = value
    return settings


def _listed(checkpoints: Sequence[Checkpoint], differing: Mapping[str, Sequence[Any]]) -> list[str]:
    lines = []
    for key, values in differing.items():
        stated = (
            f"{checkpoint.name} {_short(value)}"
            for checkpoint, value in zip(checkpoints, values, strict=True)
        )
        lines.append(f"{key}: {', '.join(stated)}")
    return lines


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _computed(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a text config that are in `_COMPUTED`, RoPE's as they are written."""
    return {key: value for key, value in text.items() if _changed_by(key) is not None}


def _changed_by(key: str) -> str | None:
    """Return what a key of a text config changes in the layers; None where that is not known."""
    for part, patterns in _COMPUTED.items():
        if any(fnmatchcase(key, pattern) for pattern in patterns):
            return part
    return None


def _as_transformers(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the text config as transformers reads a config; None where it has no class for it.

    Code of the model's folder is not run.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        config = CONFIG_MAPPING[document["model_type"]].from_dict(copy.deepcopy(document))
        text: dict[str, Any] = config.get_text_config().to_dict()
    except Exception:  # classes check what they please; a merge needs none of it
        return None
    finally:
        logging.set_verbosity(level)
    return text


def _rope_form(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return RoPE's settings under ``rope_parameters.KEY`` or, by layer type, ``....TYPE.KEY``."""
    stated = stated_rope(text)
    form: dict[str, Any] = dict.fromkeys(_ROPE)
    nested = {kind: part for kind, part in stated.items() if isinstance(part, dict)}
    for kind, part in (nested or {"": stated}).items():
        rope = {"rope_theta": text.get("rope_theta"), **_ROPE_DEFAULTS, **part}
        rope["rope_type"] = part.get("rope_type") or part.get("type") or "default"
        if rope["rope_type"] in _BY_LENGTH:
            rope["max_position_embeddings"] = text.get("max_position_embeddings")
        rope.pop("type", None)
        place = ".".join(filter(None, ("rope_parameters", kind)))
        form |= {f"{place}.{key}": value for key, value in rope.items() if value is not None}
    return form


def _parts(key: str, values: Sequence[Any]) -> dict[str, list[Any]]:
    """Return what differs in one setting: of lists of one length the first entry that does."""
    if all(value == values[0] for value in values):
        return {}
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values) and len({len(value) for value in lists}) == 1:
        rows = list(zip(*lists, strict=True))
        differing = [i for i, row in enumerate(rows) if any(value != row[0] for value in row)]
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        return {f"{key}[{differing[0]}]{more}": list(rows[differing[0]])}
    return {key: list(values)}


def _generation(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a model generates with.

    That is its ``generation_config.json``, or its config's ids, and `_TOKENIZER_SETTINGS`.
    """
    document = checkpoint.document
    file = checkpoint.path / "generation_config.json"
    stated: dict[str, Any] = {}
    if file.is_file():
        try:
            stated = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(stated, dict):
                raise ValueError("is no mapping")
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{checkpoint.name}: {file} cannot be read: {error}") from error
    parts = (stated, text_part(document), document)
    ids = {key: _first_stated(key, *parts) for key in _SPECIAL_IDS}
    settings = {
        key: value for key, value in (stated | ids).items() if value is not None and key[0] != "_"
    }
    settings.pop("transformers_version", None)
    folders = filter(None, (checkpoint.adapter, checkpoint.path))
    settings |= next(filter(None, map(_tokenizer_settings, folders)), {})
    if isinstance(end := settings.get("eos_token_id"), int):
        settings["eos_token_id"] = [end]
    elif isinstance(end, list):
        settings["eos_token_id"] = sorted(end, key=str)
    return settings


def _first_stated(key: str, *parts: Mapping[str, Any]) -> Any:
    """Return the value of a key in the first of several mappings that state it, else None."""
    return next((part[key] for part in parts if part.get(key) is not None), None)
