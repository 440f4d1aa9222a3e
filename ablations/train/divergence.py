"""The distance of experts from their base: norms of their changes, drift of hidden states.

The drift is 1 - cosine, per token and layer, averaged over tokens. CKA would not do: linear CKA is
blind to a rotation of one model's states, and a swap puts layers of one expert on top of those of
another without a rotation between them, so it matters whether the states stay where they were.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ablations.delta.analysis import delta, label_all
from ablations.delta.profile import norms_by_layer, read_tensor_changes, relative_norm
from ablations.machine.progress import Step, show_step, track
from ablations.machine.whole_files import check_results, list_results, write_errors, write_text
from ablations.models.find import Expert, find_model
from ablations.models.tokens import prompt_tokens
from ablations.train.folder import BASE_HASH, MEASURED, is_base, read_training_record
from ablations.train.model import load_base, load_tokenizer
from ablations.train.rows import read_texts
from ablations.train.side_adapters import with_adapter
from layerswap_method.checkpoint.lora import read_adapter_config, unsupported_kind
from layerswap_method.deltas.pair import read_pair
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.progress import Log

TOKENS = 128
"""Tokens of a text that are read: the base's states of all texts are in memory at once."""


class Divergence(Frozen):
    """One expert against its base."""

    schema_version: int = 1
    expert: str
    base: str
    relative_norm: float | None
    """||expert - base|| / ||base||, all weights as one vector; None for a prefix or DoRA, which
    change no weight that can be read."""
    layer_relative_norm: tuple[float | None, ...]
    """`relative_norm` of each layer, layer 0 first."""
    layer_drift: tuple[float, ...]
    """Mean of 1 - cosine of the hidden states, see `drift`: embeddings first, then after each
    layer. Empty without texts."""
    texts: int
    """Number of texts that the drift was measured on, up to 128 tokens of each."""

    @property
    def drift(self) -> float | None:
        """Return the mean of `layer_drift` over the layers, the embeddings left out."""
        layers = self.layer_drift[1:]
        return math.fsum(layers) / len(layers) if layers else None

    def facts(self) -> dict[str, float]:
        """Return the numbers that there are: a study can plot scores over them."""
        facts = {name: getattr(self, name) for name in MEASURED}
        return {name: value for name, value in facts.items() if value is not None}

    def describe(self) -> str:
        """Return the numbers in words."""
        norm, drift = (
            "-" if value is None else f"{value:.3g}" for value in (self.relative_norm, self.drift)
        )
        return (
            f"{self.expert}: ||change|| / ||base|| {norm}, drift of the hidden states {drift} "
            "(1 - cosine, mean over the layers)"
        )


def measure_divergence(
    experts: Sequence[Expert], base: Expert, texts: Sequence[str], *, is_their_base: bool = False
) -> list[Divergence]:
    """Return how far each expert is from the base; without `texts` there is no drift.

    `is_their_base`: they are known to be trained from it, however far they are. Raises `InputError`
    for files that cannot be read, or an expert of another base.
    """
    for expert in experts:
        if expert.adapter is not None:
            stated = read_training_record(expert.adapter).get("identity", {}).get(BASE_HASH)
            for folder in {expert.folder, base.folder}:
                if stated is not None and not is_base(folder, stated):
                    raise InputError(f"{expert.adapter}: was trained on another base than {folder}")
    base_states = list(hidden_states(base.folder, None, texts)) if texts else []
    results = []
    for expert in experts:
        layer_drift: tuple[float, ...] = ()
        if texts:
            expert_states = hidden_states(expert.folder, expert.adapter, texts, base.folder)
            layer_drift = drift(base_states, expert_states)
        norm: float | None = None
        layer_norms: tuple[float | None, ...] = ()
        config = {} if expert.adapter is None else read_adapter_config(expert.adapter)
        if not config or unsupported_kind(config) is None:
            pair = read_pair(expert, base, is_its_base=is_their_base)
            changes = read_tensor_changes(pair)
            norm = relative_norm(changes)
            layer_norms = norms_by_layer(changes, pair.decoder.num_layers or 0)
        results.append(
            Divergence(
                expert=expert.name,
                base=base.name,
                relative_norm=norm,
                layer_relative_norm=layer_norms,
                layer_drift=layer_drift,
                texts=len(texts),
            )
        )
    return results


