"""The model card of a swapped adapter."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from layerswap_method.errors import printable
from layerswap_method.layer_plan import LayerPlan, draw_plan

_CARD = """---
base_model: {base!r}
library_name: peft
tags: [merge]
---
# {name}

A [layer swap](https://arxiv.org/abs/2410.01335) of adapters to `{base}`, made without merging them.

{models}

```
{plan}
```

## Use

`{path}` stands for this folder, or the repository of the hub that it was uploaded to.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({base!r}{revision})
base = AutoModelForCausalLM.from_pretrained({base!r}{revision}, dtype="auto")
model = PeftModel.from_pretrained(base, {path!r})
inputs = tokenizer("12 + 30 =", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0]))
```

{server}
"""

SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `--max-lora-rank` (0.32)."""


def adapter_card_text(
    name: str, base: str, revision: str, record: Mapping[str, Any], plan: LayerPlan
) -> str:
    """Return the text of a model card.

    Args:
        name: of the adapter's folder.
        base: folder or hub id of the model that it belongs to.
        revision: of the base; empty for none.
        record: of the swap, with its models and the adapter's own.
        plan: the sources of the layers.
    """
    path = f"./{name}"
    card = _CARD.format(
        base=base,
        revision=f", revision={revision!r}" if revision else "",
        name=name,
        path=path,
        models="\n".join(f"- {model['role']}: `{model['model']}`" for model in record["models"]),
        plan=draw_plan(plan),
        server=server_text(base, revision, path, record["adapter"]),
    )
    return printable(card)


def server_text(base: str, revision: str, path: str, record: Mapping[str, Any]) -> str:
    """Return how vLLM serves the adapter at `path`, or why it cannot; `record` is the adapter's."""
    if record["kind"] != "lora":
        return "vLLM serves no prefixes."
    highest_rank = record["ranks"][1]
    rank = next((rank for rank in SERVED_RANKS if rank >= highest_rank), None)
    if rank is None:
        return (
            f"vLLM takes ranks up to {SERVED_RANKS[-1]}, and this adapter has {highest_rank}: "
            f"`layerswap swap-adapters RECIPE --out DIR --rank {SERVED_RANKS[-1]}` cuts them."
        )
    pinned = f" --revision {shlex.quote(revision)}" if revision else ""
    return f"""\
```console
$ vllm serve {shlex.quote(base)}{pinned} --enable-lora --max-lora-rank {rank} \\
    --lora-modules {shlex.quote(f"swap={path}")}
```

The server answers with the adapter where a request names the model `swap`. Modules may have ranks
and alphas of their own, which vLLM 0.32 reads (`rank_pattern`, `alpha_pattern`)."""
