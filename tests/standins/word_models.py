"""Random Llamas that say words: what engines are asked."""

from tests.standins.tokenizers import SPECIAL, save_word_tokenizer

WORDS = [f"w{index}" for index in range(24)]


def write_model(
    folder,
    seed=0,
    *,
    kind="Llama",
    words=WORDS,
    says_special=False,
    is_moved=False,
    dtype=None,
    **changes,
):
    """Write a random Llama with a word-level tokenizer; it says something else for every seed.

    Args:
        folder: where it is written.
        seed: of its weights.
        kind: of model, ``Llama`` or ``Qwen2``.
        words: the tokens after the special ones.
        says_special: whether it may say special tokens and numbers that are no token.
        is_moved: whether norms and biases, which begin as ones and zeros, are random as well.
        dtype: of its weights, float32 without one.
        changes: what its config has in the place of two layers of 64 features.
    """
    import torch
    import transformers

    tokens = [*SPECIAL, *words]
    config = getattr(transformers, f"{kind}Config")(
        **{
            "vocab_size": len(tokens),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": 128,
            "initializer_range": 0.5,  # large: it must not say one word to everything,
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
    network = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters() if is_moved else ():
            if name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape))
            if "norm" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape))
        if not says_special:
            # lm-eval drops special tokens inside an answer with HF and keeps them with vLLM. A
            # trained model does not say them there; a random one would.
            network.lm_head.weight[[0, 1, 3, *range(len(tokens), config.vocab_size)]] = 0
    network.to(dtype or torch.float32).save_pretrained(folder)
    return folder
