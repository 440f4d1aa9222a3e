"""An adapter changes every tensor as peft's merge_and_unload does, or is refused.

Configs and files are mutated at random: what peft refuses is refused, and of what it takes nearly
all is read.
"""

import json
import random
import warnings

import peft
import pytest
import torch
import transformers
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file, save_file

from layerswap_method.checkpoint.lora_modules import LoraModules
from layerswap_method.errors import InputError
from layerswap_method.methods.passthrough import merge_of_one
from layerswap_method.mix_reader import MixReader
from layerswap_method.recipe.references import Model
from tests.standins.fine_tunes import train_adapter

pytestmark = pytest.mark.filterwarnings("ignore")

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
PATTERNS = (
    "q_proj",
    "v_proj",
    "down_proj",
    "[qk]_proj",
    "1.self_attn.q_proj",
    r"layers\.[0-3]\..*",
    "layers.2.self_attn.v_proj",
    "model.layers.4.mlp.down_proj",
    "[[:alpha:]_]+proj",
    "k_proj{e<=1}",
    r"(?:\w+\.)+down_proj",
    "proj",
    "",
    "(",
    r"self_attn\.(?P<x>q|v)_proj",
    "embed_tokens",
    "Q_PROJ",
    r"\p{L}_proj",
)
SETTINGS = {
    "use_rslora": (True, False, None),
    "fan_in_fan_out": (True, None),
    "qalora_group_size": (4, 16),
    "use_qalora": (True,),
    "init_lora_weights": (False, None, "gaussian", "Gaussian", "orthogonal", "eva", "x", "pissa"),
    "bias": ("none", "all", "lora_only", "x"),
    "lora_bias": (True, False),
    "use_dora": (True, False),
    "modules_to_save": (None, [], ["lm_head"]),
    "trainable_token_indices": (None, [], [3]),
    "layers_to_transform": (None, [], [1, 2], 3, [0, 1, 2, 3, 4, 5], "1", [9]),
    "layers_pattern": (None, "layers", ["h", "layers"], "", []),
    "exclude_modules": (None, [], ["k_proj"], ["layers.1.self_attn.q_proj"], r".*\.3\..*", ["x"]),
    "target_parameters": (None, []),
    "kasa_config": (None, {}),
    "use_bdlora": (None, {}),
    "r": (2, 3, 0, "2", 2.0, None),
    "lora_alpha": (4, 0, -3, 0.5, "4", None),
    "lora_dropout": (0.5,),
    "ensure_weight_tying": (True, False),
    "loftq_config": ({}, None),
    "peft_type": ("IA3", "lora"),
    "unknown_key": (1,),
}
VALUES = (1, 2, 3, 7, 0, -2, 0.5, "2", None)


def random_adapter(choose, bases, folder):
    """Write an adapter by peft, then change its config and its file; return its base."""
    base = choose.choice(bases)
    targets = choose.sample(NAMES, choose.randint(1, 3))
    targets += ["embed_tokens"] if choose.random() < 0.2 else []
    options = {"target_modules": targets, "r": 2, "lora_alpha": choose.choice((3, 4))}
    if choose.random() < 0.3:
        options["rank_pattern"] = {choose.choice(targets): 3}
    train_adapter(base, folder, seed=choose.randint(0, 99), **options)
    config = json.loads((folder / CONFIG).read_text())
    for _ in range(choose.randint(0, 2)):
        key = choose.choice(list(SETTINGS))
        config[key] = choose.choice(SETTINGS[key])
    for key in ("alpha_pattern", "rank_pattern"):
        if choose.random() < (0.5 if key == "alpha_pattern" else 0.1):
            patterns = choose.sample(PATTERNS, choose.randint(1, 3))
            config[key] = {pattern: choose.choice(VALUES) for pattern in patterns}
    if choose.random() < 0.2:
        config["target_modules"] = choose.choice(
            (
                None,
                [],
                "all-linear",
                r".*\.(q|v|k|o|gate|down)_proj",
                choose.sample(PATTERNS, 2),
                [*targets, "[qk]_proj"],
                targets[:-1],
            )
        )
    (folder / CONFIG).write_text(json.dumps(config))
    if choose.random() < 0.3:
        tensors = load_file(folder / WEIGHTS)
        name = choose.choice(sorted(tensors))
        damage = choose.choice(("drop", "pair", "transpose", "half", "rename", "layer", "copy"))
        tensor = tensors.pop(name)
        if damage == "pair":
            other = name.replace("lora_A", "x").replace("lora_B", "lora_A").replace("x", "lora_B")
            tensors.pop(other.replace("embedding_x", "embedding_B"), None)
        elif damage == "transpose":
            tensors[name] = tensor.T.contiguous()
        elif damage == "half":
            tensors = {n: t.bfloat16() for n, t in {**tensors, name: tensor}.items()}
        elif damage == "rename":
            tensors[name.replace("model.model.", "model.")] = tensor
        elif damage == "layer":
            tensors[name.replace("layers.1.", "layers.9.")] = tensor
        elif damage == "copy":
            tensors |= {name: tensor, f"base_model.model.other.{name[17:]}": tensor.clone()}
        save_file(tensors, folder / WEIGHTS)
    return base


