"""Settings of configs: what changes a model's function is told, whatever version wrote it."""

import json
import shutil

import pytest

from ablations.models.compat import check_compatibility
from ablations.recipe_commands.check import check_recipe
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.compatible import merge_warnings
from layerswap_method.checkpoint.settings import generation_notes, settings_note
from layerswap_method.errors import InputError
from tests.merge.test_merge import run_merge
from tests.standins.fine_tunes import edited
from tests.standins.merging import merge_of, recipe, write_recipe
from tests.standins.model_families import FAMILIES, make_config, make_model

COUNTS = {"bottom_layers": 2, "top_layers": 1}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 1e4,
    "original_max_position_embeddings": 32,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 32,
    "factor": 2.0,
    "rope_theta": 1e4,
    "partial_rotary_factor": 1.0,
}
GLOBAL = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
LOCAL = {"rope_type": "default", "rope_theta": 1e4}
NESTED = {"full_attention": GLOBAL, "sliding_attention": LOCAL}


def saved(family, folder, **changes):
    """Save a config as this transformers writes it, beside weights of its sizes."""
    return make_model(family, folder, 1, **changes)


def warnings(*folders):
    models = [read_checkpoint(folder.name, folder) for folder in folders]
    return [*merge_warnings(models, dtype=None)]


def note(*folders):
    models = [read_checkpoint(folder.name, folder) for folder in folders]
    return settings_note(models, models[0])


def in_words_of_four(folder, to):
    """Copy a model with its config in the spelling of transformers 4, as published ones have it."""
    shutil.copytree(folder, to)
    document = json.loads((to / "config.json").read_text())
    for part in filter(None, (document, document.get("text_config"))):
        rope = part.pop("rope_parameters", None)
        if rope is None:
            continue
        if "full_attention" in rope:
            part["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            part["sliding_window_pattern"] = 6
            if "sliding_attention" in part["layer_types"]:  # else no pattern is one
                del part["layer_types"]
            rope = rope["full_attention"]
        part["rope_theta"] = rope.pop("rope_theta")
        factor = rope.pop("partial_rotary_factor", None)
        if factor is not None:
            name = "rotary_pct" if part["model_type"] == "gpt_neox" else "partial_rotary_factor"
            part[name] = factor
        original = rope.get("original_max_position_embeddings")
        if rope["rope_type"] == "longrope":
            part["original_max_position_embeddings"] = original
        kind = rope.pop("rope_type")
        name = "rope_type" if "gemma" in part["model_type"] else "type"  # as published
        part["rope_scaling"] = None if kind == "default" else {name: kind, **rope}
        part["torch_dtype"] = part.pop("dtype", None)
        part |= {"transformers_version": "4.51.3", "use_cache": False, "attention_dropout": 0.1}
    (to / "config.json").write_text(json.dumps(document))
    return to


SAME = [
    ("llama", {}),
    ("llama", {"rope_parameters": YARN}),
    ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    ("phi3", {"rope_parameters": LONG}),
    ("gemma3", {}),
    ("gemma3", {"rope_parameters": NESTED}),
    ("gemma3_vl", {}),
]


@pytest.mark.parametrize(("family", "changes"), SAME)
def test_equal_settings_in_other_words_are_no_difference(family, changes, tmp_path):
    new = saved(family, tmp_path / "new", **changes)
    old = in_words_of_four(new, tmp_path / "old")
    assert "rope_scaling" in (old / "config.json").read_text()
    assert warnings(old, new) == warnings(new, old) == []
    assert check_compatibility([str(old), str(new)]).warnings == ()


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "t5"])
def test_keys_that_have_their_class_s_default_may_be_left_out(family, tmp_path):
    """As configs were saved by versions that left out what is the default."""
    whole = saved(family, tmp_path / "whole")
    short = shutil.copytree(whole, tmp_path / "short")
    document = json.loads((short / "config.json").read_text())
    part = document.get("text_config", document)
    config = make_config(family)
    defaults = type(config.get_text_config())().to_dict()
    # Sizes are read without the class.
    left = {k for k, v in part.items() if k in defaults and defaults[k] == v and k != "model_type"}
    assert left
    for key in left:
        del part[key]
    (short / "config.json").write_text(json.dumps(document))
    assert warnings(whole, short) == []


