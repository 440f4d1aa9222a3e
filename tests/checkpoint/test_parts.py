"""Parts of a checkpoint that are special: heads, further heads, counts, towers."""

import json

import peft
import pytest
import torch
import transformers

from ablations.models.compat import check_compatibility
from ablations.recipe_commands.check import check_recipe
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import tie_problems
from layerswap_method.checkpoint.tied_heads import ties
from layerswap_method.deltas.pair import read_pair
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import Model
from tests.standins.command import layerswap
from tests.standins.experts import assert_loads
from tests.standins.fine_tunes import (
    edited,
    restored,
    train_adapter,
    tune,
)
from tests.standins.merging import (
    by_mergekit,
    linear_recipe,
    merge,
    merge_of,
    recipe,
    revert_recipe,
    roles,
    tensors_of,
    write,
    write_recipe,
)
from tests.standins.model_families import LAYERS
from tests.standins.oracle import Swap, assert_same, expected, stored

HEAD = "lm_head.weight"
SWAP = Swap(LAYERS)
MTP = {
    "mtp.fc.weight": (16, 32),
    "mtp.norm.weight": (16,),
    "mtp.layers.0.mlp.up_proj.weight": (24, 16),
    "mtp.layers.0.input_layernorm.weight": (16,),
}


def warned(document):
    return " ".join(merge_of(document).warnings)


def without_head(tensors):
    return {name: tensor for name, tensor in tensors.items() if name != HEAD}


def with_mtp(tensors):
    torch.manual_seed(3)
    return tensors | {name: torch.randn(shape).bfloat16() for name, shape in MTP.items()}


def headless(given, tmp_path, *names):
    """Return the folders, of which those of these names lost their head."""
    return {
        name: restored(folder, tmp_path / name, without_head) if name in names else folder
        for name, folder in vars(given).items()
    }


def test_models_without_a_head_are_merged_with_a_warning(experts, tmp_path):
    models = headless(experts("llama"), tmp_path, "base", "task", "language")
    base = models.pop("base")
    document = recipe(models, SWAP.parameters(), base)
    assert "no model stores an output embedding" in warned(document)
    assert HEAD not in tensors_of(document)
    found = check_recipe(write_recipe(tmp_path / "recipe.yml", document), hub=False)
    assert any("no model stores an output" in finding.message for finding in found)
    assert "output embedding" not in warned(recipe(roles(experts("llama")), SWAP.parameters()))
    tied = recipe(roles(experts("llama_tied")), SWAP.parameters())
    assert "output embedding" not in warned(tied)


@pytest.mark.parametrize("names", [("task",), ("base",), ("language", "base")], ids=str)
def test_models_of_which_only_some_have_a_head_are_refused(names, experts, tmp_path):
    models = headless(experts("llama"), tmp_path, *names)
    base = models.pop("base")
    with pytest.raises(InputError, match=r"stores no output embedding and does not tie it"):
        merge_of(recipe(models, SWAP.parameters(), base))


def test_layers_that_only_the_base_stores_are_copied(experts, tmp_path):
    """transformers drops `mtp.*` when a fine-tune is saved: so are all fine-tunes of Qwen3.5."""
    given = experts("qwen3_5")
    base = restored(given.base, tmp_path / "base", with_mtp)
    for folder in (base, *roles(given).values()):
        edited(folder, mtp_num_hidden_layers=1)
    document, out = recipe(roles(given), SWAP.parameters(), base), tmp_path / "out"
    warnings = warned(document)
    assert f"only {base} stores 4 tensors outside of the text model (mtp.fc.weight" in warnings
    write(document, out)
    found, models = stored(out), [stored(folder) for folder in roles(given).values()]
    assert_same({n: found.pop(n) for n in MTP}, {n: stored(base)[n] for n in MTP})
    assert_same(found, expected(SWAP, *models, stored(base)))
    assert json.loads((out / "config.json").read_text())["mtp_num_hidden_layers"] == 1
    assert_loads(out)
    recipe_file = write_recipe(tmp_path / "recipe.yml", document)
    levels = {finding.level for finding in check_recipe(recipe_file, hub=False)}
    assert levels <= {"warning"}
    references = [str(folder) for folder in (*roles(given).values(), base)]
    result = layerswap("compat", *references)
    assert (result.exit_code, "as they are" in result.output) == (0, True)
    tuned = tune(given.base, tmp_path / "tuned", 1)
    assert len(read_pair(Model("tuned", tuned), Model("base", base)).names) == len(found)
    reverted = tensors_of(revert_recipe(given.task, base, {"bottom_layers": 2}))
    assert_same({n: reverted[n] for n in MTP}, {n: stored(base)[n] for n in MTP})


