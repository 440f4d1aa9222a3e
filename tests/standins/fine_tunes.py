"""Fine-tunes of tiny checkpoints and LoRA adapters to them: no code of ours."""

import json
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def rewritten(folder, to, edit):
    """Copy a checkpoint to `to` with every tensor edited; the files hold the same tensors."""
    shutil.copytree(folder, to)
    files = sorted(to.glob("*.safetensors"))
    assert files
    for file in files:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
        save_file({n: edit(n, t).contiguous() for n, t in tensors.items()}, file, metadata)
    return to


def restored(folder, to, edit):
    """Copy a checkpoint of one file to `to` with other tensors in it."""
    shutil.copytree(folder, to)
    file = to / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(edit(tensors), file, {"format": "pt"})
    return to


def with_value(folder, to, name, value):
    def edit(tensors):
        tensors[name].view(-1)[3] = value
        return tensors

    return restored(folder, to, edit)


def with_head(folder, to):
    """Copy a checkpoint that ties its embeddings, and store the output embedding as well."""
    head = "lm_head.weight"
    return restored(folder, to, lambda t: {**t, head: t["model.embed_tokens.weight"].clone()})


def edited(folder, file="config.json", **changes):
    """Change fields of a config; None takes one away, here and in the text model's."""
    document = json.loads((folder / file).read_text(encoding="utf-8"))
    for part in (document, document.get("text_config", {})):
        for key, value in changes.items():
            part.pop(key, None)
            if value is not None:
                part[key] = value
    (folder / file).write_text(json.dumps(document), encoding="utf-8")
    return folder


def tune(base, folder, seed, scale=0.001, dtype=torch.float32, *, is_uneven=False):
    """Write `base` with a normal change of standard deviation `scale` (of each tensor).

    Without a dtype every tensor keeps its own. If uneven, every entry of every axis moved by an
    amount of its own.
    """
    generator = torch.Generator().manual_seed(seed)

    def edit(name, tensor):
        noise = torch.randn(tensor.shape, generator=generator)
        noise *= scale(name) if callable(scale) else scale
        for axis in range(tensor.ndim if is_uneven else 0):
            length = [1] * tensor.ndim
            length[axis] = tensor.shape[axis]
            noise = noise * torch.rand(length, generator=generator)
        return (tensor.float() + noise).to(dtype or tensor.dtype)

    return rewritten(base, folder, edit)


def uneven(base, folder, scale, dtype=None):
    return tune(base, folder, 7, scale, dtype, is_uneven=True)


def write_adapter(folder, module, inputs, outputs, scale=0.5):
    """Write an adapter of rank 2 that changes one module."""
    torch.manual_seed(5)
    name = f"base_model.model.{module}"
    matrices = {"lora_A": torch.randn(2, inputs), "lora_B": torch.randn(outputs, 2)}
    tensors = {f"{name}.{kind}.weight": tensor * scale for kind, tensor in matrices.items()}
    return save_adapter(folder, tensors, 2, 4, [module])


def save_adapter(folder, tensors, rank, alpha, modules):
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def train_adapter(base, folder, seed=0, scale=0.3, **config):
    """Save an adapter by peft, both matrices of every target random."""
    import peft
    import transformers

    torch.manual_seed(seed)
    model = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(**config)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape) * scale)
    tables = {"embed_tokens", "lm_head"} & {*(config.get("target_modules") or ())}
    model.save_pretrained(folder, save_embedding_layers=bool(tables))  # as peft does by default
    return folder


def write_prefix(base, folder, seed, tokens, scale=1, **config):
    """Save a prefix by peft, as it begins but `scale` times as large."""
    import peft
    import transformers

    torch.manual_seed(seed)
    sizes = {"num_virtual_tokens": tokens, "encoder_hidden_size": 16}
    model = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(base),
        peft.PrefixTuningConfig(task_type="CAUSAL_LM", **sizes, **config),
    )
    with torch.no_grad():
        for parameter in model.prompt_encoder.parameters():
            parameter.mul_(scale)
    model.save_pretrained(folder)
    return folder
