"""`layerswap swap-adapters`: a recipe of adapters read, and the new adapter written to a folder.

Knows recipes and files; not where models are found, and nothing of matrices.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from layerswap_method.adapter_swap.adapter import NewAdapter
from layerswap_method.checkpoints.headers import read_checkpoint
from layerswap_method.checkpoints.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter_config
from layerswap_method.checkpoints.model_files import ModelFiles
from layerswap_method.checkpoints.stored import same_content
from layerswap_method.errors import InputError, LayerSwapError, first_line
from layerswap_method.layer_swap import report
from layerswap_method.layer_swap.drawing import draw_plan
from layerswap_method.layer_swap.recipe import LayerSwapDocument
from layerswap_method.layer_swap.spec import NAME
from layerswap_method.layer_swap.stream import SwapStream
from layerswap_method.merge_stream import KNOWN, stream_inputs, stream_of
from layerswap_method.output import (
    PLAN_FILE,
    check_output,
    check_outside,
    output_folder,
    temporary_output,
)
from layerswap_method.recipe.document import dtype_problems
from layerswap_method.recipe.references import named_models
from layerswap_method.recipe.strict_yaml import read_yaml
from layerswap_method.stream.write import write_text

LOG = logging.getLogger("layerswap")

_DTYPES = ("dtype", "out_dtype")

_KINDS = ("LORA", "PREFIX_TUNING")
"""What peft calls the kinds of adapters that can be swapped."""

_CARD = """---
base_model: {base}
library_name: peft
tags: [merge]
---
# {name}