@pytest.mark.parametrize("way", [write, by_mergekit], ids=["files", "mergekit"])
def test_what_the_base_does_not_store_is_left_out_and_the_config_says_so(way, experts, tmp_path):
    given = experts("qwen3_5")
    task = restored(given.task, tmp_path / "task", with_mtp)
    base = restored(given.base, tmp_path / "base", lambda tensors: tensors)
    edited(base, mtp_num_hidden_layers=1)
    models = {"task": task, "language": given.language}
    way(recipe(models, SWAP.parameters(), base), tmp_path / "out")
    found = stored(tmp_path / "out")
    assert not [name for name in found if "mtp" in name]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["mtp_num_hidden_layers"] == 0
    assert_loads(tmp_path / "out")


def test_a_model_without_one_stack_of_layers_is_refused_with_the_stacks(experts, tmp_path):
    """XLM numbers attentions and feed-forwards apart from each other."""
    given = experts("xlm")
    document = recipe(roles(given), {"bottom_layers": 1, "top_layers": 1})
    stacks = r"several stacks of layers, transformer\.attentions \(6\), transformer\.ffns \(6\)"
    with pytest.raises(InputError, match=stacks):
        merge_of(document)
    with pytest.raises(InputError, match=stacks):
        merge_of(revert_recipe(given.task, given.base, {"bottom_layers": 1}))
    found = check_recipe(write_recipe(tmp_path / "recipe.yml", document), hub=False)
    assert any("transformer.ffns (6)" in finding.message for finding in found)
    assert not tensors_of(linear_recipe([given.task, given.language])).keys() ^ stored(given.task)


def test_adapters_of_a_model_with_towers_follow_the_same_rule(experts, tmp_path):
    """peft knows modules by other names than the file, and its adapter changes the towers too."""
    kind = transformers.VideoLlavaForConditionalGeneration
    base, models, merged = experts("video_llava").base, {}, {}
    for seed, role in enumerate(("task", "language")):
        torch.manual_seed(seed)
        options = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
        peft.get_peft_model(kind.from_pretrained(base), options).save_pretrained(tmp_path / role)
        models[role] = f"{base}+{tmp_path / role}"
        whole = peft.PeftModel.from_pretrained(kind.from_pretrained(base), tmp_path / role)
        merged[role] = tmp_path / f"{role}_whole"
        whole.merge_and_unload().save_pretrained(merged[role])
    swap = Swap(LAYERS, non_layer="base")
    found = tensors_of(recipe(models, swap.parameters(), base))
    assert_same(found, expected(swap, *map(stored, merged.values()), stored(base)))


