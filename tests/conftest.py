"""What every test shares: no hub is asked for anything, and mergekit knows `layer_swap`."""

import os

import layerswap_method

for _name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ[_name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# For a run from a checkout that was not installed; nothing to do after `pip install`.
layerswap_method.register()
