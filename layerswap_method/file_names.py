"""The names that transformers and peft give to files of weights and adapters.

`WEIGHTS`, `SMALL` and `IGNORED` are patterns of what is downloaded of a model.
"""

WEIGHTS_FILE = "model.safetensors"
"""All weights of a model, where they are in one file."""

WEIGHTS_INDEX = "model.safetensors.index.json"
"""File of each tensor, where they are in several."""

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab*",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "chat_template*",
    "tokenization_*.py",
    "additional_chat_templates",
)
"""Files of a tokenizer: an earlier merge's go where the new merge has one, and stay where it has
none."""

WEIGHTS = "*.safetensors"
SMALL = (
    "*.json",
    "*.jinja",
    "*.py",
    "tokenizer*",
    "*.model",
    "*.tiktoken",
    "merges.txt",
    "vocab*",
)
"""Files of a repository that a model is made of, besides `WEIGHTS`; pickles stay away."""

STATES = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")
"""What transformers' Trainer saves beside weights: none of them are weights."""

IGNORED = ("consolidated*", "original/*")
"""The same weights once more."""