DIFFERENT = [
    (
        "gemma3",
        {"rope_parameters": {**NESTED, "full_attention": LOCAL | {"rope_theta": 1e6}}},
        {"rope_parameters": NESTED},
        "RoPE",
        ["full_attention.rope_type: a default, b linear", "full_attention.factor: a None, b 8.0"],
    ),
    (
        "gemma3",
        {"rope_parameters": NESTED},
        {"rope_parameters": {**NESTED, "full_attention": GLOBAL | {"rope_theta": 1e4}}},
        "RoPE",
        ["rope_parameters.full_attention.rope_theta: a 1000000.0, b 10000.0"],
    ),
    (
        "phi3",
        {"rope_parameters": LONG},
        {"rope_parameters": {**LONG, "long_factor": [2.0, 3.0, 4.0, 2.0]}},
        "RoPE",
        ["rope_parameters.long_factor[1] (and 1 more): a 2.0, b 3.0"],
    ),
    (
        "llama",
        {},
        {"rope_parameters": YARN},
        "RoPE",
        ["rope_parameters.rope_type: a default, b yarn"],
    ),
    (
        "llama",
        {"rope_parameters": YARN},
        {"rope_parameters": {**YARN, "beta_fast": 16}},
        "RoPE",
        ["rope_parameters.beta_fast: a 32, b 16"],
    ),
    ("gpt_neox", {}, {"rotary_pct": 0.5}, "RoPE", ["partial_rotary_factor: a 0.25, b 0.5"]),
    (
        "gemma3",
        {},
        {"layer_types": ["full_attention"] * 6},
        "attention",
        ["layer_types[0] (and 4 more): a sliding_attention, b full_attention"],
    ),
    (
        "qwen3_moe",
        {"norm_topk_prob": False},
        {"norm_topk_prob": True},
        "choice of experts",
        ["norm_topk_prob: a False, b True"],
    ),
    (
        "gemma2",
        {},
        {"attn_logit_softcapping": 30.0},
        "attention",
        ["attn_logit_softcapping: a 50.0, b 30.0"],
    ),
    (
        "gpt2",
        {},
        {"scale_attn_by_inverse_layer_idx": True},
        "attention",
        ["inverse_layer_idx: a False, b True"],
    ),
    (
        "gemma3_vl",
        {},
        {"text_config": {"query_pre_attn_scalar": 64}},
        "attention",
        ["attn_scalar: a 256, b 64"],
    ),
]


@pytest.mark.parametrize("spelling", [4, 5])
@pytest.mark.parametrize(("family", "first", "other", "what", "parts"), DIFFERENT)
def test_another_function_is_one_warning(family, first, other, what, parts, spelling, tmp_path):
    if "text_config" in other:
        text = make_config(family).to_dict()["text_config"]
        other = {"text_config": text | other["text_config"]}
    a, b = (
        saved(family, tmp_path / name, **changes)
        for name, changes in zip("ab", (first, other), strict=True)
    )
    if spelling == 4:
        b = in_words_of_four(b, tmp_path / "old" / "b")
    (warning,) = warnings(a, b)
    assert warning.startswith(f"the checkpoints have different settings of {what} (")
    for part in parts:
        assert part in warning
    compared = check_compatibility([str(a), str(b)])
    assert compared.problems == ()
    assert [text.replace(str(a), "a").replace(str(b), "b") for text in compared.warnings] == [
        warning
    ]


def test_what_the_class_does_not_know_is_compared_where_both_state_it(tmp_path):
    a, b = (edited(saved("llama", tmp_path / n), model_type="own_llama") for n in "ab")
    edited(a, clip_qkv=8, added_by_one=1, its_scale=3, part={"sizes": [2, 3]})
    edited(b, clip_qkv=4, its_scale=4, part={"sizes": [2, 4]})
    (warning,) = warnings(a, b)
    assert "different settings of attention (clip_qkv: a 8, b 4);" in warning
    assert note(a, b) == (
        "other settings of the configs differ, too (its_scale: a 3, b 4; part.sizes[1]: a 3, b 4); "
        "the merge has those of a"
    )


def test_keys_of_no_known_meaning_cost_no_import(tmp_path, monkeypatch):
    a, b = (saved("llama", tmp_path / n) for n in "ab")
    edited(b, use_cache=False, attention_dropout=0.5, transformers_version="4.40.0", pad_token_id=9)

    def fail(*_):
        raise AssertionError("transformers was needed")

    monkeypatch.setattr("layerswap_method.checkpoint.settings._as_transformers", fail)
    assert warnings(a, b) == []
    assert "(attention_dropout: a 0.0, b 0.5);" in note(a, b)


