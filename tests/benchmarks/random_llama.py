"""Random bf16 Llamas on disk, in the shapes of real ones, without a model in memory.

python tests/benchmarks/random_llama.py FOLDER SHAPE-AS-JSON SEED
"""

import json
import math
import sys
from pathlib import Path

SHAPES = {
    "llama-3.2-3b": {
        "vocab_size": 128_256,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
}
"""Name -> settings of its config."""

_SHARD = 5_000_000_000
_POOL = 1 << 22
"""Random values that are written again and again, each time from another place."""


def sized_shape(gib):
    """Return the shape of a 16-layer Llama of about `gib` GiB."""
    hidden = max(64, 64 * round((gib * 2**30 / 2 / (16 * 10.75 + 16)) ** 0.5 / 64))
    return {
        "vocab_size": 8 * hidden,
        "hidden_size": hidden,
        "intermediate_size": int(2.75 * hidden) // 16 * 16,
        "num_hidden_layers": 16,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": max(1, hidden // 128),
        "tie_word_embeddings": False,
    }


def write_llama(folder, shape, seed):
    """Write config and weights, in shards of 5 GB at most but in four at least."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    config = LlamaConfig(**shape, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in LlamaForCausalLM(config).state_dict().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    random = torch.Generator().manual_seed(seed)
    pool = torch.randn(_POOL, generator=random).mul_(0.02).bfloat16()
    values = memoryview(pool.view(torch.uint8).numpy())
    places = torch.randint(_POOL // 2, (len(shapes),), generator=random).tolist()
    starts = iter([2 * place for place in places])
    shards = list(_shards({name: 2 * math.prod(size) for name, size in shapes.items()}))
    listed = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        listed |= dict.fromkeys(names, file)
        header = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in names:
            start, end = end, end + 2 * math.prod(shapes[name])
            offsets = [start, end]
            header[name] = {"dtype": "BF16", "shape": [*shapes[name]], "data_offsets": offsets}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                left, start = 2 * math.prod(shapes[name]), next(starts)
                while left:
                    piece = values[start : start + left]
                    out.write(piece)
                    left, start = left - len(piece), 0
    index = {"metadata": {}, "weight_map": listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    config.save_pretrained(folder)


def _shards(sizes):
    limit = min(_SHARD, sum(sizes.values()) / 3.5)
    names = []
    for name in sizes:
        if names and sum(sizes[each] for each in names) + sizes[name] > limit:
            yield names
            names = []
        names.append(name)
    yield names


if __name__ == "__main__":
    write_llama(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]))
