"""In mergekit's executor: `tokenizer:`, `chat_template:`, DoRA; and the kernels alone."""

import json
import logging
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from click.testing import CliRunner
from mergekit.common import ModelPath, ModelReference
from mergekit.io.tasks import LoaderCache
from mergekit.merge_methods import merge_state_dicts
from mergekit.scripts.multimerge import main
from safetensors.torch import load_file, save_file

from ablations.recipe_commands.check import check_recipe
from layerswap_method.checkpoint.settings import end_warning
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.kernels.plain import decoder_in
from layerswap_method.output import FILES, write_list
from tests.standins.by_peft import merged
from tests.standins.experts import assert_loads
from tests.standins.fine_tunes import edited, train_adapter, tune
from tests.standins.merging import (
    by_mergekit,
    linear_recipe,
    merge,
    merge_of,
    recipe,
    roles,
    tensors_of,
    write,
)
from tests.standins.model_families import LAYERS, VOCAB, make_model
from tests.standins.oracle import Swap, assert_same, average, expected, stored
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.word_models import write_model

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")

EXTRA = ("xx", "yy", "zz")
SWAP = Swap(LAYERS)
TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture(scope="module")
def speakers(tmp_path_factory):
    """Return experts with tokenizers; the language expert has three tokens more, in other rows."""
    root = tmp_path_factory.mktemp("speakers")
    tokens = {"base": words(VOCAB), "task": words(VOCAB), "language": [*EXTRA, *words(VOCAB)]}
    for seed, (name, vocabulary) in enumerate(tokens.items()):
        make_model("llama", root / name, seed, vocab_size=len(vocabulary))
        settings = {"chat_template": TEMPLATE} if name == "task" else {}
        save_word_tokenizer(root / name, vocabulary, **settings)
    edited(root / "base", dtype="float32")  # and the tensors are bfloat16
    return SimpleNamespace(**{name: root / name for name in tokens}, tokens=tokens)


def rows(speakers, role, table, order):
    """Return a model's table in the merged order; a token it lacks has the row of who has it."""
    result = {}
    for owner in ("language", role):
        held = stored(getattr(speakers, owner))[table]
        result |= {t: held[i] for i, t in enumerate(speakers.tokens[owner]) if t in order}
    return torch.stack([result[token] for token in sorted(order, key=order.get)])


def aligned(speakers, swap, order):
    """Return the merge: layers by the plan, tables aligned by token, then by `non_layer`."""
    models = {role: stored(getattr(speakers, role)) for role in ("task", "language", "base")}
    plain = [{n: t for n, t in held.items() if n not in TABLES} for held in models.values()]
    tables = [{n: rows(speakers, role, n, order) for n in TABLES} for role in models]
    return expected(swap, *plain) | expected(swap, *tables)


@pytest.mark.parametrize(
    ("tokenizer", "non_layer"),
    [
        ({"tokenizer": {"source": "base"}}, "average"),
        *(({"tokenizer": {"source": "union"}}, n) for n in ("average", "task", "language", "base")),
        ({"tokenizer_source": "union"}, "average"),
        ({"tokenizer": {"source": "base", "tokens": "w1"}}, "task"),
    ],
)
def test_rows_follow_their_tokens(tokenizer, non_layer, speakers, tmp_path, caplog):
    from transformers import AutoTokenizer

    swap = Swap(LAYERS, non_layer=non_layer)
    forced = tokenizer.get("tokenizer", {}).get("tokens")
    if forced:
        source = {"source": str(speakers.language), "force": True}
        tokenizer = {"tokenizer": {"source": "base", "tokens": {forced: source}}}
    document = recipe(roles(speakers), swap.parameters(), speakers.base, **tokenizer)
    with caplog.at_level(logging.INFO, "layerswap"):
        out = merge(document, tmp_path / "merged", quiet=False)
    assert f"mergekit's executor merges this recipe: it has {next(iter(tokenizer))}:" in caplog.text
    order = AutoTokenizer.from_pretrained(out).get_vocab()
    assert len(order) == VOCAB + len(EXTRA) * ("union" in str(tokenizer))
    wanted = aligned(speakers, swap, order)
    for table in TABLES if forced else ():
        held = stored(speakers.language)[table]
        wanted[table][order[forced]] = held[speakers.tokens["language"].index(forced)]
    assert_same(stored(out), wanted)
    assert_loads(out)
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    record = json.loads((out / "layer_swap_plan.json").read_text())
    assert record["layers"] == [swap.of_layer(layer) for layer in range(LAYERS)]


