"""What mergekit's own tests import as `tests.common`, which its releases leave out: anew."""

import tempfile
from pathlib import Path

import transformers
from mergekit.architecture import arch_info_for_config, get_architecture_info
from mergekit.merge import MergeOptions, run_merge
from safetensors.torch import load_file

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


def saved(family, path, **config):
    model = getattr(transformers, f"{family}Config")(**config)
    kind = {"GPT2": "LMHeadModel", "Llava": "ForConditionalGeneration"}.get(family, "ForCausalLM")
    getattr(transformers, f"{family}{kind}")(model).save_pretrained(path)
    return str(path)


def make_picollama(path, vocab_size=64):
    return saved("Llama", path, vocab_size=vocab_size, num_attention_heads=16, **SMALL)


def make_picogranite(path, vocab_size=64):
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return saved("Granite", path, vocab_size=vocab_size, **heads, **SMALL)


def make_gpt2size(path):
    return saved("GPT2", path)


def make_picoLlaVa(path):
    text = transformers.LlamaConfig(vocab_size=64, num_attention_heads=16, **SMALL)
    sees = {"image_size": 32, "patch_size": 4, "num_attention_heads": 2}
    vision = transformers.CLIPVisionConfig(**sees, **SMALL)
    return saved("Llava", path, vision_config=vision, text_config=text, image_seq_length=16)


def run_and_check_merge(
    config, check_nan=True, check_tensors=True, validate=None, index_json_name=None, auto_arch=False
):
    """Merge, look at every tensor's values and names, and hand the folder to `validate`."""
    with tempfile.TemporaryDirectory() as out:
        run_merge(config, out_path=out, options=MergeOptions())
        assert (Path(out) / (index_json_name or "config.json")).is_file()
        tensors = {}
        for file in Path(out).glob("*.safetensors"):
            tensors |= load_file(file)
        assert tensors
        assert not (check_nan and any(tensor.isnan().any() for tensor in tensors.values()))
        if check_tensors:
            model, options = transformers.AutoConfig.from_pretrained(out), MergeOptions()
            by_name = None if auto_arch else arch_info_for_config(model)
            arch = by_name or get_architecture_info(config, options)
            for weight in arch.all_weights(model):
                names = {weight.name, *(weight.aliases or ())}
                assert weight.optional or names & tensors.keys(), weight.name
        if validate:
            validate(out)