def hidden_states(
    folder: Path,
    adapter: Path | None,
    texts: Sequence[str],
    tokenizer_folder: Path | None = None,
) -> Iterator[Any]:
    """Yield the hidden states of each text, [layers + 1, tokens, hidden], float32 on the CPU.

    The first are the embeddings, the last those after the final norm. Computed in float32: a light
    fine-tune moves them by less than the rounding of 16-bit formats. The tokenizer of an expert is
    its base's, as states are compared token by token.
    """
    import torch

    name = (adapter or folder).name
    show_step(Step(f"loading {name}"))
    tokenizer = load_tokenizer(tokenizer_folder or folder)
    model = load_base(folder)
    if adapter is not None:
        model = with_adapter(model, adapter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).eval()
    for text in track(f"reading texts with {name}", texts, "texts"):
        ids = prompt_tokens(tokenizer, text)[:TOKENS]
        with torch.no_grad():
            # peft hands the prefix to the model as a cache, which it must be allowed to have.
            output = model(input_ids=torch.tensor([ids], device=device), output_hidden_states=True)
        yield torch.stack([state[0].float().cpu() for state in output.hidden_states])


def drift(base: Iterable[Any], expert: Iterable[Any]) -> tuple[float, ...]:
    """Return the mean of 1 - cosine over all tokens, for the embeddings and after each layer.

    Both give [layers + 1, tokens, hidden] of each text; the values are in [0, 2].
    """
    import torch

    parts = [
        1 - torch.nn.functional.cosine_similarity(base_state.double(), state.double(), dim=-1)
        for base_state, state in zip(base, expert, strict=True)
    ]
    return tuple(torch.cat(parts, dim=-1).clamp(min=0).mean(dim=-1).tolist())


_FILES = ("divergence.json", "experts.yml")
"""Files of `delta_with_drift` besides those of `delta`."""


def delta_with_drift(
    experts: Sequence[str],
    base: str | None,
    log: Log,
    *,
    texts: Path,
    out: Path,
    threshold: float | None = None,
    reference: str | None = None,
) -> None:
    """Do what `delta` does, and write and log ``divergence.json`` and ``experts.yml``.

    `texts` is a file of JSON lines with the field ``text``, on which the drift is measured.

    Raises:
        InputError: for what is wrong with a reference, the checkpoints or the texts, or where a
            file of the user is in the way.
    """
    if base is None or not experts:
        raise InputError("the drift on --text is of an EXPERT and its --base: give both")
    check_results(out, _FILES)
    labels, lines = label_all(experts), read_texts(texts)
    if "base" in labels:
        raise InputError("an expert is called base, as experts.yml calls the base: rename it")
    delta(experts, base, log, out=out, threshold=threshold, reference=reference)
    parent = find_model(base)
    models = [find_model(expert, name=label) for expert, label in zip(experts, labels, strict=True)]
    results = measure_divergence(models, parent, lines)
    entries: dict[str, Any] = {"base": parent.source}
    for model, result in zip(models, results, strict=True):
        log(result.describe())
        entries[model.name] = {"path": model.source, "facts": result.facts()}
    content = {"experts": [result.model_dump(mode="json") for result in results]}
    with write_errors(out):
        write_text(out / "divergence.json", json.dumps(content, indent=1) + "\n")
        text = yaml.safe_dump({"experts": entries}, sort_keys=False, allow_unicode=True)
        write_text(out / "experts.yml", text)
        list_results(out, _FILES)
    log(str(out / "divergence.json"))
    log(f"{out / 'experts.yml'}  (layerswap run STUDY --experts {out / 'experts.yml'})")