@pytest.mark.parametrize("non_layer", ["task", "language", "base", "average"])
def test_vocabularies_of_different_sizes_come_from_one_model(non_layer, speakers, tmp_path):
    """From file to file, where only one model's rows are read."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    swap, out = Swap(LAYERS, non_layer=non_layer), tmp_path / "out"
    base, task, language = speakers.base, speakers.task, speakers.language
    both = {"task": language, "language": task} if non_layer == "task" else roles(speakers)
    if non_layer == "average":
        both, base = {"task": task, "language": base}, language
    giver = {**both, "base": base}["task" if non_layer == "average" else non_layer]
    document = recipe(both, swap.parameters(), base)
    lines = write(document, out)
    donor = json.loads((out / "layer_swap_plan.json").read_text()).get("tokenizer_from")
    assert (donor, merge_of(document).donor_folder) == (str(giver), giver)
    assert any(str(giver) in line and "tokenizer" in line for line in lines)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(giver).get_vocab()
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)
    held = [stored(each) for each in (*both.values(), base)]
    tables = {name: stored(giver)[name] for name in TABLES}
    if non_layer == "average":
        tables = {name: average(held[0][name], held[1][name], swap) for name in TABLES}
    plain = [{n: t for n, t in each.items() if n not in TABLES} for each in held]
    assert_same(stored(out), expected(swap, *plain) | tables)
    with pytest.raises(InputError, match=r"different vocabularies.*tokenizer: "):
        by_mergekit(document, tmp_path / "theirs")  # which reads every model's rows


@pytest.mark.parametrize("template", ["auto", "chatml", TEMPLATE])
def test_chat_templates(template, speakers, tmp_path):
    models = {"task": speakers.task, "language": speakers.base}
    document = recipe(models, SWAP.parameters(), chat_template=template)
    out = merge(document, tmp_path / "out", copy_tokenizer=True)
    written = (out / "chat_template.jinja").read_text()
    assert "im_start" in written if template == "chatml" else written == TEMPLATE
    assert_same(stored(out), expected(SWAP, *map(stored, models.values())))


def test_a_template_changes_no_tensor_and_leaves_no_file_out(speakers, tmp_path):
    """mergekit rounded to `dtype` before anything was measured; and the ids of stops were lost."""
    experts = [tune(speakers.base, tmp_path / f"{i}", i, 1e-4, is_uneven=True) for i in (1, 2)]
    both = dict(zip(("task", "language"), experts, strict=True))
    swap = recipe(both, SWAP.parameters(), speakers.base, dtype="bfloat16")
    changes = {"models": [{"model": str(both["task"])}], "parameters": {"keep_fraction": 0.5}}
    revert = swap | changes | {"merge_method": "delta_revert"}
    for number, document in enumerate((swap, revert)):
        files = merge(document, tmp_path / f"files{number}")
        out = merge(document | {"chat_template": "chatml"}, tmp_path / f"out{number}")
        assert_same(stored(out), stored(files))
        assert (out / "generation_config.json").is_file()


@pytest.mark.parametrize(
    ("changes", "options"),
    [({}, {"clone_tensors": True}), ({"chat_template": "chatml"}, {})],
    ids=["clone_tensors", "chat_template"],
)
def test_every_file_of_the_tokenizer_is_in_the_merge(changes, options, trio_copy, tmp_path):
    """mergekit copies a fixed list of names."""
    files = ("tokenization_own.py", "vocab.json", "spiece.model")
    templates = ("chat_template.jinja", "additional_chat_templates/tool_use.jinja")
    for name in (*files, *templates):
        file = trio_copy.base / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
    document = recipe(roles(trio_copy), SWAP.parameters(), trio_copy.base)
    out = merge(document | changes, tmp_path / "out", copy_tokenizer=True, **options)
    for name in files:
        assert (out / name).read_bytes() == (trio_copy.base / name).read_bytes()
    assert (out / templates[1]).is_file() == (not changes)
    assert ("im_start" in (out / templates[0]).read_text()) == bool(changes)
    bare = merge(document | changes, tmp_path / "bare", copy_tokenizer=False, **options)
    assert not any((bare / name).exists() for name in (*files, "tokenizer.json"))


def test_another_end_than_the_aligned_tokenizer_has_is_a_warning(speakers, tmp_path, caplog):
    """The config is the base's, whose id of the end is another token of this tokenizer."""
    number = speakers.tokens["language"].index("<eos>")
    source = {"tokenizer": {"source": str(speakers.language)}}
    document = recipe(roles(speakers), SWAP.parameters(), speakers.base, **source)
    out = merge(document, tmp_path / "out")
    (warning,) = [text for text in caplog.messages if "eos_token_id" in text]
    assert warning == (
        "config.json of the merge has eos_token_id 1 ('yy') and generation_config.json of the "
        f"merge has eos_token_id 1 ('yy'), but its tokenizer ends with '<eos>', which is {number}: "
        f"write eos_token_id {number} there, or the merge does not stop at it"
    )
    for name in ("config.json", "generation_config.json"):
        edited(out, name, eos_token_id=[0, number])
    assert end_warning(out) is None


