"""Merged folders: tensors, config, tokenizer, card and code, by every command that writes them."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from ablations.cli import main
from layerswap_method.errors import InputError
from layerswap_method.output import PLAN_FILE
from tests.standins.experts import assert_loads
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
)
from tests.standins.oracle import Swap, assert_same, expected, stored
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import edited, restored, rewritten, train_adapter, write_adapter
from tests.standins.zoo import LAYERS, VOCAB, make_model

SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}
MERGEKIT = str(Path(sys.executable).with_name("mergekit-yaml"))


def run_merge(document, out, *options):
    """Return the result of `layerswap merge`; the recipe stands beside `out`."""
    file = out.parent / "recipe.yml"
    out.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return CliRunner().invoke(main, ["merge", str(file), str(out), *options])


def run_mergekit_yaml(document, out, *options):
    """Return the finished process of `mergekit-yaml`."""
    file = out.parent / "recipe.yml"
    out.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    command = [MERGEKIT, str(file), str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def others(folder):
    return {path.name for path in folder.iterdir() if "safetensors" not in path.name}


def assert_same_folder(ours, theirs):
    """Fail unless both hold the same files with the same content."""
    assert_same(stored(ours), stored(theirs))
    assert others(ours) == others(theirs)
    needed = {"config.json", "tokenizer.json", "README.md", "generation_config.json"}
    assert needed <= others(ours)
    for name in others(ours):
        one, other = ((folder / name).read_text(encoding="utf-8") for folder in (ours, theirs))
        if name.endswith(".json"):
            same = json.loads(one) == json.loads(other)
        else:  # mergekit lists models in a random order
            same = sorted(one.splitlines()) == sorted(other.splitlines())
        assert same, name


def test_every_command_writes_the_same_folder(trio, tmp_path):
    documents = {
        "swap": recipe(roles(trio), {**SWAP, "weighting": "magnitude"}, trio.base),
        "revert": revert_recipe(trio.task, trio.base, {"keep_fraction": 0.5}, out_dtype="float16"),
    }
    for name, document in documents.items():
        folders = [tmp_path / name / way / "merged" for way in ("layerswap", "yaml", "python")]
        ours, yaml_s, python_s = folders
        done = run_merge(document, ours, "--verify")
        assert done.exit_code == 0, done.output
        assert "read again and compared" in done.output
        process = run_mergekit_yaml(document, yaml_s, "--out-shard-size", "9K", "--cuda")
        assert process.returncode == 2, process.stderr  # there is no GPU
        process = run_mergekit_yaml(document, yaml_s)
        assert process.returncode == 0, process.stderr
        assert "from file to file" in process.stderr
        merge(document, python_s, copy_tokenizer=True)
        assert_same_folder(ours, yaml_s)
        assert_same_folder(ours, python_s)
        executor = by_mergekit(
            document, tmp_path / name / "executor" / "merged", copy_tokenizer=True
        )
        wanted = stored(executor)
        assert all(torch.equal(t.double(), wanted[n].double()) for n, t in stored(ours).items())
        # mergekit's executor writes the config and the tokenizer by transformers
        assert others(ours) <= others(executor) | {"chat_template.jinja", "special_tokens_map.json"}
        assert (ours / PLAN_FILE).exists() == (name == "swap")
        assert_loads(ours)


def test_what_a_merge_says_of_itself(trio, tmp_path):
    document = recipe(roles(trio), SWAP, trio.base)
    text = "# fence ``` in a comment\n" + yaml.safe_dump(document)
    (tmp_path / "recipe.yml").write_text(text)
    command = ["merge", str(tmp_path / "recipe.yml"), str(tmp_path / "out")]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "6 layers: language 0-1,5; average 2; task 3-4" in done.output
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "6 layers: language 0-1,5; average 2; task 3-4" in card
    assert text.strip() in card
    assert card.count("````") == 4
    assert "trust_remote_code" not in card
    assert (tmp_path / "out" / "mergekit_config.yml").read_text() == text
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"
    write(document, tmp_path / "bare", with_card=False, with_tokenizer=False)
    assert others(tmp_path / "bare") == {"config.json", "generation_config.json", PLAN_FILE}


def test_shards_config_and_other_files_of_the_donor(own_trio, tmp_path):
    extra = ["training_args.bin", "optimizer.pt", "notes.md", "tokenizer.model", "extra.py"]
    for name in extra:
        (own_trio.base / name).write_text("x")
    (own_trio.base / "model.safetensors.index.json.old.json").write_text("{}")
    write(
        recipe(roles(own_trio), SWAP, own_trio.base, out_dtype="float16"),
        tmp_path / "out",
        shard_bytes=9_000,
    )
    found = others(tmp_path / "out")
    assert {"tokenizer.model", "extra.py"} <= found
    assert not {"training_args.bin", "optimizer.pt", "notes.md"} & found
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 3
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = json.loads((own_trio.base / "config.json").read_text())
    assert ours == theirs | {"dtype": "float16"}
    assert_loads(tmp_path / "out")


def test_a_model_with_code_of_its_own_can_be_loaded(own_trio, tmp_path, monkeypatch):
    """F1: config.json named a file that the merge did not have; it is copied, and never run."""
    from transformers import AutoConfig

    config = json.loads((own_trio.base / "config.json").read_text())
    code = (
        "import os\nfrom transformers import LlamaConfig\n"
        "os.mkdir(os.environ['RAN'])\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
    )
    for folder in vars(own_trio).values():
        (folder / "configuration_own.py").write_text(code)
        auto_map = {"AutoConfig": "configuration_own.OwnConfig"}
        changed = config | {"model_type": "own", "auto_map": auto_map}
        (folder / "config.json").write_text(json.dumps(changed))
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    write(recipe(roles(own_trio), SWAP, own_trio.base), tmp_path / "out")
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "out" / "configuration_own.py").read_text() == code
    assert "trust_remote_code" in (tmp_path / "out" / "README.md").read_text()
    loaded = AutoConfig.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert (loaded.model_type, (tmp_path / "ran").exists()) == ("own", True)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "qwen2_moe", "mistral3_vl", "qwen2_vl"])
def test_mixtures_of_experts_and_vision_models_load(family, experts, tmp_path):
    given, swap = experts(family), Swap(LAYERS)
    write(recipe(roles(given), swap.parameters(), given.base), tmp_path / "swap")
    wanted = expected(swap, stored(given.task), stored(given.language))
    assert_same(stored(tmp_path / "swap"), wanted)
    assert_loads(tmp_path / "swap")
    parameters = {"bottom_layers": 1, "revert_modules": "attention"}
    write(revert_recipe(given.task, given.base, parameters), tmp_path / "revert")
    assert_loads(tmp_path / "revert")


SIZES = {"base": VOCAB, "task": VOCAB + 2, "language": VOCAB + 3, "second": VOCAB + 2}
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture(scope="module")
def speakers(tmp_path_factory):
    """Return models of one shape but for their vocabularies; `second` has those of task."""
    root = tmp_path_factory.mktemp("speakers")
    for seed, (name, size) in enumerate(SIZES.items()):
        make_model("llama", root / name, seed, vocab_size=size)
        own = "task" if name == "second" else name
        save_word_tokenizer(root / name, words(size, *(f"{own}{i}" for i in range(3))))
    return {name: root / name for name in SIZES}


@pytest.mark.parametrize("non_layer", ["task", "language", "base", "average"])
def test_vocabularies_of_different_sizes_come_from_one_model(non_layer, speakers, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    swap = Swap(LAYERS, non_layer=non_layer)
    giver = speakers["task" if non_layer == "average" else non_layer]
    both = {role: speakers[role] for role in ("task", "language")}
    if non_layer == "average":
        both["language"] = speakers["second"]
    document = recipe(both, swap.parameters(), speakers["base"])
    lines, out = write(document, tmp_path / "out"), tmp_path / "out"
    merged, wanted = stored(out), stored(giver)
    if non_layer != "average":
        assert_same(*({name: each[name] for name in TABLES} for each in (merged, wanted)))
    assert json.loads((out / PLAN_FILE).read_text()).get("tokenizer_from") == str(giver)
    assert any(str(giver) in line and "tokenizer" in line for line in lines)
    assert merge_of(document).donor == giver
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(giver).get_vocab()
    rows = AutoModelForCausalLM.from_pretrained(out).get_input_embeddings().weight.shape[0]
    assert rows == len(tokenizer)
    held = [stored(each) for each in (*both.values(), speakers["base"])]
    plain = [{n: t for n, t in each.items() if n not in TABLES} for each in (merged, *held)]
    assert_same(plain[0], expected(swap, *plain[1:]))
    with pytest.raises(InputError, match=r"different vocabularies.*tokenizer: "):
        by_mergekit(document, tmp_path / "theirs")  # which reads every model's rows


@pytest.mark.parametrize("kind", ["ordinary", "added", "same"])
def test_tokens_at_other_ids(kind, own_trio, tmp_path, caplog):
    """H4a: rows of unrelated words were averaged without a word."""
    plain = words(VOCAB)
    save_word_tokenizer(own_trio.base, plain)
    save_word_tokenizer(own_trio.task, plain)
    if kind == "ordinary":
        save_word_tokenizer(own_trio.language, [*plain[:4], *reversed(plain[4:])])
    else:
        save_word_tokenizer(own_trio.language, plain)
    if kind == "added":
        file = own_trio.language / "tokenizer.json"
        found = json.loads(file.read_text())
        found["model"]["vocab"] = {
            {"w90": "<tool>"}.get(word, word): number
            for word, number in found["model"]["vocab"].items()
        }
        number = found["model"]["vocab"]["<tool>"]
        more = {**found["added_tokens"][0], "id": number, "content": "<tool>"}
        found["added_tokens"].append(more)
        file.write_text(json.dumps(found))
    document = recipe(roles(own_trio), SWAP, own_trio.base)
    for number, way in enumerate((write, merge)):
        caplog.clear()
        if kind != "ordinary":
            way(document, tmp_path / str(number))
            said = [m for m in caplog.messages if "token" in m]
            assert len(said) == (kind == "added")
            assert all("'w90'" in m and "'<tool>'" in m for m in said)
            continue
        with pytest.raises(InputError) as caught:
            way(document, tmp_path / str(number))
        for part in ("'w", "tokenizer: {source:", "non_layer: task, language or base"):
            assert part in caught.value.message
    if kind == "ordinary":
        one_side = recipe(roles(own_trio), {**SWAP, "non_layer": "task"}, own_trio.base)
        write(one_side, tmp_path / "one side")
        assert_same(tensors_of(one_side), stored(tmp_path / "one side"))
        aligned = document | {"tokenizer": {"source": "union"}}
        merge(aligned, tmp_path / "aligned", copy_tokenizer=True)
        with pytest.raises(InputError, match="different tokens"):
            merge_of(linear_recipe([own_trio.task, own_trio.language]))


def test_values_that_are_not_finite(own_trio, tmp_path, caplog):
    """H4d: NaN of an expert, and numbers beyond float16, went into the merge without a word."""
    name = "model.layers.2.mlp.up_proj.weight"

    def damage(tensors, value):
        tensors[name][3, 1] = value
        return tensors

    nan = restored(own_trio.task, tmp_path / "nan", lambda held: damage(held, torch.nan))
    large = restored(own_trio.task, tmp_path / "large", lambda held: damage(held, 1e6))
    cases = [(nan, {}), (large, {"dtype": "float16"}), (own_trio.task, {"dtype": "float16"})]
    for number, (expert, top) in enumerate(cases):
        caplog.clear()
        models = {"task": expert, "language": own_trio.language}
        write(recipe(models, SWAP, own_trio.base, **top), tmp_path / str(number), threads=2)
        said = [message for message in caplog.messages if "infinite" in message]
        assert len(said) == (expert != own_trio.task)
        assert all(name in message for message in said)


def test_warnings_are_the_same_in_every_way(trio, tmp_path, caplog):
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.self_attn.k_proj", 16, 8)
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "other/Base-7B"
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    models = {"task": f"{trio.base}+{adapter}", "language": trio.language}
    document = recipe(models, {"bottom_layers": 3, "top_layers": 2}, trio.base, dtype="float16")
    found = []
    for number, way in enumerate((write, merge)):
        caplog.clear()
        way(document, tmp_path / str(number))
        found.append([r.message for r in caplog.records if r.levelno == logging.WARNING])
    assert found[0] == found[1]
    for part in ("more than half", "other/Base-7B", "whose largest number is 65504"):
        assert sum(part in message for message in found[0]) >= 1
    own = write_adapter(tmp_path / "own", "model.layers.1.self_attn.k_proj", 16, 8)
    config["base_model_name_or_path"] = "someone/BASE"  # as the folder's name, in other letters
    (own / "adapter_config.json").write_text(json.dumps(config))
    models["task"] = f"{trio.base}+{own}"
    assert "trained on" not in str(merge_of(recipe(models, SWAP, trio.base)).warnings)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer": {"source": "base"}}, "tokenizer:"),
        ({"chat_template": "auto"}, "chat_template:"),
        ({"merge_method": "slerp", "parameters": {"t": 0.5}}, "slerp"),
        ({"merge_method": "linear", "parameters": {"weight": 1}}, "linear"),
    ],
)
def test_what_mergekit_must_do_is_passed_on(change, reason, trio, tmp_path, monkeypatch):
    calls = []

    def record(command, check):
        calls.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", record)
    document = recipe(roles(trio), SWAP, trio.base) | change
    if "parameters" in change:
        document["models"] = [{"model": str(each)} for each in (trio.task, trio.language)]
    done = run_merge(document, tmp_path / "out", "--", "--cuda")
    assert done.exit_code == 3, done.output
    assert "passed on to mergekit-yaml" in done.output
    assert reason in done.output
    files = [str(tmp_path / "recipe.yml"), str(tmp_path / "out")]
    assert calls[0][-5:] == [*files, "--out-shard-size", "5000000000", "--cuda"]
    refused = run_merge(document, tmp_path / "out", "--verify")
    assert refused.exit_code == 2
    assert "--verify" in refused.output


def test_an_unsupported_adapter_is_mergekits(trio, tmp_path, caplog):
    config = {"target_modules": ["q_proj"], "r": 2, "use_dora": True}
    dora = train_adapter(trio.base, tmp_path / "dora", 1, **config)
    models = {"task": f"{trio.base}+{dora}", "language": trio.language}
    with caplog.at_level(logging.INFO):
        merge(recipe(models, SWAP, trio.base), tmp_path / "out", quiet=False)
    assert any("mergekit's executor" in m and "use_dora" in m for m in caplog.messages)
    assert len(stored(tmp_path / "out")) == 57


def test_a_linear_recipe_that_mergekit_refuses_is_refused(trio, tmp_path):
    """F6: a model listed twice was merged, and unknown parameters were not named."""
    twice = linear_recipe([trio.task, trio.language, trio.task], (1.0, 1.0, 1.0))
    typo = linear_recipe([trio.task, trio.language])
    typo["models"][1]["parameters"]["wieght"] = 2
    normal = linear_recipe([trio.task, trio.language]) | {"parameters": {"normalise": True}}
    zero = linear_recipe([trio.task, trio.language], (0.0, 0.0))
    for number, (document, parts) in enumerate(
        [
            (twice, ["twice", str(trio.task)]),
            (typo, ["'wieght'", "models[1]", "'weight'"]),
            (normal, ["'normalise'", "'normalize'"]),
            (zero, ["sum to 0"]),
        ]
    ):
        done = run_merge(document, tmp_path / str(number) / "out")
        assert done.exit_code == 2, done.output
        assert all(part in done.output for part in parts), done.output
        assert not (tmp_path / str(number) / "out").exists()


def test_foreign_files_do_not_get_into_a_merge(own_trio, tmp_path):
    """H8: a link of the donor arrived as the content of the file that it names."""
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (own_trio.base / "tokenizer.json").unlink()
    (own_trio.base / "tokenizer.json").symlink_to(secret)
    with pytest.raises(InputError, match=r"tokenizer\.json is a link to .*secret"):
        write(recipe(roles(own_trio), SWAP, own_trio.base), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_dimensional_integers_and_complex_numbers(trio, tmp_path):
    """H4f: an int8 norm was averaged as numbers, complex values lost their imaginary part."""
    for number, dtype in enumerate((torch.int8, torch.complex64, torch.float8_e4m3fn)):
        odd = rewritten(
            trio.task,
            tmp_path / str(number),
            lambda name, tensor, dtype=dtype: tensor.to(dtype) if tensor.ndim == 1 else tensor,
        )
        document = recipe({"task": odd, "language": trio.language}, SWAP, trio.base)
        with pytest.raises(InputError, match=rf"{odd} stores weights as .*unquantised"):
            merge_of(document)


def test_multi_token_prediction_layers_are_outside_the_decoder(own_trio, tmp_path):
    """F7: mtp.layers.0 was taken for decoder layer 0; and layers behind the last one (GLM)."""
    name = "mtp.layers.0.mlp.up_proj.weight"
    for folder in vars(own_trio).values():
        held = load_file(folder / "model.safetensors")
        held[name] = held["model.layers.3.mlp.up_proj.weight"].clone()
        held["model.layers.6.mlp.up_proj.weight"] = held[name].clone()
        save_file(held, folder / "model.safetensors", {"format": "pt"})
        edited(folder, num_nextn_predict_layers=1)
    merged = merge_of(recipe(roles(own_trio), {**SWAP, "non_layer": "task"}, own_trio.base))
    task = stored(own_trio.task)
    found = tensors_of(merged)
    assert merged.plan.num_layers == LAYERS
    for each in (name, "model.layers.6.mlp.up_proj.weight"):
        assert_same({each: found[each]}, {each: task[each]})
