"""What the method's test imports from mergekit's `tests.common`, which its releases leave out."""

import tempfile
from pathlib import Path

import transformers
from mergekit.architecture import arch_info_for_config
from mergekit.merge import MergeOptions, run_merge
from safetensors.torch import load_file


def run_and_check_merge(config, validate):
    """Merge, look at every tensor's values and names, and hand the folder to `validate`."""
    with tempfile.TemporaryDirectory() as out:
        run_merge(config, out_path=out, options=MergeOptions())
        tensors = {}
        for file in Path(out).glob("*.safetensors"):
            tensors |= load_file(file)
        assert not any(tensor.isnan().any() for tensor in tensors.values())
        model = transformers.AutoConfig.from_pretrained(out)
        for weight in arch_info_for_config(model).all_weights(model):
            names = {weight.name, *(weight.aliases or ())}
            assert weight.optional or names & tensors.keys(), weight.name
        validate(out)