def test_what_was_measured_stands_in_record_and_card(trio, tmp_path, caplog):
    parameters = {"weighting": "magnitude", "placement": "delta_share", "delta_blend": 0.25}
    document = recipe(roles(trio), parameters, trio.base, dtype="float32")
    document["models"][0]["parameters"]["weight"] = 3
    files = merge(document, tmp_path / "files")
    with caplog.at_level(logging.INFO, "layerswap"):
        out = merge(document | {"tokenizer": {"source": "base"}}, tmp_path / "out", quiet=False)
    assert_same(stored(out), stored(files))
    record, wanted = (json.loads((f / "layer_swap_plan.json").read_text()) for f in (out, files))
    note = record["deltas"].pop("note")
    assert "vocabulary rows are compared as they are stored" in note
    assert note in caplog.text
    assert record == wanted
    card = (out / "README.md").read_text()
    assert "weight: 3" in card
    assert "plan:" not in card.partition("### What was merged")[0], "a kernel's parameter"


def test_the_tokens_of_an_adapter_are_those_of_its_base(speakers, tmp_path):
    """mergekit gives its merged copies no tokenizer; rows of other tokens were averaged."""
    from transformers import AutoTokenizer

    adapter, union = tmp_path / "adapter", {"tokenizer": {"source": "union"}}
    train_adapter(speakers.task, adapter, r=2, lora_alpha=4, target_modules=["up_proj"])
    models = roles(speakers) | {"task": f"{speakers.task}+{adapter}"}
    out = merge(recipe(models, SWAP.parameters(), speakers.base, **union), tmp_path / "out")
    wanted = aligned(speakers, SWAP, AutoTokenizer.from_pretrained(out).get_vocab())
    assert_same(*({table: held[table] for table in TABLES} for held in (stored(out), wanted)))


def test_a_configuration_that_was_changed_is_merged_as_it_is(trio, tmp_path):
    document = recipe(roles(trio), SWAP.parameters(), trio.base)
    out = merge(document | {"dtype": "float32"}, tmp_path / "out", text=yaml.safe_dump(document))
    both = stored(trio.task), stored(trio.language)
    assert_same(stored(out), expected(SWAP, *both, dtype=torch.float32))


