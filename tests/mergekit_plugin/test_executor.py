"""Recipes in mergekit's executor: `tokenizer:`, `chat_template:`, adapters that are no LoRA."""

import json
import logging
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from layerswap_method.errors import InputError, LayerSwapError
from tests.adapter_swap.by_peft import merged
from tests.standins.experts import assert_loads
from tests.standins.merging import by_mergekit, merge, merge_of, recipe, roles, write
from tests.standins.oracle import Swap, assert_same, average, expected, stored
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import train_adapter
from tests.standins.zoo import LAYERS, VOCAB, make_model

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
    assert (donor, merge_of(document).donor) == (str(giver), giver)
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


def test_dora_adapters_are_merged_anew_every_time(experts, tmp_path, caplog):
    """mergekit alone takes a copy that it has made before, however the adapter has changed."""
    adapter, cache = tmp_path / "adapter", tmp_path / "cache"
    given = experts("llama", dtype=torch.float32)
    config = {"r": 2, "lora_alpha": 6, "use_dora": True, "target_modules": ["up_proj"]}
    train_adapter(given.base, adapter, **config)
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
    assert not list(cache.iterdir())
    with pytest.raises(InputError, match=r"--lora-merge-cache .*: cannot be made"):
        merge(document, tmp_path / "new" / "out", lora_merge_cache=str(file))
    save_file({n: t[:1].contiguous() for n, t in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(LayerSwapError, match="size mismatch"):
        merge(document, tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_what_fails_inside_mergekit_leaves_nothing(is_there, own_trio, merge, tmp_path):
    for folder in vars(own_trio).values():
        (folder / "tokenizer.json").write_text("{")  # it is there, and is none
    document = recipe(roles(own_trio), SWAP.parameters(), own_trio.base)
    mine = tmp_path / "out" / "merged" / "mergekit_config.yml"
    if is_there:
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
    result = merge(document | {"tokenizer": {"source": "base"}})
    assert result.exit_code == 1, result.output
    assert result.output.startswith("Error: mergekit failed, and nothing was written: ")
    assert "add -v for the traceback" in result.output
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [mine] * is_there


def test_a_model_written_anew_between_two_merges_is_read_anew(tmp_path):
    """mergekit holds every checkpoint of a process open under its reference."""
    folders = {role: tmp_path / role for role in ("task", "language")}
    for seed in (0, 7):
        for shift, folder in enumerate(folders.values()):
            shutil.rmtree(folder, ignore_errors=True)
            make_model("llama", folder, seed + shift)
        document = recipe(folders, SWAP.parameters())
        with pytest.raises(InputError, match="is one of the merge's inputs"):
            merge(document, folders["task"] / "." / "x" / "..", clone_tensors=True)
        out = merge(document, tmp_path / f"merged-{seed}", clone_tensors=True)
        assert_same(stored(out), expected(SWAP, *map(stored, folders.values())))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"source": "base"}}, r"has no tokenizer .*, which tokenizer: needs"),
        ({"chat_template": "chatml"}, r"has no tokenizer .*, which chat_template: needs"),
        ({"chat_template": "chatlm"}, "did you mean 'chatml'"),
    ],
)
def test_what_would_fail_after_the_merge_is_said_before(changes, message, experts, tmp_path):
    document = recipe(roles(experts("llama")), SWAP.parameters(), **changes)
    with pytest.raises(InputError, match=message):
        merge(document, tmp_path / "new" / "out", copy_tokenizer=True)
    assert not (tmp_path / "new").exists()