def generating(folder, **settings):
    (folder / "generation_config.json").write_text(json.dumps(settings))


def test_other_ends_and_generation_are_a_note_of_check_merge_and_card(trio, tmp_path):
    models = {role: tmp_path / role for role in ("base", "task", "language")}
    for role, folder in models.items():
        shutil.copytree(getattr(trio, role), folder)
        generating(folder, eos_token_id=1, bos_token_id=0, transformers_version=role)
    document = recipe({r: models[r] for r in ("task", "language")}, COUNTS, models["base"])
    path = write_recipe(tmp_path / "recipe.yml", document)
    assert check_recipe(path, hub=False) == []
    assert "generate" not in str(merge_of(document).lines)
    generating(models["task"], eos_token_id=[7, 1], temperature=0.6)
    (note,) = check_recipe(path, hub=False)
    base, task = models["base"], models["task"]
    assert note.level == "note"
    assert f"eos_token_id: {base} [1], {task} [1, 7], " in note.message
    assert f"temperature: {base} None, {task} 0.6, " in note.message
    assert note.message.endswith(f"; the merge takes those of {base}")
    assert run_merge(document, tmp_path / "merged").exit_code == 0
    assert note.message in merge_of(document).lines
    assert note.message in (tmp_path / "merged" / "README.md").read_text()
    kept = json.loads((tmp_path / "merged" / "generation_config.json").read_text())
    assert kept["eos_token_id"] == 1


def test_ends_that_only_the_config_states_count_too(tmp_path):
    a, b = (saved("llama", tmp_path / n) for n in "ab")
    for folder, end in ((a, 1), (b, 5)):
        (folder / "generation_config.json").unlink()
        edited(folder, eos_token_id=end, pad_token_id=None if end == 5 else 2)
    models = [read_checkpoint(folder.name, folder) for folder in (a, b)]
    (note,) = generation_notes(models, models[1])
    assert "(eos_token_id: b [5], a [1]); the merge takes those of b" in note
    (a / "generation_config.json").write_text("[]")
    with pytest.raises(InputError, match=r"^a: .*generation_config.json cannot be read"):
        [*generation_notes(models, models[1])]


def test_ends_that_only_the_tokenizer_states_count_too(trio_copy):
    models = [read_checkpoint(name, folder) for name, folder in vars(trio_copy).items()]
    assert [*generation_notes(models, models[0])] == []
    for folder in (trio_copy.task, trio_copy.language):
        edited(folder, "tokenizer_config.json", eos_token={"content": "w5"}, add_bos_token=False)
    (note,) = generation_notes(models, models[0])
    assert "(eos_token: base <eos>, task w5, language w5); the merge takes those of base" in note
    edited(trio_copy.base, "tokenizer_config.json", add_bos_token=True)
    (note,) = generation_notes(models, models[0])
    assert "(add_bos_token: base True, task False, language False; eos_token: " in note
    assert [*generation_notes(models, models[0], has_its_tokenizer=False)] == []


def test_another_chat_template_is_a_note(trio_copy):
    trio = vars(trio_copy)

    def notes():
        models = [read_checkpoint(name, folder) for name, folder in trio.items()]
        return [*generation_notes(models, models[0])]

    assert notes() == []
    (trio["task"] / "chat_template.jinja").write_text("{{ messages[0] }}")
    (note,) = notes()
    assert note.startswith("task has a chat template and base has another, which the merge takes")
    for file in ("chat_template.jinja", "tokenizer_config.json"):
        (trio["base"] / file).unlink(missing_ok=True)
    (note,) = notes()
    assert note.startswith("task and language has a chat template and base has none")


def test_settings_of_a_tower_are_compared_where_both_state_them(tmp_path):
    first, other = (saved("mistral3_vl", tmp_path / name) for name in ("first", "other"))
    assert note(first, other) is None
    document = json.loads((other / "config.json").read_text())
    document["image_token_index"] = 7
    document["vision_config"]["patch_size"] += 1
    document["vision_config"]["hidden_act"] = "relu"
    (other / "config.json").write_text(json.dumps(document))
    for key in ("(image_token_index: first", "; vision_config.patch_size: first", ".hidden_act: "):
        assert key in note(first, other)
    assert not any("different settings" in warning for warning in warnings(first, other))
    del document["image_token_index"], document["vision_config"]
    (other / "config.json").write_text(json.dumps(document))
    assert note(first, other) is None