A [layer swap](https://arxiv.org/abs/2410.01335) of adapters to `{base}`, made without merging them.

{models}

```
{plan}
```
"""


def swap_adapters(
    recipe: Path, find: Callable[[str], ModelFiles], out_path: str, rank: int | None = None
) -> Iterator[str]:
    """Write the adapter of a `layer_swap` recipe, and yield lines for the log.

    The adapter, added to the base, is the merge of the recipe: see `adapter_swap.lora` and
    `adapter_swap.prefix` for where that holds to rounding and where it is a counterpart.

    Args:
        recipe: a YAML file whose models are ``BASE+ADAPTER``, or the base itself.
        find: returns where the model of a reference is.
        out_path: the output folder, as the user wrote it.
        rank: the highest rank of a LoRA adapter's changes; None leaves all exact.

    Raises:
        InputError: for a recipe, models or an output folder that are wrong.
        LayerSwapError: where something cannot be written.
    """
    document, swap = _read(recipe)
    models = {reference: find(reference) for reference in dict.fromkeys(named_models(document))}
    out = output_folder(out_path)
    folders = [path for m in models.values() for path in (m.folder, m.adapter) if path]
    check_output(out, folders)
    check_outside(out, folders)
    configs = {m.name: read_adapter_config(m.adapter) for m in models.values() if m.adapter}
    kind = _kind(configs)
    _check_one_base(document["base_model"], models)
    config = next(iter(configs.values()))
    measured = None
    if kind == "LORA":
        from layerswap_method.adapter_swap.lora import swap_lora

        stream = stream_of(document, models)
        assert isinstance(stream, SwapStream)
        new, plan, measured = swap_lora(stream, config, rank), stream.plan, stream.measured
    else:
        from layerswap_method.adapter_swap.prefix import swap_prefixes

        if rank is not None:
            raise InputError("--rank: a prefix has no rank; drop it")
        base = models[document["base_model"]]
        experts = [given for given in stream_inputs(document, models) if given.role is not None]
        depth = read_checkpoint(base.name, base.folder).depth()
        new, plan = swap_prefixes(swap.parameters, experts, depth)
    if (warning := report.most_swapped(swap.parameters, plan)) is not None:
        LOG.warning("%s", warning)
    record = report.plan_record(swap, plan)
    if measured is not None:
        record["deltas"] = measured
    record["adapter"] = new.record
    yield from report.log_lines(record)
    yield from new.lines
    if dropped := [f"{key}: {document[key]}" for key in _DTYPES if document.get(key) is not None]:
        yield f"{' and '.join(dropped)} is of merged weights; the adapter keeps its experts' dtype"
    _write(out, document["base_model"], record, new, draw_plan(plan))
    yield f"{out_path}: {sum(t.nbytes for t in new.tensors.values()) / 1e6:.2f} MB"


def _read(recipe: Path) -> tuple[dict[str, Any], LayerSwapDocument]:
    """Return the recipe, as it is written and as a checked document."""
    document = read_yaml(recipe)
    if not isinstance(document, dict):
        raise InputError(f"{recipe}: is no recipe; write merge_method:, models: and base_model:")
    if document.get("merge_method") != NAME:
        raise InputError(
            f"{recipe}: merge_method is {document.get('merge_method')!r}; swap-adapters knows "
            f"{NAME} only"
        )
    swap = LayerSwapDocument.read(document)
    problems = [
        f"{key}: is of a whole model and has no effect on adapters; drop it"
        for key in document
        if key not in KNOWN
    ]
    problems += dtype_problems(**{key: document.get(key) for key in _DTYPES})
    if problems:
        raise InputError.from_problems("swap-adapters", problems)
    return document, swap


def _kind(configs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the kind of all adapters, as peft names it."""
    if not configs:
        raise InputError(
            "swap-adapters: no model of the recipe is BASE+ADAPTER; layerswap merge merges models"
        )
    kinds = {name: str(config.get("peft_type")) for name, config in configs.items()}
    found = sorted(set(kinds.values()))
    problems = [
        f"{name}: peft_type is {kind}; known are {' and '.join(_KINDS)}"
        for name, kind in kinds.items()
        if kind not in _KINDS
    ]
    problems += [
        f"{name}: use_dora is set. DoRA divides each row of a weight by its norm, so a mean of two "
        "changes has no low rank; merge the adapters into their base (peft: merge_and_unload) and "
        "use layerswap merge"
        for name, config in configs.items()
        if config.get("use_dora")
    ]
    if not problems and len(found) > 1:
        listed = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        problems.append(f"the adapters must be of one kind: {listed}")
    if problems:
        raise InputError.from_problems("swap-adapters", problems)
    return found[0]


def _check_one_base(base_model: str, models: Mapping[str, ModelFiles]) -> None:
    """Check that all models are the base's checkpoint, but for adapters; reads copies of it.

    Raises:
        InputError: naming the first that is not, and a tensor that differs.
    """
    base = models[base_model]
    ours = read_checkpoint(base_model, base.folder).tensors
    compared = {base.folder.resolve()}
    for reference, model in models.items():
        if model.folder.resolve() in compared:
            continue
        compared.add(model.folder.resolve())
        theirs = read_checkpoint(reference, model.folder).tensors
        odd = next((name for name in (*ours, *theirs) if name not in ours.keys() & theirs), None)
        odd = odd or next((n for n, at in ours.items() if not same_content(at, theirs[n])), None)
        if odd is not None:
            raise InputError(
                f"swap-adapters: {reference} is not the base_model {base_model} with an adapter: "
                f"{odd} differs; adapters can only be swapped on one base (layerswap merge merges "
                "whole models)"
            )


def _write(
    out: Path, base_model: str, record: Mapping[str, Any], new: NewAdapter, picture: str
) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    base, _, revision = base_model.partition("+")[0].partition("@")
    config = {"base_model_name_or_path": base, "revision": revision or None, **new.config}
    models = "\n".join(f"- {each['role']}: `{each['model']}`" for each in record["models"])
    try:
        with temporary_output(out) as folder:
            save_file(dict(new.tensors), folder / ADAPTER_WEIGHTS, {"format": "pt"})
            write_text(folder / ADAPTER_CONFIG, json.dumps(config, indent=2) + "\n")
            write_text(folder / PLAN_FILE, json.dumps(record, indent=2) + "\n")
            text = _CARD.format(base=base, name=out.name, models=models, plan=picture)
            write_text(folder / "README.md", text)
    except (OSError, SafetensorError) as error:
        raise LayerSwapError(f"{out}: cannot be written: {first_line(error)}") from error