def by_peft(base, adapter):
    """Return the weights that peft merges; None where it refuses, or lacks a matrix."""
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            whole = peft.PeftModel.from_pretrained(model, adapter)
        if any("missing adapter keys" in str(warning.message) for warning in caught):
            return None
        return dict(whole.merge_and_unload().state_dict())
    except Exception:  # whatever kind of refusal
        return None


def by_us(base, adapter):
    try:
        merge = merge_of_one(Model("model", base, adapter))
    except InputError:
        return None
    return {name: MixReader(mix).read() for name, mix in merge.tensors.items()}


def distance(first, other):
    """Return the largest difference, in parts of the largest value of its tensor."""
    return max(
        float((first[name].double() - other[name].double()).abs().max())
        / float(other[name].double().abs().max())
        for name in first
    )


@pytest.mark.parametrize(("seed", "count"), [(0, 30), pytest.param(1, 400, marks=pytest.mark.slow)])
def test_an_adapter_is_merged_as_by_peft_or_refused(seed, count, experts, tmp_path):
    choose = random.Random(seed)
    bases = [
        experts("llama", dtype=torch.float32).base,
        experts("llama_tied", dtype=torch.float32).base,
        experts("llama").base,
    ]
    merged = refused = stricter = 0
    for number in range(count):
        folder = tmp_path / str(number)
        base = random_adapter(choose, bases, folder)
        ours, theirs = by_us(base, folder), by_peft(base, folder)
        config = (folder / CONFIG).read_text()
        if ours is None:
            refused += 1
            stricter += theirs is not None
            continue
        assert theirs is not None, f"{folder}: peft refuses {config}"
        merged += 1
        # bfloat16 has 8 bits: of a change of an embedding, which peft rounds before it adds it, and
        # of the copy of that embedding in the adapter's file, which peft loads over the base's.
        stored = load_file(folder / WEIGHTS).values()
        dtypes = {tensor.dtype for tensor in (*ours.values(), *stored)}
        bound = 1e-6 if dtypes == {torch.float32} else 1 / 128
        assert distance(ours, theirs) <= bound, f"{folder}: {config}"
    assert merged >= count // 4
    assert refused >= count // 4
    assert stricter <= count // 8


KEYS = (
    "model.layers.1.self_attn.q_proj",
    "model.layers.11.self_attn.k_proj",
    "model.layers.3.mlp.experts.2.gate_proj",
    "model.language_model.layers.4.mlp.down_proj",
    "model.embed_tokens",
    "q_proj",
    "transformer.h.2.attn.c_attn",
)


def test_modules_ranks_and_alphas_are_those_of_peft():
    choose = random.Random(3)
    compared = 0
    for _ in range(2000):
        options = {
            "target_modules": choose.choice(
                (
                    choose.sample([*PATTERNS, *KEYS], 3),
                    choose.choice([r".*_proj", r"model\..*q_.*"]),
                )
            ),
            "exclude_modules": choose.choice(SETTINGS["exclude_modules"]),
            "layers_to_transform": choose.choice((None, None, [], [1, 2, 3], 4)),
            "layers_pattern": choose.choice((None, None, "layers", ["h", "layers"], "")),
            "rank_pattern": {p: choose.randint(1, 9) for p in choose.sample(PATTERNS, 3)},
            "alpha_pattern": {p: choose.randint(1, 9) for p in choose.sample(PATTERNS, 3)},
        }
        try:
            config = peft.LoraConfig(r=4, lora_alpha=6, **options)
        except ValueError:
            with pytest.raises(ValueError, match="layers"):
                LoraModules.read({"r": 4, "lora_alpha": 6, **options})
            continue
        try:
            ours = LoraModules.read({"r": 4, "lora_alpha": 6, **options})
        except ValueError:
            assert {"(", r"\p{L}_proj"} & {*options["rank_pattern"], *options["alpha_pattern"]}
            continue
        for key in KEYS:
            assert ours.has(key) == bool(check_target_module_exists(config, key)), (options, key)
            rank = config.rank_pattern.get(get_pattern_key(config.rank_pattern, key), 4)
            alpha = config.alpha_pattern.get(get_pattern_key(config.alpha_pattern, key), 6)
            assert (ours.rank_of(key), ours.scaling_of(key)) == (rank, alpha / rank)
            compared += 1
    assert compared > 3000
