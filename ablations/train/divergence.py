"""How far experts are from their base: norms of their changes, drift of their hidden states."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ablations.delta.analysis import label_all
from ablations.delta.profile import norms_by_layer, read_changes, relative_norm
from ablations.machine.fingerprint import fingerprint_checkpoint
from ablations.machine.json_lines import read_lines
from ablations.machine.whole_files import check_place, told_if_unwritable, write_text
from ablations.models.find import Expert, find_model
from ablations.train.drift import drift, hidden_states
from ablations.train.folder import RECORD, read_record
from layerswap_method.deltas.pair import open_pair
from layerswap_method.errors import InputError, describe_error
from layerswap_method.frozen import Frozen


class Divergence(Frozen):
    """One expert against its base."""

    schema_version: int = 1
    """Of this format."""

    expert: str
    """Its name."""

    base: str
    """As it was given."""

    relative_norm: float | None
    """||expert - base|| / ||base||, all weights as one vector; None for a prefix or DoRA, which
    change no weight that can be read."""

    layer_relative_norm: tuple[float | None, ...]
    """The same for each layer, layer 0 first."""

    layer_drift: tuple[float, ...]
    """Mean of 1 - cosine of the hidden states, see `drift`: embeddings first, then after each
    layer. Empty without texts."""

    texts: int
    """Texts that the drift was measured on, up to 128 tokens of each."""

    @property
    def drift(self) -> float | None:
        """Return the mean of `layer_drift` over the layers, the embeddings left out."""
        layers = self.layer_drift[1:]
        return math.fsum(layers) / len(layers) if layers else None

    def facts(self) -> dict[str, float]:
        """Return what a study can plot scores over: the numbers that there are."""
        facts = {"relative_norm": self.relative_norm, "drift": self.drift}
        return {name: value for name, value in facts.items() if value is not None}

    def tell(self) -> Iterator[str]:
        """Yield the numbers in words."""
        if self.relative_norm is not None:
            yield f"{self.expert}: ||change|| / ||base|| {self.relative_norm:.3g}"
        else:
            yield f"{self.expert}: this kind of adapter changes no weight of the base"
        if (mean := self.drift) is not None:
            last = max(range(len(self.layer_drift)), key=self.layer_drift.__getitem__)
            where = "the embeddings" if last == 0 else f"layer {last - 1}"
            yield (
                f"{self.expert}: drift of the hidden states {mean:.3g} (1 - cosine, mean over the "
                f"layers), most after {where}: {self.layer_drift[last]:.3g}"
            )


def measure(experts: Sequence[Expert], base: Expert, texts: Sequence[str]) -> list[Divergence]:
    """Return how far each expert is from the base.

    Args:
        experts: one or more of one base.
        base: a checkpoint without an adapter.
        texts: what the drift is measured on; none leaves it out.

    Raises:
        InputError: for files that cannot be read, or an expert of another base.
    """
    for expert in experts:
        _check_base(expert, base)
    states = list(hidden_states(base.folder, None, texts)) if texts else []
    return [_measure_one(expert, base, texts, states) for expert in experts]


def _measure_one(
    expert: Expert, base: Expert, texts: Sequence[str], base_states: Sequence[Any]
) -> Divergence:
    moved: tuple[float, ...] = ()
    if texts:
        states = hidden_states(expert.folder, expert.adapter, texts, base.folder)
        moved = drift(base_states, list(states))
    norm: float | None = None
    by_layer: tuple[float | None, ...] = ()
    if _changes_weights(expert):
        pair = open_pair(expert, base)
        changes = read_changes(pair, pair.names)
        norm = relative_norm(changes)
        by_layer = norms_by_layer(changes, pair.num_layers or 0)
    return Divergence(
        expert=expert.name,
        base=base.name,
        relative_norm=norm,
        layer_relative_norm=by_layer,
        layer_drift=moved,
        texts=len(texts),
    )


def divergence(
    experts: Sequence[str], base: str, *, texts: Path | None, out: Path
) -> Iterator[str]:
    """Measure experts, write ``divergence.json`` and ``experts.yml`` to `out`, yield what to tell.

    Args:
        experts: folders, hub ids or ``base+adapter``.
        base: folder or hub id of their base.
        texts: a file of JSON lines with the field ``text``; None leaves the drift out.
        out: the folder.

    Raises:
        InputError: for what is wrong with a reference, the checkpoints or the texts.
    """
    check_place(out / "divergence.json")
    labels = label_all(experts)
    parent = find_model(base)
    models = [find_model(e, name=label) for e, label in zip(experts, labels, strict=True)]
    results = measure(models, parent, [] if texts is None else read_texts(texts))
    for result in results:
        yield from result.tell()
    entries = {
        model.name: {"path": model.source, "facts": result.facts()}
        for model, result in zip(models, results, strict=True)
    }
    content = {"experts": [result.model_dump(mode="json") for result in results]}
    document: dict[str, Any] = {"experts": {"base": parent.source, **entries}}
    with told_if_unwritable(out):
        write_text(out / "divergence.json", json.dumps(content, indent=1) + "\n")
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        write_text(out / "experts.yml", text)
    yield str(out / "divergence.json")
    yield f"{out / 'experts.yml'}  (layerswap run STUDY --experts {out / 'experts.yml'})"


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file of JSON lines with the field ``text``.

    Raises:
        InputError: where it cannot be read; naming the line.
    """
    texts = []
    try:
        for number, line in read_lines(path):
            content = json.loads(line)
            text = content.get("text") if isinstance(content, dict) else None
            if not isinstance(text, str) or not text.strip():
                raise InputError(f'{path}, line {number}: write {{"text": "..."}}')
            texts.append(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {describe_error(error)}") from error
    if not texts:
        raise InputError(f"{path}: holds no text")
    return texts


def _check_base(expert: Expert, base: Expert) -> None:
    """Check that an adapter was trained on `base`, where its folder says on what it was.

    Raises:
        InputError: where it was not.
    """
    record = None if expert.adapter is None else expert.adapter / RECORD
    if record is None or not record.is_file():
        return
    stated = read_record(record.parent).get("identity", {}).get("base_weights")
    for folder in {expert.folder, base.folder}:
        if stated is not None and stated != fingerprint_checkpoint(folder):
            raise InputError(f"{expert.adapter}: was trained on another base than {folder}")


def _changes_weights(expert: Expert) -> bool:
    """Return whether an expert's change is one of whole weights that can be read."""
    if expert.adapter is None:
        return True
    try:
        config = json.loads((expert.adapter / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{expert.adapter}: its adapter_config.json cannot be read: {describe_error(error)}"
        ) from error
    return config.get("peft_type") == "LORA" and not config.get("use_dora")
