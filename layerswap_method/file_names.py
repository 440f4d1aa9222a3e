"""The names that transformers and peft give to files of weights and adapters."""

WEIGHTS_FILE = "model.safetensors"
"""All weights of a model, where they are in one file."""

WEIGHTS_INDEX = "model.safetensors.index.json"
"""File of each tensor, where they are in several."""

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