def test_dora_adapters_are_merged_anew_every_time(experts, tmp_path, caplog):
    """mergekit alone takes a copy that it has made before, however the adapter has changed."""
    adapter, cache = tmp_path / "adapter", tmp_path / "cache"
    given = experts("llama", dtype=torch.float32)
    config = {"r": 2, "lora_alpha": 6, "use_dora": True, "target_modules": ["up_proj"]}
    train_adapter(given.base, adapter, **config)
    (adapter / "chat_template.jinja").write_text(TEMPLATE)
    models = {"task": f"{given.base}+{adapter}", "language": given.language}
    document = recipe(models, SWAP.parameters(), given.base)
    file, seen = adapter / "adapter_model.safetensors", []
    for factor in (1.0, 3.0):
        factors = {n: t * factor if "lora_B" in n else t for n, t in load_file(file).items()}
        save_file(factors, file, {"format": "pt"})
        with caplog.at_level(logging.INFO, "layerswap"):
            options = {"lora_merge_cache": str(cache), "quiet": False}
            found = stored(merge(document, tmp_path / f"out{factor}", **options))
        language = {name: tensor.double() for name, tensor in stored(given.language).items()}
        wanted = expected(SWAP, merged(given.base, adapter), language)
        for name, tensor in wanted.items():
            step = 4 * torch.finfo(torch.float32).eps * tensor.abs().max()
            assert (found[name].double() - tensor).abs().max() <= step, name
        seen.append(found["model.layers.3.mlp.up_proj.weight"])
    assert not torch.equal(*seen)
    assert "is more than low-rank changes" in caplog.text
    assert f"+{adapter} has a chat template and {given.base} has none" in caplog.text
    assert not list(cache.iterdir())
    with pytest.raises(InputError, match=r"--lora-merge-cache .*: cannot be made"):
        merge(document, tmp_path / "new" / "out", lora_merge_cache=str(file))
    save_file({n: t[:1].contiguous() for n, t in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(InputError, match="not of the config's rank 2"):
        merge(document, tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_what_fails_inside_mergekit_leaves_nothing(is_there, trio_copy, merge, tmp_path):
    for folder in vars(trio_copy).values():
        (folder / "tokenizer.json").write_text("{")  # it is there, and is none
    document = recipe(roles(trio_copy), SWAP.parameters(), trio_copy.base)
    mine = tmp_path / "out" / "merged" / "mergekit_config.yml"
    if is_there:
        mine.parent.mkdir(parents=True)
        mine.write_text("earlier")
        write_list(mine.parent, [mine.name])
    result = merge(document | {"tokenizer": {"source": "base"}})
    assert result.exit_code == 1, result.output
    assert result.output.startswith("Error: mergekit failed, and nothing was written: ")
    assert "add -v for the traceback" in result.output
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert sorted(left) == [mine.parent / FILES, mine] * is_there


def test_a_model_written_anew_between_two_merges_is_read_anew(tmp_path):
    """mergekit holds every checkpoint of a process open under its reference."""
    folders = {role: tmp_path / role for role in ("task", "language")}
    for seed in (0, 7):
        for shift, folder in enumerate(folders.values()):
            shutil.rmtree(folder, ignore_errors=True)
            make_model("llama", folder, seed + shift)
        document = recipe(folders, SWAP.parameters())
        write_list(folders["task"], (file.name for file in folders["task"].iterdir()))
        with pytest.raises(InputError, match="is one of the merge's inputs"):
            merge(document, folders["task"] / "." / "x" / "..", clone_tensors=True)
        out = merge(document, tmp_path / f"merged-{seed}", clone_tensors=True)
        assert_same(stored(out), expected(SWAP, *map(stored, folders.values())))


@pytest.mark.parametrize("changes", [{"tokenizer": {}}, {"chat_template": "chatml"}], ids=str)
def test_a_missing_tokenizer_is_named_before_the_merge_and_by_check(changes, experts, tmp_path):
    document = recipe(roles(experts("llama")), SWAP.parameters(), **changes)
    message = f"has no tokenizer .*, which {next(iter(changes))}: needs"
    with pytest.raises(InputError, match=message):
        merge(document, tmp_path / "new" / "out", copy_tokenizer=True)
    assert not (tmp_path / "new").exists()
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(document))
    assert re.search(message, check_recipe(tmp_path / "recipe.yml", hub=False)[0].message)


EIGHT = Swap(layers=8, b=2, u=1, t_b=1, t_u=0)
PARTS = ("self_attn.q_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight")
LAYER_NAMES = [f"model.layers.{layer}.{part}" for layer in range(8) for part in PARTS]
NAMES = ["model.embed_tokens.weight", *LAYER_NAMES, "model.norm.weight"]
ROLES = {"task": "task", "language": "language", "base": None}
TASK, LANGUAGE, BASE = (
    {name: torch.randn(4, 6, generator=generator).bfloat16() for name in NAMES}
    for generator in map(torch.Generator().manual_seed, range(3))
)
MODELS = {"task": TASK, "language": LANGUAGE, "base": BASE}
FEATURES = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.05, 0.2])
EXPERT = {name: (tensor.float() + FEATURES).to(tensor.dtype) for name, tensor in BASE.items()}


