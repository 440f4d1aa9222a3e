"""The swapped adapter is the swap of what peft makes of both; `layerswap swap-adapters`."""

import json
import re
import shutil
from types import SimpleNamespace

import peft
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from layerswap_method.adapter_swap.adapters import Factors, cut_rank, stack
from layerswap_method.adapter_swap.card import server_text
from layerswap_method.errors import InputError
from layerswap_method.output import FILES, PLAN_FILE
from tests.standins.by_peft import LINEAR, logits, merged, run, swapped
from tests.standins.command import layerswap
from tests.standins.experts import content, left_in
from tests.standins.fine_tunes import (
    edited,
    train_adapter,
    tune,
    write_prefix,
)
from tests.standins.merging import recipe, write, write_recipe
from tests.standins.model_families import LAYERS, VOCAB
from tests.standins.oracle import Swap, expected, same_bits, stored
from tests.standins.tokenizers import save_word_tokenizer, words

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch_dtype.*"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to"),
    pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`"),
]
SWAP = Swap(LAYERS)
WEIGHTED = Swap(LAYERS, 1, 2, 2, 0, "language", 1.0, 2.0)
PLAIN = {"target_modules": LINEAR, "r": 2, "lora_alpha": 4}
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
TABLES = {"target_modules": ["embed_tokens", "k_proj"]}
RANKS = {"use_rslora": True, "rank_pattern": {"layers.2.self_attn.q_proj": 3, "v_proj": 1}}
PAIRS = [
    # swap, configs of both adapters, family
    (SWAP, {}, {}, "llama"),
    (WEIGHTED, {"r": 3, "lora_alpha": 7}, {"r": 5, "lora_alpha": 2}, "llama"),
    (SWAP, RANKS, {"alpha_pattern": {"layers.3.*down_proj": 11}}, "llama"),
    (SWAP, TABLES, {"target_modules": ["lm_head", "embed_tokens", "up_proj"]}, "llama"),
    (SWAP, {}, {"lora_alpha": 0}, "llama"),
    (SWAP, *[{"target_modules": ["c_attn", "wte"]}] * 2, "gpt2"),
    (SWAP, *[{"target_modules": ["q_proj", "embed_tokens"]}] * 2, "llama_tied"),
    # whose tensors have other names in the file than when they are loaded
    (SWAP, *[{"target_modules": ".*language_model.*(q_proj|embed_tokens)"}] * 2, "gemma3_vl"),
]


@pytest.fixture
def base(experts):
    """Return a Llama with half as many key-value heads as query heads."""
    return experts("llama", dtype=torch.float32).base


@pytest.fixture
def make(experts, tmp_path):
    """Return a function: configs of both adapters -> base and folders."""

    def pair(task, language, family="llama"):
        base = experts(family, dtype=torch.float32).base
        folders = {
            role: train_adapter(base, tmp_path / role, seed, **PLAIN | config)
            for seed, (role, config) in enumerate((("task", task), ("language", language)))
        }
        models = {role: f"{base}+{adapter}" for role, adapter in folders.items()}
        return SimpleNamespace(base=base, adapters=folders, models=models)

    return pair


@given(st.integers(0, 999), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_stacked_adapters_are_the_sum_and_a_cut_is_the_nearest_of_its_rank(seed, ranks, data):
    generator = torch.Generator().manual_seed(seed)
    shapes = [((rank, 6), (9, rank)) for rank in ranks]
    changes = [Factors(*(torch.randn(s, generator=generator) for s in shape)) for shape in shapes]
    shares = [data.draw(st.sampled_from([1, 0.5, -2.0, 3.7])) for _ in ranks]
    stacked = stack(list(zip(changes, shares, strict=True)), torch.float64)
    parts = zip(changes, shares, strict=True)
    whole = sum(share * (change.up.double() @ change.down.double()) for change, share in parts)
    assert len(stacked.down) == sum(ranks)
    product = stacked.up @ stacked.down
    torch.testing.assert_close(product, whole)
    rank = data.draw(st.integers(1, sum(ranks)))
    cut, error = cut_rank(stacked, rank)
    lost = float(torch.linalg.svdvals(product)[rank:].square().sum())
    gone = float((cut.up @ cut.down - product).square().sum())
    assert error == pytest.approx(lost, abs=1e-9)
    assert gone == pytest.approx(lost, abs=1e-9)


def assert_near(found, wanted):
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        bound = 2e-7 * (1 + tensor.abs().max())  # a few steps of float32, which A and B are in
        assert (found[name].double() - tensor.double()).abs().max() <= bound, name


def both_merged(given):
    return (merged(given.base, given.adapters[role]) for role in ("task", "language"))


@pytest.mark.parametrize(("swap", "task", "language", "family"), PAIRS, ids=range(len(PAIRS)))
def test_the_merge_of_the_swap_is_the_swap_of_the_merges(
    swap, task, language, family, make, tmp_path
):
    given = make(task, language, family)
    out, _ = swapped(tmp_path, given.base, given.adapters, swap.parameters())
    ours, plain = merged(given.base, out), stored(given.base)
    assert_near(ours, expected(swap, *both_merged(given)))
    plain = {n.replace("language_model.model.", "model.language_model."): plain[n] for n in plain}
    assert any(not torch.equal(ours[name].float(), plain[name]) for name in ours.keys() & plain)


RECIPES = [
    SWAP.parameters(),
    {"weighting": "magnitude", "bottom_layers": 1, "bottom_transition": 2},
    {"placement": "delta_share"},
]


@pytest.mark.parametrize("parameters", RECIPES, ids=str)
def test_it_is_the_merge_of_the_same_recipe(parameters, make, tmp_path):
    given = make({"r": 4, "lora_alpha": 1}, {"lora_alpha": 0.5})
    document = recipe(given.models, parameters, given.base)
    out, _ = run(tmp_path / "adapters", document)
    write(document, tmp_path / "merged")
    wanted, found = stored(tmp_path / "merged"), merged(given.base, out, torch.float32)
    assert_near(found, wanted)
    records = [f / "layer_swap_plan.json" for f in (out, tmp_path / "merged")]
    plan, same = (json.loads(record.read_text()) for record in records)
    plan.pop("adapter")
    assert plan == same
    whole = [n for n in wanted if "layers" in n and plan["layers"][int(n.split(".")[2])] == "task"]
    assert all(same_bits(found[name], wanted[name]) for name in whole)


def test_swapped_layers_keep_the_matrices(make, tmp_path):
    given = make({}, {})
    out, lines = swapped(tmp_path, given.base, given.adapters, SWAP.parameters())
    theirs = {role: load_file(adapter / WEIGHTS) for role, adapter in given.adapters.items()}
    copied = 0
    for name, tensor in load_file(out / WEIGHTS).items():
        source = SWAP.of_tensor(name)
        if source == "average":
            assert 4 in tensor.shape
        else:
            copied += 1
            assert same_bits(tensor, theirs[source][name])
    assert copied == 2 * 4 * len(LINEAR)
    config = json.loads((out / CONFIG).read_text())
    assert (config["r"], config["lora_alpha"], len(config["rank_pattern"])) == (2, 4, 6)
    assert "adapter: 18 tensors, rank 2 to 4, float32" in lines
    assert json.loads((out / "layer_swap_plan.json").read_text())["adapter"]["ranks"] == [2, 4]


def test_soups_of_several_experts_and_a_plain_base(make, tmp_path):
    given = make({"r": 3}, {})
    third = train_adapter(given.base, tmp_path / "third", 9, **PLAIN)
    document = recipe(given.models, SWAP.parameters(), given.base)
    more = {"model": f"{given.base}+{third}", "parameters": {"role": "language", "weight": 2.0}}
    document["models"].append(more)
    out, _ = run(tmp_path / "soup", document)
    ours, one = both_merged(given)
    two = merged(given.base, third)
    soup = {name: (tensor + 2 * two[name]) / 3 for name, tensor in one.items()}
    assert_near(merged(given.base, out), expected(SWAP, ours, soup))
    document["models"][1:] = [{"model": str(given.base), "parameters": {"role": "language"}}]
    out, _ = run(tmp_path / "reverted", document)
    plain = {name: tensor.double() for name, tensor in stored(given.base).items()}
    assert_near(merged(given.base, out), expected(SWAP, ours, plain))


def test_sixteen_bits_stay_where_they_are_exact(make, tmp_path):
    given = make({}, {})
    for folder in given.adapters.values():
        held = load_file(folder / WEIGHTS)
        save_file({name: tensor.bfloat16() for name, tensor in held.items()}, folder / WEIGHTS)
    for weight, dtype in ((1.0, torch.bfloat16), (2.0, torch.float32)):
        swap = Swap(LAYERS, w_lang=weight)
        out, _ = swapped(tmp_path / str(weight), given.base, given.adapters, swap.parameters(), 4)
        assert {tensor.dtype for tensor in load_file(out / WEIGHTS).values()} == {dtype}
        assert_near(merged(given.base, out), expected(swap, *both_merged(given)))


def test_a_lower_rank_is_the_nearest_and_its_error_is_stated(make, tmp_path):
    given = make({"r": 3}, {"r": 4})
    soup = {"placement": "soup"}
    exact, lines = swapped(tmp_path / "exact", given.base, given.adapters, soup, rank=7)
    assert any("0 of 18 tensors cut" in line for line in lines)
    out, lines = swapped(tmp_path / "cut", given.base, given.adapters, soup, rank=3)
    assert any("18 of 18 tensors cut" in line for line in lines)
    whole, cut, plain = merged(given.base, exact), merged(given.base, out), stored(given.base)
    record = json.loads((out / "layer_swap_plan.json").read_text())["adapter"]["cut"]
    names = [name for name in whole if not torch.equal(whole[name], plain[name].double())]
    assert (record["rank"], record["tensors"], len(names)) == (3, *[LAYERS * len(LINEAR)] * 2)
    missing = sum(float((whole[name] - cut[name]).square().sum()) for name in names)
    total = sum(float((whole[name] - plain[name].double()).square().sum()) for name in names)
    assert record["relative_error"] == pytest.approx((missing / total) ** 0.5, rel=1e-4)
    assert json.loads((out / CONFIG).read_text())["rank_pattern"] == {}


TWICE = Swap(LAYERS, w_lang=2.0)
TOKENS = 3


@pytest.fixture
def prefixes(base, tmp_path):
    """Return role -> folder of a prefix."""
    roles = enumerate(("task", "language"))
    return {role: write_prefix(base, tmp_path / role, seed, TOKENS) for seed, role in roles}


def cached(base, adapter):
    """Return the keys and values of each layer that peft puts into the cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    cache = peft.PeftModel.from_pretrained(model, adapter).eval().get_prompt(1)
    cache = getattr(cache, "self_attention_cache", cache)
    return [(layer.keys, layer.values) for layer in cache.layers]


@pytest.mark.parametrize("projected", [False, True])
def test_each_layer_is_cached_as_the_plan_says(base, prefixes, projected, tmp_path):
    if projected:
        more = {"prefix_projection": True}
        prefixes["task"] = write_prefix(base, tmp_path / "projected", 5, TOKENS, **more)
    out, lines = swapped(tmp_path, base, prefixes, TWICE.parameters())
    found = cached(base, out)
    task, language = (cached(base, prefixes[role]) for role in ("task", "language"))
    assert len(found) == LAYERS
    for layer, pair in enumerate(found):
        for ours, t, s in zip(pair, task[layer], language[layer], strict=True):
            source = TWICE.of_layer(layer)
            if source == "average":
                torch.testing.assert_close(ours, (t + 2 * s) / 3)
            else:
                assert same_bits(ours, {"task": t, "language": s}[source])
    assert not torch.equal(task[0][0], language[0][0])
    assert any(f"prefix of {TOKENS} tokens" in line for line in lines)
    assert logits(base, out).isfinite().all()
    record = json.loads((out / "layer_swap_plan.json").read_text())
    assert record["adapter"] == {"kind": "prefix", "tokens": TOKENS}


def test_swapping_the_mlp_alone_leaves_the_prefix_to_the_task(base, prefixes, tmp_path):
    out, _ = swapped(tmp_path, base, prefixes, {"swap_modules": "mlp", "bottom_layers": 2})
    name = "adapter_model.safetensors"
    found, task = (load_file(folder / name) for folder in (out, prefixes["task"]))
    assert same_bits(found["prompt_embeddings"], task["prompt_embeddings"])


def test_what_is_refused(base, prefixes, experts, tmp_path):
    longer = write_prefix(base, tmp_path / "long", 1, TOKENS + 2)
    other = experts("llama", dtype=torch.float32, num_hidden_layers=4).base
    short = write_prefix(other, tmp_path / "short", 2, TOKENS)
    config = json.loads((prefixes["task"] / CONFIG).read_text())
    changed = {}
    for name, more in (("dim", {"token_dim": "8"}), ("tokens", {"num_virtual_tokens": 7})):
        changed[name] = shutil.copytree(prefixes["task"], tmp_path / name)
        (changed[name] / CONFIG).write_text(json.dumps(config | more))
    task, language = (f"{base}+{prefixes[role]}" for role in ("task", "language"))
    count, nothing = {"bottom_layers": 1}, f"{base} has no prefix"
    for parameters, models, rank, part in (
        (count, (task, language), 2, "--rank"),
        (count, (task, f"{base}+{longer}"), None, "3, 5 tokens; train them with one"),
        ({"weighting": "magnitude"}, (task, language), None, "weighting: magnitude"),
        (count, (task, f"{base}+{short}"), None, "short has 4 layers, and the base has 6"),
        (count, (task, base), None, nothing),
        # experts without an adapter have no prefix, so the first was blamed for the second's
        (count, (base, f"{base}+{short}"), None, nothing),
        (count, (f"{base}+{changed['dim']}", language), None, "token_dim '8'"),
        (count, (f"{base}+{changed['tokens']}", language), None, "prompt_embeddings is [3, 96]"),
    ):
        both = dict(zip(("task", "language"), map(str, models), strict=True))
        with pytest.raises(InputError) as caught:
            run(tmp_path, recipe(both, parameters, base), rank)
        assert part in caught.value.message
    assert not (tmp_path / "out").exists()


COUNTS = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}


@pytest.fixture
def document(base, make):
    """Return the recipe of two adapters in `tmp_path`."""
    config = {"target_modules": ["q_proj"]}
    return recipe(make(config, config).models, COUNTS, base)


def call(document, tmp_path, *more, out="out"):
    file = write_recipe(tmp_path / "recipe.yml", document)
    return layerswap("swap-adapters", file, "--out", tmp_path / out, *more)


def test_an_at_sign_in_the_path_of_the_base_is_no_revision(document, base, tmp_path):
    dated = shutil.copytree(base, tmp_path / "base@2024-10")
    document = json.loads(json.dumps(document).replace(str(base), str(dated)))
    result = call(document, tmp_path)
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "out" / CONFIG).read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (str(dated), None)


def test_it_reports_what_it_did_and_can_be_called_again(document, base, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(base.parent))  # peft does not read ~
    document = json.loads(json.dumps(document).replace(str(base), f"~/{base.name}"))
    result = call(document | {"dtype": "bfloat16"}, tmp_path, "--rank", "3")
    assert result.exit_code == 0, result.output
    for part in (
        "6 layers: language 0-1,5; average 2; task 3-4",
        "adapter: 6 tensors, rank 2 to 3, float32",
        "rank 3: 1 of 6 tensors cut; relative error of the whole change 0.",
        "dtype bfloat16 is for merged weights",
    ):
        assert part in result.output
    out = tmp_path / "out"
    assert {*content(out)} == {CONFIG, WEIGHTS, PLAN_FILE, "README.md", FILES}
    assert json.loads((out / CONFIG).read_text())["base_model_name_or_path"] == str(base)
    assert "██▒··█" in (out / "README.md").read_text()
    assert "rank 2 to 4" in call(document, tmp_path).output
    document["models"][0]["model"] = f"{base}+{out}"
    result = call(document, tmp_path, out="again")
    assert "adapter: 6 tensors, rank 2 to 6, float32" in result.output
    (tmp_path / "again" / "config.json").touch()
    assert "again: the folder holds a whole model" in call(document, tmp_path, out="again").output
    assert not left_in(tmp_path)


def test_the_readme_says_how_to_use_the_adapter(document, base, tmp_path, monkeypatch):
    speaking = shutil.copytree(base, tmp_path / "speaking")
    save_word_tokenizer(speaking, words(VOCAB))
    document = json.loads(json.dumps(document).replace(str(base), str(speaking)))
    call(document, tmp_path)
    monkeypatch.chdir(tmp_path)
    text = (tmp_path / "out" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    namespace = {"print": lambda text: None}
    exec(code, namespace)
    ids = torch.tensor([[3, 11, 12, 13, 40]])
    with torch.no_grad():
        found = namespace["model"].eval()(input_ids=ids).logits
    assert torch.equal(found, logits(base, tmp_path / "out"))
    assert not torch.equal(found, logits(base, tmp_path / "task"))
    serve = (
        f"vllm serve {speaking} --enable-lora --max-lora-rank 8 \\\n    --lora-modules swap=./out"
    )
    assert serve in text


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({"kind": "lora", "ranks": [2, 8]}, "--max-lora-rank 8 "),
        ({"kind": "lora", "ranks": [8, 9]}, "--max-lora-rank 16 "),
        ({"kind": "lora", "ranks": [1, 512]}, "--max-lora-rank 512 "),
        ({"kind": "lora", "ranks": [1, 513]}, "vLLM takes ranks up to 512, and this adapter has"),
        ({"kind": "prefix", "tokens": 4}, "vLLM serves no prefixes."),
    ],
)
def test_the_rank_is_the_next_that_vllm_takes(record, part):
    assert part in server_text("org/base", "", "./out", record)
    pinned = server_text("org/base", "v1", "./out", record)
    assert ("vllm serve org/base --revision v1 " in pinned) == ("--max-lora-rank" in part)


def config_with(**changes):
    return lambda document, base, root: edited(root / "task", CONFIG, **changes)


def without_adapters(*names):
    """Return an edit that puts whole fine-tunes in the place of the last adapters."""

    def edit(document, base, root):
        for name, entry in zip(reversed(names), reversed(document["models"]), strict=False):
            entry["model"] = str(tune(base, root / name, 3))

    return edit


def not_finite(document, base, root):
    tensors = load_file(root / "task" / WEIGHTS)
    tensors[next(name for name in tensors if "layers.3" in name)][0, 0] = torch.nan
    save_file(tensors, root / "task" / WEIGHTS)


def nothing_left(document, base, root):
    document["models"][0]["model"] = str(base)
    document["parameters"] = {"bottom_layers": 0, "top_layers": 0}


def other_base(document, base, root):
    other = tune(base, root / "other", 3)
    document["models"][1]["model"] = f"{other}+{root / 'language'}"


REFUSED = {
    "kind": (config_with(peft_type="IA3"), ["peft_type is IA3", "LORA and PREFIX_TUNING"]),
    "kinds": (config_with(peft_type="PREFIX_TUNING"), ["must be of one kind", "LORA"]),
    "base": (other_base, ["is not the base_model", "other"]),
    "full": (without_adapters("full"), ["full", "layerswap merge"]),
    "none": (without_adapters("one", "two"), ["BASE+ADAPTER", "layerswap merge"]),
    "nothing": (nothing_left, ["would change nothing", "swap other layers"]),
    "nan": (not_finite, ["task", "layers.3", "NaN"]),
    "method": (lambda d, *_: d.update(merge_method="linear"), ["layer_swap only"]),
    "tokenizer": (lambda d, *_: d.update(tokenizer={"source": "base"}), ["tokenizer:"]),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_the_command_refuses(fault, document, base, tmp_path):
    edit, parts = REFUSED[fault]
    edit(document, base, tmp_path)
    result = call(document, tmp_path)
    assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
    assert all(part in result.output for part in parts), result.output
    assert not (tmp_path / "out").exists()
    assert not left_in(tmp_path)