def test_a_speech_encoder_follows_non_layer_and_its_counts_stay(experts, tmp_path):
    """GraniteSpeech calls it `encoder.layers`; transformers misses a batch norm's counts."""
    given = experts("granite_speech")
    models = [stored(folder) for folder in (given.task, given.language, given.base)]
    out = tmp_path / "out"
    write(recipe(roles(given), {"bottom_layers": 6, "top_layers": 0}, dtype="float32"), out)
    found = stored(out)
    counts = [name for name in found if name.endswith("num_batches_tracked")]
    assert len(counts) == LAYERS
    assert {found[name].dtype for name in counts} == {torch.int64}
    for name, tensor in found.items():
        task, language = (model[name].float() for model in models[:2])
        # transformers 5.24 saves one `model.` less than 5.19.
        is_text = name.startswith("language_model.model.") and ".layers." in name
        wanted = language if is_text else (task.double() + language.double()).float() / 2
        assert name in counts or torch.allclose(tensor, wanted, rtol=1e-6), name
    kind = transformers.GraniteSpeechForConditionalGeneration
    _, report = kind.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def contradicting(folder, top):
    """Let the top level of a config say another thing than its text part about the head."""
    document = json.loads((folder / "config.json").read_text())
    document["tie_word_embeddings"], text = top, document["text_config"]
    text["tie_word_embeddings"] = not top
    (folder / "config.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("top", [True, False])
def test_a_head_of_its_own_counts_whatever_a_config_contradicts(top, experts, tmp_path):
    """So says transformers 5 of Mistral 3: tied at the top, and not in the text part."""
    given = experts("mistral3_vl")
    models = {
        name: contradicting(restored(folder, tmp_path / name, dict), top)
        for name, folder in vars(given).items()
    }
    base, out = models.pop("base"), tmp_path / "out"
    assert not ties(read_checkpoint("task", models["task"]), read_checkpoint("base", base))
    write(recipe(models, SWAP.parameters(), base), out)
    wanted = [stored(given.task), stored(given.language), stored(given.base)]
    assert_same(stored(out), expected(SWAP, *wanted))
    head = next(name for name in stored(out) if name.endswith(HEAD))
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(out)
    assert torch.equal(loaded.lm_head.weight, stored(out)[head])


def test_no_advice_destroys_a_head(experts, tmp_path):
    odd = restored(experts("llama").task, tmp_path / "odd", dict)
    edited(odd, tie_word_embeddings=True)
    with pytest.raises(InputError) as caught:
        merge_of(recipe({"task": odd, "language": experts("llama").language}, SWAP.parameters()))
    assert "tie_word_embeddings: false in its config.json to use both" in caught.value.message
    assert "remove" not in caught.value.message


@pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`")
@pytest.mark.parametrize("copied", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
def test_check_says_what_peft_will_untie_and_which_folder_to_untie(copied, experts, tmp_path):
    base = restored(experts("llama_tied").base, tmp_path / "base", dict)
    how = {"target_modules": ["q_proj"], "r": 2, "modules_to_save": copied}
    paths = [train_adapter(base, tmp_path / name, i, **how) for i, name in enumerate(("a", "b"))]
    models = dict(zip(("task", "language"), (f"{base}+{path}" for path in paths), strict=True))
    document = recipe(models, SWAP.parameters(), base)
    file, out = write_recipe(tmp_path / "recipe.yml", document), tmp_path / "out"
    (error,) = [f for f in check_recipe(file, hub=False) if f.level == "error"]
    assert f"untie {base} first" in error.message
    assert "as lm_head" in error.message
    assert error.message.startswith(f"{models['task']} and {models['language']}: its adapter")
    with pytest.raises(InputError, match=r"peft's merge unties the two") as caught:
        merge(document, out)
    assert error.message in caught.value.message
    # What it says makes the merge possible.
    head = {HEAD: stored(base)["model.embed_tokens.weight"].clone()}
    untied = restored(base, tmp_path / "untied", lambda tensors: tensors | head)
    edited(untied, tie_word_embeddings=False)
    models = {role: f"{untied}+{path}" for role, path in zip(models, paths, strict=True)}
    merge(recipe(models, SWAP.parameters(), untied), out)
    assert_loads(out)
    assert HEAD in stored(out)


@pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`")
def test_an_adapter_that_keeps_the_tie_is_not_reported(experts, tmp_path):
    base = experts("llama_tied").base
    how = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}
    path = train_adapter(base, tmp_path / "a", ensure_weight_tying=True, **how)
    models = [(read_checkpoint("base", base), None), (read_checkpoint("a", base), path)]
    assert not [*tie_problems(models)]


def test_a_plus_in_a_folders_name_is_explained(experts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    restored(experts("llama").task, tmp_path / "math+code", dict)
    means = "+ means MODEL+ADAPTER; rename a folder whose own name has a +"
    for name in ("math+code", "mth+code"):
        document = recipe({"task": name, "language": experts("llama").language}, SWAP.parameters())
        file = write_recipe(tmp_path / "recipe.yml", document)
        found = [f for f in check_recipe(file, hub=False) if means in f.message]
        assert [f.level for f in found] == ["warning" if name == "math+code" else "error"]
        with pytest.raises(InputError) as caught:
            merge(document, tmp_path / "out")
        assert (
            f"no such folder; did you mean 'math+code'? (the current directory is {tmp_path}); "
            in (caught.value.message)
        )
        assert caught.value.message.endswith(f"{name}: {means}")


def fused(tensors):
    """Return a mixture's tensors as transformers names them in memory: experts in one tensor."""
    names = {name for name in tensors if ".experts." in name}
    kept = {name: tensor for name, tensor in tensors.items() if name not in names}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([tensors[f"{prefix}.{expert}.{part}_proj.weight"] for expert in range(3)])
            for part in ("gate", "up", "down")
        )
        kept |= {f"{prefix}.gate_up_proj": torch.cat([gate, up], 1), f"{prefix}.down_proj": down}
    return {name: tensor.contiguous() for name, tensor in kept.items()}


def test_experts_under_other_names_get_a_remedy_that_works(experts, tmp_path):
    given, new = experts("qwen3_moe"), tmp_path / "new"
    odd = restored(given.task, tmp_path / "odd", fused)
    models = {"task": given.language, "language": odd}
    with pytest.raises(InputError, match="store the same weights under other names") as caught:
        merge_of(recipe(models, SWAP.parameters()))
    _, _, remedy = caught.value.message.partition("architecture: ")
    names = {"AutoModelForCausalLM": transformers.AutoModelForCausalLM, "DIR": new}
    exec(remedy, names)
    assert_same(stored(new), stored(given.task))
    found = check_compatibility([str(given.language), str(odd)])
    assert "save_pretrained(DIR)" in str(found)
    assert layerswap("compat", str(given.language), str(odd)).exit_code == 1