def swapped(parameters, base="base"):
    given = {"role": ROLES, "num_layers": 8, **parameters}
    return merge_state_dicts(MODELS, "layer_swap", parameters=given, base=base)


def reverted(parameters, base="base"):
    models, given = {"expert": EXPERT, "base": BASE}, {"num_layers": 8, **parameters}
    return merge_state_dicts(models, "delta_revert", parameters=given, base=base)


def test_roles_and_weights_of_every_input():
    roles = {"task": "task", "language": "language", "base": "task"}
    weights = {"task": 1.0, "language": 5.0, "base": 3.0}
    given = {**EIGHT.parameters(), "role": roles, "weight": weights, "language_weight": 2.0}
    souped = swapped(given, base=None)
    soup = {n: (TASK[n].double() + 3 * BASE[n].double()) / 4 for n in NAMES}
    wanted = expected(Swap(8, 2, 1, 1, 0, w_lang=2), soup, LANGUAGE, dtype=torch.bfloat16)
    assert_same(souped, wanted)


def test_the_kernels_know_which_layers_are_the_decoders():
    """Of eight layers, the last two predict further tokens; and a tower is as deep as the text."""
    depth, behind = {"num_layers": 6, "decoder": "model.layers"}, f"model.layers.6.{PARTS[0]}"
    found = swapped({"bottom_layers": 1, "top_layers": 1, "non_layer": "base", **depth})
    for layer, source in ((0, LANGUAGE), (3, TASK), (5, LANGUAGE), (6, BASE)):
        name = f"model.layers.{layer}.{PARTS[0]}"
        assert torch.equal(found[name], source[name])
    assert torch.equal(reverted({"top_layers": 1, **depth})[behind], EXPERT[behind])
    other = {"decoder": "model.language_model.layers", "num_layers": 8, "non_layer": "base"}
    assert_same(
        swapped({"bottom_layers": 8, "top_layers": 0, **other}),
        LANGUAGE
        | {name: BASE[name] for name in ("model.embed_tokens.weight", "model.norm.weight")},
    )
    assert_same(swapped({**other, "decoder": "model.vision_tower.layers"}), BASE)


