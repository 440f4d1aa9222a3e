"""Tiny Llamas with the vocabulary and chat template of Llama 3.1, in a hub cache on this disk."""

import hashlib
import json

VOCABULARY = 128_256
"""Tokens of Llama 3.1, of which the last 256 are special."""

_ROLE = "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    + _ROLE
    + "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    + "{% if add_generation_prompt %}"
    + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_SPECIAL = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)


def write_hub_cache(cache, ids, texts, layers=8):
    """Write a random model for every hub id, as `huggingface_hub` keeps what it has downloaded.

    Args:
        cache: what ``HF_HUB_CACHE`` is set to.
        ids: of the models; each has weights of its own.
        texts: the tokenizer's merges are learned from them.
        layers: decoder layers of each.
    """
    tokenizer = _tokenizer(list(texts))
    for seed, name in enumerate(ids):
        folder = cache / f"models--{name.replace('/', '--')}"
        commit = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
        _write_model(folder / "snapshots" / commit, seed, layers)
        tokenizer.save_pretrained(folder / "snapshots" / commit)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(commit)


def _write_model(folder, seed, layers):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=8192,
        rope_theta=500_000.0,
        initializer_range=0.3,  # large: it must not say one word to everything
        bos_token_id=VOCABULARY - 256,
        eos_token_id=[VOCABULARY - 255, VOCABULARY - 251],
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def _tokenizer(texts):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    trained = json.loads(bpe.to_str())["model"]
    vocabulary, plain = trained["vocab"], VOCABULARY - 256
    # As tokens of the model, not added ones, which transformers takes minutes to read.
    vocabulary |= {f"unused{number}": number for number in range(len(vocabulary), plain)}
    bpe.model = models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in trained["merges"]])
    reserved = (f"<|reserved_special_token_{index}|>" for index in range(256 - len(_SPECIAL)))
    bpe.add_special_tokens([*_SPECIAL, *reserved])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=_SPECIAL[0],
        eos_token=_SPECIAL[5],
        pad_token=_SPECIAL[2],
        chat_template=CHAT_TEMPLATE,
        model_max_length=8192,
        padding_side="left",
    )
