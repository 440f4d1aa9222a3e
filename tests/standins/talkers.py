"""Random Llamas that say words: what engines are asked. Knows no merge."""

from tests.standins.tokenizers import SPECIAL, save_word_tokenizer

WORDS = [f"w{index}" for index in range(24)]


def write_model(folder, seed=0, *, words=WORDS, says_special=False, dtype=None, **changes):
    """Write a random Llama with a word-level tokenizer; it says something else for every seed.

    Args:
        folder: where it is written.
        seed: of its weights.
        words: the tokens after the special ones.
        says_special: whether it may say special tokens and numbers that are no token.
        dtype: of its weights, float32 without one.
        changes: what its config has in the place of two layers of 64 features.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = [*SPECIAL, *words]
    config = LlamaConfig(
        **{
            "vocab_size": len(tokens),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": 128,
            "initializer_range": 0.5,  # large: it must not say one word to everything
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **changes,
        }
    )
    length = config.max_position_embeddings
    save_word_tokenizer(folder, tokens, padding_side="left", model_max_length=length)
    torch.manual_seed(seed)
    network = LlamaForCausalLM(config).to(dtype or torch.float32)
    if not says_special:
        # lm-eval drops special tokens inside an answer with HF and keeps them with vLLM. A trained
        # model does not say them there; a random one would.
        with torch.no_grad():
            network.lm_head.weight[[0, 1, 3, *range(len(tokens), config.vocab_size)]] = 0
    network.save_pretrained(folder)
    return folder