def test_the_example_of_the_page_merges_models_in_memory(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "merging.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "merge_state_dicts" in block]
    monkeypatch.chdir(tmp_path)
    folders = {role: Path("runs/pocket") / role for role in ("task", "language")}
    for seed, folder in enumerate(folders.values()):
        write_model(folder, seed, num_hidden_layers=8)
    namespace = {}
    exec(code, namespace)
    wanted = tensors_of(recipe(folders, {"bottom_layers": 1, "top_layers": 1}))
    assert_same(namespace["merged"], wanted)
    found = namespace["models"]["math"].state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_the_names_of_a_model_that_is_written_anew_are_read_anew(tmp_path):
    """They were kept for the life of the process."""
    model = ModelReference(model=ModelPath(path=str(tmp_path / "model")))
    for family, prefix in (("llama", "model.layers"), ("gpt2", "transformer.h")):
        LoaderCache.loaders.clear()  # as mergekit's merges of ours do
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        make_model(family, tmp_path / "model", 0)
        assert decoder_in(model, "any", None, None).prefix == prefix


def test_features_go_back_by_the_names_of_the_model_type():
    name, base = "transformer.h.0.attn.c_attn.weight", torch.zeros(6, 4)
    models = {"expert": {name: base + FEATURES[:, None]}, "base": {name: base}}
    parameters = {"threshold": 0.25, "model_type": "gpt2"}  # stored inputs x outputs
    merged = merge_state_dicts(models, "delta_revert", parameters=parameters, base="base")
    assert torch.equal(merged[name] != 0, (FEATURES > 0.25)[:, None].expand(6, 4))


@pytest.mark.parametrize(
    ("merged", "parameters", "message"),
    [
        (swapped, {"num_layers": None}, "'task' has no config .*; give num_layers"),
        (swapped, {"num_layers": 6, "bottom_layers": 1}, r"layer 6 is not in 0\.\.5"),
        (swapped, {"bottom_layers": 9}, r"9 \+ 2 = 11 is more than the model's 8 layers"),
        (swapped, {"role": "tsak"}, "Input should be 'task' or 'language'"),
        (swapped, {"weighting": "magnitude"}, "measured on whole checkpoints"),
        (swapped, {"placement": "layers"}, "needs language_layers"),
        (swapped, {"placement": "soup", "top_layers": 1}, "top_layers has no effect"),
        (swapped, {"task_weight": 0.0, "language_weight": 0.0}, "nothing to average"),
        (swapped, {"placement": "delta_share"}, "measured on whole checkpoints"),
        (reverted, {}, "nothing says what to revert"),
        (swapped, {"non_layer": "base", "base": None}, "base"),
        (reverted, {"keep_fraction": 0.0}, "measured on whole checkpoints"),
        (reverted, {"bottom_layers": 1, "num_layers": None}, "'base' has no config"),
        (reverted, {"threshold": 0.1, "base": None}, "takes one expert and its base"),
    ],
)
def test_what_cannot_be_said_of_one_tensor_is_refused(merged, parameters, message):
    base = {name: value for name, value in parameters.items() if name == "base"}
    with pytest.raises(ValueError, match=message):
        merged({name: value for name, value in parameters.items() if name != "base"}, **base)


def run_multi(documents, folder):
    folder.mkdir()
    (folder / "recipes.yml").write_text(yaml.safe_dump_all(documents, sort_keys=False))
    places = ["--out-path", str(folder / "final"), "--intermediate-dir", str(folder)]
    words = [str(folder / "recipes.yml"), *places, "--no-copy-tokenizer", "--quiet"]
    return CliRunner().invoke(main, words)


def test_mergekit_multi(trio, tmp_path):
    """A swap of a swap, and a method of mergekit's own of one, in any order."""
    one, two = Swap(LAYERS, 2, 1, 1, 0), Swap(LAYERS, 1, 2, 0, 1)
    first = {"name": "first", **recipe(roles(trio), one.parameters())}
    final = recipe({"task": "first", "language": trio.base}, two.parameters(), "first")
    base, wanted = stored(trio.base), expected(one, stored(trio.task), stored(trio.language))
    mean = {name: average(tensor, base[name], one) for name, tensor in wanted.items()}
    for kind, documents, tensors in (
        ("swaps", [final, first], expected(two, wanted, base)),
        ("linear", [first, linear_recipe(["first", trio.base])], mean),
    ):
        result = run_multi(documents, tmp_path / kind)
        assert result.exit_code == 0, result.output
        for out, held in (("first", wanted), ("final", tensors)):
            assert_same(stored(tmp_path / kind / out), held)
            is_ours = (kind, out) != ("linear", "final")
            assert (tmp_path / kind / out / "layer_swap_plan.json").is_file() == is_ours
    final["parameters"]["bottom_layers"] = 9
    result = run_multi([first, final], tmp_path / "wrong")
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert "is more than the model's 6 layers" in result.output
    assert not (tmp_path / "wrong" / "final").exists()
